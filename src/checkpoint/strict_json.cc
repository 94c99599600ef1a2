#include "checkpoint/strict_json.h"

#include <nlohmann/json.hpp>
#include <set>
#include <vector>

#include "base/one_line.h"

namespace tandem {

using nlohmann::json;

std::string printable(std::string_view text) {
  constexpr size_t kLongest = 160;  // a line of a log; real tensor names have about 60 characters
  std::string out = one_line(text.substr(0, kLongest));
  if (text.size() > kLongest) out += "...";
  return out;
}

Result<json> parse_strict_json(std::string_view text, const std::string& source) {
  std::vector<std::set<std::string>> keys;
  std::string problem;
  const auto watch = [&](int depth, json::parse_event_t event, json& value) {
    if (!problem.empty()) return false;
    switch (event) {
      case json::parse_event_t::object_start:
      case json::parse_event_t::array_start:
        if (depth >= kMaxJsonDepth)
          problem = "nests deeper than " + std::to_string(kMaxJsonDepth) + " levels";
        keys.emplace_back();
        break;
      case json::parse_event_t::object_end:
      case json::parse_event_t::array_end:
        keys.pop_back();
        break;
      case json::parse_event_t::key:
        if (const auto& key = value.get_ref<const std::string&>(); !keys.back().insert(key).second) {
          problem = "has the key '" + printable(key) + "' twice in one object; keep one";
        }
        break;
      case json::parse_event_t::value:
        break;
    }
    return problem.empty();
  };
  try {
    json parsed = json::parse(text, watch);
    if (problem.empty()) return parsed;
    return make_error(ErrorCode::data_loss, source + " " + problem);
  } catch (const json::exception& error) {
    if (!problem.empty()) return make_error(ErrorCode::data_loss, source + " " + problem);
    return make_error(ErrorCode::data_loss, source + " is not valid JSON: " + printable(error.what()));
  }
}

}  // namespace tandem
