// The JSON that users of vLLM's AFD plugin pass to its launcher, in our settings: `--additional-config` with
// its `afd` block, and `--compilation-config`. One table translates keys; nothing is judged here that
// `validate` judges. Strict: a key that is unknown, given twice, or given under two names with two values is
// refused by name. What is peculiar to an accelerator is refused with what would do. Pure, any thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace tandem {

struct PluginSetting {
  std::string key, value;  // ours, as a user would write them
  std::string from;        // "--additional-config afd.connector": what a message blames
};

struct PluginConfig {
  bool has_afd = false;
  std::vector<PluginSetting> settings;
  // Copies of common keys inside connector_extra_config whose own key is not in the block. They decide
  // nothing: what holds at the end must be equal.
  std::vector<PluginSetting> copies;
  std::string role;                // attention | ffn; empty: not said
  std::string host;                // where the ranks meet; empty: not said
  int64_t port = 0;                // 0: not said
  std::vector<std::string> notes;  // for the log
};

inline constexpr std::string_view kPluginHost = "127.0.0.1";
inline constexpr int64_t kPluginPort = 1239;

// `where` names the source in messages: "--additional-config", "TANDEM_ADDITIONAL_CONFIG".
Result<PluginConfig> read_additional_config(std::string_view text, const std::string& where);

// `capture_sizes`: what afd.capture_sizes holds now, for a maximum without sizes; comma-separated.
Result<PluginConfig> read_compilation_config(std::string_view text, const std::string& where,
                                             const std::string& capture_sizes);

// For the docs: a line each, in Markdown.
std::string plugin_key_table();
std::string plugin_connector_table();

}  // namespace tandem
