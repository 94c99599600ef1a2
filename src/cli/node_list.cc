#include "cli/node_list.h"

#include <charconv>
#include <optional>
#include <set>

namespace tandem {
namespace {

constexpr size_t kMaxNodes = 65536;  // more than any cluster has; a typing error asks for more
constexpr size_t kMaxDigits = 18;    // of a number in a range: what an int64_t holds
constexpr std::string_view kDigits = "0123456789";

std::unexpected<Error> invalid(std::string_view variable, std::string_view text, const std::string& what) {
  return make_error(ErrorCode::invalid_argument, std::string(variable) + ": '" + std::string(text) + "': " +
                                                     what + "; unset it, or list the addresses in afd.ffn");
}

bool is_number(std::string_view text) {
  return !text.empty() && text.size() <= kMaxDigits && text.find_first_not_of(kDigits) == text.npos;
}

int64_t number(std::string_view digits) {
  int64_t value = 0;
  std::from_chars(digits.data(), digits.data() + digits.size(), value);
  return value;
}

bool is_host_character(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '.' ||
         c == '_';
}

// What a bracket stands for: "01-03,07" is 01, 02, 03, 07. Empty optional: `why` says what is wrong.
std::optional<std::vector<std::string>> expand_ranges(std::string_view ranges, std::string& why) {
  std::vector<std::string> words;
  for (size_t at = 0; at <= ranges.size();) {
    const size_t comma = std::min(ranges.find(',', at), ranges.size());
    const std::string_view range = ranges.substr(at, comma - at);
    at = comma + 1;
    const size_t dash = range.find('-');
    const std::string_view low = range.substr(0, dash);
    const std::string_view high = dash == range.npos ? low : range.substr(dash + 1);
    if (!is_number(low) || !is_number(high)) {
      why = "'" + std::string(range) + "' is no number and no range";
      return std::nullopt;
    }
    const int64_t first = number(low), last = number(high);
    if (last < first) {
      why = "the range '" + std::string(range) + "' goes down";
      return std::nullopt;
    }
    if (last - first >= static_cast<int64_t>(kMaxNodes - words.size())) {
      why =
          "the range '" + std::string(range) + "' leads to more than " + std::to_string(kMaxNodes) + " nodes";
      return std::nullopt;
    }
    for (int64_t value = first; value <= last; ++value) {
      const std::string digits = std::to_string(value);
      words.push_back(std::string(low.size() - std::min(low.size(), digits.size()), '0') + digits);
    }
  }
  return words;
}

// One name of the list, brackets and all.
Result<std::vector<std::string>> expand_name(std::string_view name, std::string_view text,
                                             std::string_view variable) {
  std::vector<std::string> names = {""};
  for (size_t at = 0; at < name.size();) {
    if (name[at] != '[') {
      if (!is_host_character(name[at])) {
        return invalid(variable, text, std::string("'") + name[at] + "' does not belong in a node's name");
      }
      for (std::string& each : names) each += name[at];
      ++at;
      continue;
    }
    const size_t close = name.find(']', at);  // there is one: the caller has counted
    std::string why;
    const auto words = expand_ranges(name.substr(at + 1, close - at - 1), why);
    if (!words) return invalid(variable, text, why);
    if (names.size() * words->size() > kMaxNodes) {
      return invalid(variable, text,
                     "'" + std::string(name) + "' is more than " + std::to_string(kMaxNodes) + " nodes");
    }
    std::vector<std::string> longer;
    longer.reserve(names.size() * words->size());
    for (const std::string& begun : names) {
      for (const std::string& word : *words) longer.push_back(begun + word);
    }
    names = std::move(longer);
    at = close + 1;
  }
  return names;
}

}  // namespace

Result<std::vector<std::string>> expand_node_list(std::string_view text, std::string_view variable) {
  std::vector<std::string> nodes;
  std::set<std::string> known;
  bool inside = false;
  for (size_t begin = 0, at = 0; at <= text.size(); ++at) {
    const char c = at < text.size() ? text[at] : ',';
    if (c == '[' && inside) return invalid(variable, text, "a bracket stands in another");
    if (c == ']' && !inside) return invalid(variable, text, "']' closes nothing");
    if (c == '[' || c == ']') inside = c == '[';
    if (at == text.size() && inside) return invalid(variable, text, "'[' is not closed");
    if (c != ',' || inside) continue;
    if (at == begin) return invalid(variable, text, "a node has no name");
    TANDEM_ASSIGN(const auto names, expand_name(text.substr(begin, at - begin), text, variable));
    for (const std::string& name : names) {
      if (!known.insert(name).second) return invalid(variable, text, "node '" + name + "' is named twice");
      nodes.push_back(name);
    }
    if (nodes.size() > kMaxNodes)
      return invalid(variable, text, "more than " + std::to_string(kMaxNodes) + " nodes");
    begin = at + 1;
  }
  return nodes;
}

Result<std::vector<int64_t>> expand_task_counts(std::string_view text, size_t num_nodes,
                                                std::string_view variable) {
  std::vector<int64_t> counts;
  for (size_t at = 0; at <= text.size();) {
    const size_t comma = std::min(text.find(',', at), text.size());
    const std::string_view entry = text.substr(at, comma - at);
    at = comma + 1;
    const size_t open = entry.find("(x");
    const std::string_view tasks = entry.substr(0, open);
    std::string_view repeats = "1";
    if (open != entry.npos) repeats = entry.substr(open + 2, entry.size() - open - 3);
    if (!is_number(tasks) || !is_number(repeats) || (open != entry.npos && entry.back() != ')')) {
      return invalid(variable, text, "'" + std::string(entry) + "' is not a number of tasks, as 2 or 2(x3)");
    }
    if (number(repeats) > static_cast<int64_t>(num_nodes - counts.size())) {
      return invalid(variable, text,
                     "it counts tasks of more nodes than the " + std::to_string(num_nodes) + " of the list");
    }
    counts.insert(counts.end(), static_cast<size_t>(number(repeats)), number(tasks));
  }
  if (counts.size() == num_nodes) return counts;
  return invalid(variable, text,
                 "it counts tasks of " + std::to_string(counts.size()) + " nodes, and the list has " +
                     std::to_string(num_nodes));
}

}  // namespace tandem
