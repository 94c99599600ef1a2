#include "cli/matrix_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

namespace tandem {
namespace {

struct StateText {
  CellState state;
  const char* name;
  char letter;
};
constexpr std::array<StateText, 5> kStates = {{{CellState::not_run, "not run", '.'},
                                               {CellState::refused, "refused", '-'},
                                               {CellState::equal, "equal", '='},
                                               {CellState::different, "different", '!'},
                                               {CellState::failed, "failed", 'x'}}};

const StateText& text_of(CellState state) {
  return kStates[static_cast<size_t>(state)];
}

// A reason, and how many cells it refuses.
std::vector<std::pair<std::string, size_t>> refusals(const MatrixReport& report) {
  std::vector<std::pair<std::string, size_t>> reasons;
  for (const CellResult& result : report.results) {
    if (result.state != CellState::refused) continue;
    const auto found = std::ranges::find(reasons, result.detail, &std::pair<std::string, size_t>::first);
    if (found == reasons.end()) {
      reasons.emplace_back(result.detail, 1);
    } else {
      ++found->second;
    }
  }
  return reasons;
}

}  // namespace

const char* cell_state_name(CellState state) {
  return text_of(state).name;
}

CellState parse_cell_state(const std::string& name) {
  for (const StateText& text : kStates) {
    if (name == text.name) return text.state;
  }
  return CellState::not_run;
}

size_t MatrixReport::count(CellState state) const {
  return static_cast<size_t>(std::ranges::count(results, state, &CellResult::state));
}

bool MatrixReport::passed() const {
  return count(CellState::equal) > 0 && count(CellState::different) == 0 && count(CellState::failed) == 0;
}

std::string MatrixReport::table() const {
  const std::vector<MatrixAxis>& axes = matrix_axes();
  const MatrixAxis& shapes = axes[kShapeAxis];
  const MatrixAxis& transports = axes[kTransportAxis];
  std::vector<size_t> widths;
  std::string text;
  for (size_t axis = 0; axis < kShapeAxis; ++axis) {
    size_t width = axes[axis].name.size();
    for (const MatrixValue& value : axes[axis].values) width = std::max(width, value.label.size());
    widths.push_back(width + 2);
    text += fmt::format("{:<{}}", axes[axis].name, widths.back());
  }
  const size_t column = std::max<size_t>(transports.values.size(), 4) + 2;
  for (const MatrixValue& shape : shapes.values) text += fmt::format("{:<{}}", shape.label, column);
  text += '\n';
  size_t rows_without = 0;
  // The product has the last axes innermost: so many cells in a row make one line.
  const size_t block = shapes.values.size() * transports.values.size();
  for (size_t begin = 0; begin + block <= cells.size(); begin += block) {
    const auto refused = [](const CellResult& result) { return result.state == CellState::refused; };
    const auto ran_here = [](const CellResult& result) {
      return result.state != CellState::refused && result.state != CellState::not_run;
    };
    const auto first = results.begin() + static_cast<std::ptrdiff_t>(begin);
    const auto last = first + static_cast<std::ptrdiff_t>(block);
    if (std::all_of(first, last, refused)) continue;
    if (std::none_of(first, last, ran_here)) {
      ++rows_without;
      continue;
    }
    for (size_t axis = 0; axis < kShapeAxis; ++axis)
      text += fmt::format("{:<{}}", axes[axis].values[cells[begin][axis]].label, widths[axis]);
    for (size_t shape = 0; shape < shapes.values.size(); ++shape) {
      std::string letters;
      for (size_t transport = 0; transport < transports.values.size(); ++transport)
        letters += text_of(results[begin + shape * transports.values.size() + transport].state).letter;
      text += fmt::format("{:<{}}", letters, column);
    }
    while (text.back() == ' ') text.pop_back();
    text += '\n';
  }
  if (rows_without > 0) text += fmt::format("... and {} rows of which no cell was chosen\n", rows_without);
  text += "A letter a transport:";
  for (const MatrixValue& transport : transports.values) text += " " + transport.label;
  text += "; = equal, ! different, x failed, - refused, . not run\n\n";
  const auto reasons = refusals(*this);
  if (!reasons.empty()) text += "Refused, and not a failure:\n";
  for (const auto& [reason, count] : reasons)
    text += fmt::format("{:>5} cells: refused: {}\n", count, reason);
  for (size_t i = 0; i < cells.size(); ++i) {
    if (results[i].state == CellState::different || results[i].state == CellState::failed)
      text += fmt::format("{}: {}: {}\n", cell_text(axes, cells[i]), cell_state_name(results[i].state),
                          results[i].detail);
  }
  for (const std::string& item : uncovered) text += "not covered: " + item + "\n";
  const size_t ran = count(CellState::equal) + count(CellState::different) + count(CellState::failed);
  text += fmt::format(
      "\n{} of {} cells that ran equal colocated (logits hash {}, {} prompts, batched and one by one); {} "
      "refused, {} not run{}; {:.1f} s\n",
      count(CellState::equal), ran, logits_hash, prompts, count(CellState::refused),
      count(CellState::not_run), count(CellState::not_run) == 0 || full ? "" : " (--full runs them)",
      seconds);
  return text;
}

std::string MatrixReport::json() const {
  const std::vector<MatrixAxis>& axes = matrix_axes();
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (size_t i = 0; i < cells.size(); ++i) {
    if (results[i].state == CellState::refused || results[i].state == CellState::not_run) continue;
    nlohmann::ordered_json cell;
    for (size_t axis = 0; axis < axes.size(); ++axis)
      cell[axes[axis].name] = axes[axis].values[cells[i][axis]].label;
    cell["state"] = cell_state_name(results[i].state);
    cell["seconds"] = results[i].seconds;
    if (!results[i].detail.empty()) cell["detail"] = results[i].detail;
    list.push_back(std::move(cell));
  }
  nlohmann::ordered_json reasons = nlohmann::ordered_json::array();
  for (const auto& [reason, count] : refusals(*this))
    reasons.push_back({{"reason", reason}, {"cells", count}});
  const nlohmann::ordered_json document = {{"model", model},
                                           {"build", build},
                                           {"logits_hash", logits_hash},
                                           {"prompts", prompts},
                                           {"full", full},
                                           {"cells", cells.size()},
                                           {"equal", count(CellState::equal)},
                                           {"different", count(CellState::different)},
                                           {"failed", count(CellState::failed)},
                                           {"refused", count(CellState::refused)},
                                           {"not_run", count(CellState::not_run)},
                                           {"seconds", seconds},
                                           {"uncovered", uncovered},
                                           {"refusals", reasons},
                                           {"ran", list}};
  return document.dump();
}

}  // namespace tandem
