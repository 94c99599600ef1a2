#include "cli/matrix_design.h"

#include <algorithm>
#include <unordered_set>

namespace tandem {
namespace {

// The choices of a setting, in its own order.
std::vector<std::string> choices(const std::string& key) {
  Settings settings;
  const OptionSet options = settings.declare();
  const std::string text = options.find(key)->allowed;  // "shm | tcp | inproc"
  std::vector<std::string> values;
  constexpr std::string_view kBetween = " | ";
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(kBetween, begin), text.size());
    values.push_back(text.substr(begin, end - begin));
    begin = end + kBetween.size();
  }
  return values;
}

MatrixAxis choice_axis(std::string name, const std::string& key, std::span<const std::string> without = {}) {
  MatrixAxis axis{std::move(name), {}};
  for (const std::string& value : choices(key)) {
    if (std::ranges::find(without, value) == without.end()) axis.values.push_back({value, {{key, value}}});
  }
  return axis;
}

std::vector<MatrixAxis> make_axes() {
  std::vector<MatrixAxis> axes;
  const std::vector<std::string> not_split = {"local"};  // what every cell is compared with
  axes.push_back(choice_axis("connector", "afd.connector", not_split));
  axes.push_back(choice_axis("exchange", "afd.exchange"));
  axes.push_back({"gate",
                  {{"ffn", {{"afd.compute_gate_on_attention", "false"}}},
                   {"attention", {{"afd.compute_gate_on_attention", "true"}}}}});
  axes.push_back({"shared",
                  {{"ffn", {{"afd.compute_shared_experts_on_attention", "false"}}},
                   {"attention", {{"afd.compute_shared_experts_on_attention", "true"}}}}});
  axes.push_back(choice_axis("placement", "afd.placement"));
  axes.push_back(choice_axis("execution", "afd.execution"));
  MatrixAxis shapes{"shape", {}};
  for (const auto& [attention, ffn] : {std::pair{1, 1}, {2, 1}, {3, 2}, {1, 4}}) {
    const std::string x = std::to_string(attention);
    const std::string y = std::to_string(ffn);
    shapes.values.push_back({x + "A" + y + "F", {{"up.attention", x}, {"up.ffn", y}}});
  }
  axes.push_back(std::move(shapes));
  MatrixAxis transports = choice_axis("transport", "up.transport");
  // The cheapest first: among equals a cell without processes is taken.
  std::ranges::stable_partition(transports.values, [](const MatrixValue& v) { return v.label == "inproc"; });
  axes.push_back(std::move(transports));
  return axes;
}

// What a cell covers, as one number: up to three values of 16 bits each, (axis + 1) << 8 | index, the last of
// them lowest; 0 above: fewer values.
using Covered = std::vector<uint64_t>;
constexpr int kValueBits = 16;

std::string item_text(std::span<const MatrixAxis> axes, uint64_t item) {
  std::string text;
  for (; item != 0; item >>= kValueBits) {
    const MatrixAxis& axis = axes[(item >> 8 & 0xff) - 1];
    const std::string value = axis.name + "=" + axis.values[item & 0xff].label;
    text = text.empty() ? value : value + " with " + text;
  }
  return text;
}

Covered covered_by(const MatrixCell& cell, Cover cover) {
  const auto value = [&](size_t axis) { return uint64_t{axis + 1} << 8 | cell[axis]; };
  Covered covered;
  for (size_t a = 0; a < cell.size(); ++a) {
    if (cover == Cover::values) covered.push_back(value(a));
    for (size_t b = a + 1; cover != Cover::values && b < cell.size(); ++b) {
      const uint64_t pair = value(a) << kValueBits | value(b);
      if (cover == Cover::pairs) covered.push_back(pair);
      for (size_t c = b + 1; cover == Cover::triples && c < cell.size(); ++c)
        covered.push_back(pair << kValueBits | value(c));
    }
  }
  return covered;
}

std::unordered_set<uint64_t> left_to_cover(std::span<const MatrixCell> cells, Cover cover,
                                           std::span<const size_t> done) {
  std::unordered_set<uint64_t> left;
  for (const MatrixCell& cell : cells) {
    const Covered covered = covered_by(cell, cover);
    left.insert(covered.begin(), covered.end());
  }
  for (const size_t index : done) {
    for (const uint64_t item : covered_by(cells[index], cover)) left.erase(item);
  }
  return left;
}

}  // namespace

const std::vector<MatrixAxis>& matrix_axes() {
  static const std::vector<MatrixAxis> axes = make_axes();
  return axes;
}

std::vector<MatrixCell> all_cells(std::span<const MatrixAxis> axes) {
  std::vector<MatrixCell> cells = {{}};
  for (const MatrixAxis& axis : axes) {
    std::vector<MatrixCell> longer;
    for (const MatrixCell& cell : cells) {
      for (size_t value = 0; value < axis.values.size(); ++value) {
        longer.push_back(cell);
        longer.back().push_back(static_cast<uint8_t>(value));
      }
    }
    cells = std::move(longer);
  }
  return cells;
}

std::string cell_text(std::span<const MatrixAxis> axes, const MatrixCell& cell) {
  std::string text;
  for (size_t i = 0; i < cell.size(); ++i)
    text += (i == 0 ? "" : " ") + axes[i].name + "=" + axes[i].values[cell[i]].label;
  return text;
}

Result<Settings> cell_settings(std::span<const MatrixAxis> axes, const MatrixCell& cell,
                               const Settings& base) {
  Settings settings = base;
  OptionSet options = settings.declare();
  for (size_t i = 0; i < cell.size(); ++i) {
    for (const auto& [key, value] : axes[i].values[cell[i]].settings)
      TANDEM_TRY(options.set(key, value, axes[i].name));
  }
  TANDEM_TRY(validate(settings));
  return settings;
}

std::vector<size_t> covering_cells(std::span<const MatrixCell> cells, Cover cover,
                                   std::span<const size_t> done) {
  std::unordered_set<uint64_t> left = left_to_cover(cells, cover, done);
  std::vector<Covered> covers;
  for (const MatrixCell& cell : cells) covers.push_back(covered_by(cell, cover));
  std::vector<size_t> chosen;
  while (!left.empty()) {
    const auto gain = [&](const Covered& items) {
      return std::ranges::count_if(items, [&](uint64_t item) { return left.contains(item); });
    };
    const auto best = std::ranges::max_element(covers, {}, gain);
    for (const uint64_t item : *best) left.erase(item);
    chosen.push_back(static_cast<size_t>(best - covers.begin()));
  }
  return chosen;
}

std::vector<std::string> uncovered(std::span<const MatrixAxis> axes, std::span<const MatrixCell> cells,
                                   Cover cover, std::span<const size_t> done) {
  std::vector<std::string> names;
  for (const uint64_t item : left_to_cover(cells, cover, done)) names.push_back(item_text(axes, item));
  std::ranges::sort(names);
  return names;
}

}  // namespace tandem
