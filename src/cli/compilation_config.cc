// vLLM's --compilation-config in our settings.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/options.h"
#include "checkpoint/strict_json.h"
#include "cli/plugin_config.h"

namespace tandem {
namespace {

using nlohmann::json;

std::unexpected<Error> refuse(const std::string& message) {
  return make_error(ErrorCode::invalid_argument, message);
}

constexpr const char* kKnown[] = {"cudagraph_mode", "cudagraph_capture_sizes", "max_cudagraph_capture_size"};

Result<std::string> execution_of(const std::string& mode, const std::string& from, PluginConfig& config) {
  if (mode == "NONE") return std::string("eager");
  if (mode == "FULL_DECODE_ONLY") return std::string("graph");
  if (mode == "FULL") {
    config.notes.push_back("cudagraph_mode FULL resolves to FULL_DECODE_ONLY: prefill steps run eager");
    return std::string("graph");
  }
  if (mode == "PIECEWISE" || mode == "FULL_AND_PIECEWISE")
    return refuse(from + ": " + mode +
                  " is not supported; use FULL_DECODE_ONLY, where attention is part of the graph, or NONE");
  return refuse(from + ": '" + printable(mode) +
                "' is not one of NONE | PIECEWISE | FULL | FULL_DECODE_ONLY | FULL_AND_PIECEWISE");
}

}  // namespace

Result<PluginConfig> read_compilation_config(std::string_view text, const std::string& where,
                                             const std::string& capture_sizes) {
  TANDEM_ASSIGN(const json root, parse_strict_json(text, where));
  if (!root.is_object()) return refuse(where + ": " + printable(text) + " where an object is expected");
  PluginConfig config;
  for (const auto& [name, value] : root.items()) {
    if (std::ranges::find(kKnown, std::string_view(name)) != std::end(kKnown)) continue;
    if (name == "mode" || name == "level" || name == "backend" || name == "pass_config")
      return refuse(where + " " + name + ": " + printable(value.dump()) +
                    " is not supported; leave it out: nothing is compiled at run time");
    return refuse(where + ": unknown key '" + printable(name) +
                  "'; known are cudagraph_mode, cudagraph_capture_sizes, max_cudagraph_capture_size");
  }
  if (root.contains("cudagraph_mode")) {
    const std::string from = where + " cudagraph_mode";
    if (!root["cudagraph_mode"].is_string())
      return refuse(from + ": " + printable(root["cudagraph_mode"].dump()) + " where a word is expected");
    TANDEM_ASSIGN(const std::string execution,
                  execution_of(root["cudagraph_mode"].get<std::string>(), from, config));
    config.settings.push_back({"afd.execution", execution, from});
  }
  std::string sizes;
  std::string from = where + " cudagraph_capture_sizes";
  const auto add = [&](int64_t size) { sizes += (sizes.empty() ? "" : ",") + std::to_string(size); };
  int64_t largest = INT64_MAX;
  if (root.contains("max_cudagraph_capture_size")) {
    const json& value = root["max_cudagraph_capture_size"];
    if (!value.is_number_integer() || value.get<int64_t>() < 1)
      return refuse(where + " max_cudagraph_capture_size: " + printable(value.dump()) +
                    " where a whole number of at least 1 is expected");
    largest = value.get<int64_t>();
  }
  if (root.contains("cudagraph_capture_sizes")) {
    const json& list = root["cudagraph_capture_sizes"];
    if (!list.is_array() || list.empty())
      return refuse(from + ": " + printable(list.dump()) + " where a list of sizes is expected");
    for (const json& size : list) {
      if (!size.is_number_integer() || size.get<int64_t>() < 1)
        return refuse(from + ": " + printable(size.dump()) +
                      " where a whole number of at least 1 is expected");
      if (size.get<int64_t>() > largest)
        return refuse(from + ": " + size.dump() + " with max_cudagraph_capture_size " +
                      std::to_string(largest) + "; leave one of the two out");
      add(size.get<int64_t>());
    }
  } else if (root.contains("max_cudagraph_capture_size")) {
    from = where + " max_cudagraph_capture_size";
    for (size_t begin = 0; begin < capture_sizes.size();) {
      const size_t end = std::min(capture_sizes.find(',', begin), capture_sizes.size());
      const int64_t size = std::strtoll(capture_sizes.c_str() + begin, nullptr, 10);
      if (size <= largest) add(size);
      begin = end + 1;
    }
    if (sizes.empty())
      return refuse(from + ": " + std::to_string(largest) + " is below every size of afd.capture_sizes (" +
                    capture_sizes + "); use cudagraph_capture_sizes");
  }
  if (!sizes.empty()) config.settings.push_back({"afd.capture_sizes", sizes, from});
  return config;
}

}  // namespace tandem
