// The support matrix as Markdown: rows for the values that decide where the halves run, a column for each
// other axis. A cell looks at its row and its own axis; rules over two columns stand below the matrix.
#include <algorithm>

#include "cli/support.h"

namespace tandem {
namespace {

size_t number_of(const SupportRule* rule) {
  return static_cast<size_t>(rule - support_rules().data()) + 1;
}

std::string reference(const SupportRule* rule) {
  return "[" + std::to_string(number_of(rule)) + "]";
}

std::string join(const std::vector<std::string>& words, const char* separator) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : separator) + word;
  return text;
}

std::vector<const SupportAxis*> axes_that(bool span_rows) {
  std::vector<const SupportAxis*> axes;
  for (const SupportAxis& axis : support_axes()) {
    if (axis.spans_rows == span_rows) axes.push_back(&axis);
  }
  return axes;
}

// "auto, bf16; not fp8, int8 [4]".
std::string cell(const SupportAxis& axis, SupportPoint point) {
  std::vector<std::string> works, refused;
  for (const SupportRule& rule : support_rules()) {
    std::vector<std::string> by_rule;
    for (const std::string& value : axis.values) {
      point[axis.key] = value;
      if (refusing_rule(point) == &rule) by_rule.push_back(value);
    }
    if (!by_rule.empty()) refused.push_back(join(by_rule, ", ") + " " + reference(&rule));
  }
  for (const std::string& value : axis.values) {
    point[axis.key] = value;
    if (refusing_rule(point) == nullptr) works.push_back(value);
  }
  std::string text = join(works, ", ");
  if (!refused.empty()) text += (text.empty() ? "not " : "; not ") + join(refused, ", ");
  return text;
}

// The rule that refuses the point whatever the remaining row axes say; null when it depends on them.
const SupportRule* refuses_all(const SupportPoint& point, size_t depth) {
  static const std::vector<const SupportAxis*> rows = axes_that(true);
  if (depth == rows.size()) return refusing_rule(point);
  const SupportRule* common = nullptr;
  for (const std::string& value : rows[depth]->values) {
    SupportPoint deeper = point;
    deeper[rows[depth]->key] = value;
    const SupportRule* rule = refuses_all(deeper, depth + 1);
    if (rule == nullptr || (common != nullptr && rule != common)) return nullptr;
    common = rule;
  }
  return common;
}

void add_rows(std::string& text, const SupportPoint& point, std::vector<std::string> cells) {
  const std::vector<const SupportAxis*> rows = axes_that(true), columns = axes_that(false);
  const size_t depth = cells.size();
  if (const SupportRule* rule = refuses_all(point, depth); rule != nullptr) {
    cells.resize(rows.size(), "any");
    cells.push_back("refused " + reference(rule));
    cells.resize(rows.size() + columns.size());
  } else if (depth == rows.size()) {
    for (const SupportAxis* axis : columns) cells.push_back(cell(*axis, point));
  } else {
    for (const std::string& value : rows[depth]->values) {
      SupportPoint deeper = point;
      deeper[rows[depth]->key] = value;
      std::vector<std::string> longer = cells;
      longer.push_back(value);
      add_rows(text, deeper, longer);
    }
    return;
  }
  text += "| " + join(cells, " | ") + " |\n";
}

}  // namespace

std::string rule_text(const SupportRule& rule) {
  std::string text;
  for (size_t i = 0; i < rule.when.size(); ++i) {
    text += (i == 0   ? "`"
             : i == 1 ? " with `"
                      : " and `") +
            rule.when[i].key + "` " + join(rule.when[i].values, " or ");
  }
  return text;
}

std::string support_matrix() {
  std::string header, line;
  for (const bool span_rows : {true, false}) {
    for (const SupportAxis* axis : axes_that(span_rows)) {
      header += "| " + axis->heading + " ";
      line += "| --- ";
    }
  }
  std::string text = header + "|\n" + line + "|\n";
  add_rows(text, {}, {});
  text += "\nRefused, and what would do:\n\n";
  for (const SupportRule& rule : support_rules()) {
    text += std::to_string(number_of(&rule)) + ". " + rule_text(rule) + ": use " + rule.what_would_do +
            (rule.why.empty() ? "" : " (" + rule.why + ")") + ".\n";
  }
  return text;
}

}  // namespace tandem
