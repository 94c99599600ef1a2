// The rules, the validator that refuses by them and the matrix that is printed from them say the same.
#include "cli/support.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <sstream>

namespace tandem {
namespace {

const SupportAxis* find_axis(const std::string& key) {
  for (const SupportAxis& axis : support_axes()) {
    if (axis.key == key) return &axis;
  }
  return nullptr;
}

// Settings that a user would have to write for the point.
Settings settings_at(const SupportPoint& point) {
  Settings settings;
  OptionSet set = settings.declare();
  for (const auto& [key, value] : point) {
    const auto done = set.set(key, value == kSeveral ? "2" : value, "test");
    EXPECT_TRUE(done.has_value()) << key << " " << value;
  }
  return settings;
}

// Calls `visit` with every point of the cross product.
template <class Visit>
void for_each_point(const Visit& visit) {
  const auto axes = support_axes();
  std::vector<size_t> at(axes.size(), 0);
  while (true) {
    SupportPoint point;
    for (size_t i = 0; i < axes.size(); ++i) point[axes[i].key] = axes[i].values[at[i]];
    visit(point);
    size_t i = 0;
    while (i < axes.size() && ++at[i] == axes[i].values.size()) at[i++] = 0;
    if (i == axes.size()) return;
  }
}

size_t columns_of(const SupportRule& rule) {
  return static_cast<size_t>(std::ranges::count_if(
      rule.when, [](const SupportCondition& condition) { return !find_axis(condition.key)->spans_rows; }));
}

TEST(Support, ConditionsSpeakOfAxesAndOfTheirValues) {
  for (const SupportRule& rule : support_rules()) {
    ASSERT_FALSE(rule.when.empty());
    EXPECT_FALSE(rule.what_would_do.empty()) << rule_text(rule);
    for (const SupportCondition& condition : rule.when) {
      const SupportAxis* axis = find_axis(condition.key);
      ASSERT_NE(axis, nullptr) << condition.key;
      EXPECT_FALSE(condition.values.empty());
      for (const std::string& value : condition.values)
        EXPECT_NE(std::ranges::find(axis->values, value), axis->values.end())
            << condition.key << " " << value;
    }
  }
}

TEST(Support, AxesKnowEveryChoiceOfTheirSettingAndStartWithTheDefault) {
  Settings settings;
  const OptionSet set = settings.declare();
  for (const SupportAxis& axis : support_axes()) {
    const Option* option = set.find(axis.key);
    ASSERT_NE(option, nullptr) << axis.key;
    EXPECT_EQ(axis.value_of(settings), axis.values.front()) << axis.key;
    if (option->type != OptionType::choice) continue;
    std::istringstream words(option->allowed);
    for (std::string word; words >> word;) {
      if (word == "|" || axis.key == "afd.compute_shared_experts_on_attention") continue;
      Settings chosen = settings_at({{axis.key, word}});
      EXPECT_NE(std::ranges::find(axis.values, axis.value_of(chosen)), axis.values.end())
          << axis.key << " " << word;
    }
  }
}

TEST(Support, TheDefaultsAreSupported) {
  EXPECT_TRUE(validate(Settings{}).has_value());
}

// Validator and table agree on each point; every rule speaks somewhere, for each value of its first key, and
// then names key, value and what would do.
TEST(Support, ValidatorAndTableAgreeOverTheWholeCrossProduct) {
  std::set<std::pair<const SupportRule*, std::string>> silent;
  for (const SupportRule& rule : support_rules()) {
    for (const std::string& value : rule.when.front().values) silent.insert({&rule, value});
  }
  // Setting every option of every point would take seconds: change what differs from the last point.
  Settings settings;
  OptionSet set = settings.declare();
  SupportPoint last;
  size_t supported = 0;
  for_each_point([&](const SupportPoint& point) {
    for (const auto& [key, value] : point) {
      if (last[key] == value) continue;
      ASSERT_TRUE(set.set(key, value == kSeveral ? "2" : value, "test").has_value());
    }
    last = point;
    const auto result = validate(settings);
    const SupportRule* rule = refusing_rule(point);
    ASSERT_EQ(result.has_value(), rule == nullptr)
        << (rule != nullptr ? rule_text(*rule) : result.error().message);
    if (rule == nullptr) {
      ++supported;
      return;
    }
    const std::string& key = rule->when.front().key;
    if (silent.erase({rule, point.at(key)}) == 0) return;
    const std::string& message = result.error().message;
    const std::string written = point.at(key) == kSeveral ? "2" : point.at(key);
    EXPECT_EQ(message.rfind(key + ": " + written, 0), 0u) << message;
    EXPECT_NE(message.find(" is not supported; use " + rule->what_would_do), std::string::npos) << message;
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
  });
  EXPECT_GT(supported, 0u);
  for (const auto& [rule, value] : silent)
    ADD_FAILURE() << "never speaks for " << value << ": " << rule_text(*rule);
}

// What a reader takes from the printed matrix: rows by their first cells, and of each column its "not" part.
struct MatrixRow {
  std::vector<std::string> cells;
};

std::vector<std::string> split(const std::string& text, const std::string& separator) {
  std::vector<std::string> parts;
  size_t begin = 0;
  for (size_t at = text.find(separator); at != std::string::npos; at = text.find(separator, begin)) {
    parts.push_back(text.substr(begin, at - begin));
    begin = at + separator.size();
  }
  parts.push_back(text.substr(begin));
  return parts;
}

std::vector<MatrixRow> printed_rows() {
  std::vector<MatrixRow> rows;
  std::istringstream lines(support_matrix());
  for (std::string line; std::getline(lines, line);) {
    if (line.empty() || line.front() != '|' || line.starts_with("| ---")) continue;
    line = line.substr(2, line.size() - 4);
    rows.push_back({split(line, " | ")});
  }
  rows.erase(rows.begin());  // the header
  return rows;
}

// A reader's way: the row, then each column; rules over two columns stand in the list below.
bool reader_says_supported(const std::vector<MatrixRow>& rows, const SupportPoint& point) {
  std::vector<std::string> row_values, column_values;
  for (const SupportAxis& axis : support_axes())
    (axis.spans_rows ? row_values : column_values).push_back(point.at(axis.key));
  for (const MatrixRow& row : rows) {
    bool here = true;
    for (size_t i = 0; i < row_values.size(); ++i)
      here = here && (row.cells[i] == "any" || row.cells[i] == row_values[i]);
    if (!here) continue;
    if (row.cells[row_values.size()].starts_with("refused")) return false;
    for (size_t i = 0; i < column_values.size(); ++i) {
      const std::string works = split(row.cells[row_values.size() + i], "not ").front();
      const std::vector<std::string> values = split(split(works, ";").front(), ", ");
      if (std::ranges::find(values, column_values[i]) == values.end()) return false;
    }
    return std::ranges::none_of(support_rules(), [&](const SupportRule& rule) {
      return columns_of(rule) > 1 && std::ranges::all_of(rule.when, [&](const SupportCondition& condition) {
               return std::ranges::find(condition.values, point.at(condition.key)) != condition.values.end();
             });
    });
  }
  ADD_FAILURE() << "no row of the matrix speaks of the point";
  return false;
}

TEST(Support, TheMatrixAsReadSaysWhatTheValidatorSays) {
  const std::vector<MatrixRow> rows = printed_rows();
  size_t points = 0;
  for_each_point([&](const SupportPoint& point) {
    if (++points % 7 != 0) return;  // 7 divides no axis: each value of each axis meets each of every other
    ASSERT_EQ(reader_says_supported(rows, point), refusing_rule(point) == nullptr);
  });
}

}  // namespace
}  // namespace tandem
