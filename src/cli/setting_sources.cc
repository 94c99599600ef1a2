#include "cli/setting_sources.h"

#include <map>
#include <set>

#include "cli/config_file.h"
#include "cli/plugin_config.h"

namespace tandem {
namespace {

constexpr const char* kAdditionalConfig = "vllm.additional_config";
constexpr const char* kCompilationConfig = "vllm.compilation_config";
constexpr int64_t kLastPort = 65535;

std::unexpected<Error> refuse(std::string message) {
  return make_error(ErrorCode::invalid_argument, std::move(message));
}

class Application {
 public:
  Application(Settings& settings, const SettingSources& sources)
      : settings_(settings), sources_(sources), options_(settings.declare()) {}

  Result<std::vector<std::string>> run() {
    for (const auto& [key, value] : sources_.flags) {
      if (key == "config") TANDEM_TRY(options_.set(key, value, "--config"));
    }
    if (!settings_.config.empty()) TANDEM_TRY(read_config_file(settings_.config, options_));
    TANDEM_TRY(read_json_flags());
    TANDEM_TRY(set_all(compilation_));
    TANDEM_TRY(set_all(additional_));
    for (const Option& option : options_.options()) {
      const char* value = environment_of(option);
      if (value == nullptr) continue;
      TANDEM_TRY(options_.set(option.key, value, option.environment()));
      explicit_.insert(option.key);
    }
    for (const auto& [key, value] : sources_.flags) {
      TANDEM_TRY(options_.set(key, value, options_.find(key)->flag()));
      explicit_.insert(key);
    }
    TANDEM_TRY(set_eager());
    if (additional_.has_afd) {
      TANDEM_TRY(set_role());
      TANDEM_TRY(set_addresses());
    }
    TANDEM_TRY(check_copies());
    if (settings_.engine.balanced_routing && sources_.command.starts_with("eval")) {
      return make_error(ErrorCode::unsupported, "engine.balanced_routing: true with " + sources_.command +
                                                    " is not supported; use false: no answer means anything "
                                                    "when the gate is not followed");
    }
    if (settings_.engine.synthetic_kv && sources_.command.starts_with("eval")) {
      return make_error(ErrorCode::unsupported, "engine.synthetic_kv: true with " + sources_.command +
                                                    " is not supported; use false: no answer means anything "
                                                    "when the prompt is not computed");
    }
    TANDEM_TRY(validate(settings_));
    std::vector<std::string> notes = compilation_.notes;
    notes.insert(notes.end(), additional_.notes.begin(), additional_.notes.end());
    if (settings_.engine.synthetic_kv) {
      // A drafter would go on from rows that it has not seen; who asked for drafts was refused.
      settings_.engine.speculative = "off";
      settings_.serving.enable_prefix_caching = false;
      notes.emplace_back(
          "engine.synthetic_kv: prompts are not computed, their keys and values are made up; this is for "
          "benchmarks, and no answer means anything");
    }
    return notes;
  }

 private:
  const char* environment_of(const Option& option) const {
    return sources_.takes(option.key) ? sources_.environment(option.environment().c_str()) : nullptr;
  }

  // The text of a JSON setting and where it comes from; empty: not given.
  std::pair<std::string, std::string> json_setting(const char* key) const {
    const Option& option = *options_.find(key);
    std::pair<std::string, std::string> found;
    if (!sources_.takes(key)) return found;
    if (!option.get().empty()) found = {option.get(), settings_.config + " " + key};
    if (const char* value = environment_of(option)) found = {value, option.environment()};
    for (const auto& [written, value] : sources_.flags) {
      if (written == key) found = {value, option.flag()};
    }
    return found;
  }

  Status read_json_flags() {
    if (const auto [text, where] = json_setting(kAdditionalConfig); !text.empty()) {
      TANDEM_ASSIGN(additional_, read_additional_config(text, where));
    }
    if (const auto [text, where] = json_setting(kCompilationConfig); !text.empty()) {
      const Option* sizes = options_.find("afd.capture_sizes");
      TANDEM_ASSIGN(compilation_,
                    read_compilation_config(text, where, sizes != nullptr ? sizes->get() : std::string()));
    }
    return {};
  }

  Status set_all(const PluginConfig& config) {
    for (const PluginSetting& setting : config.settings) {
      if (options_.find(setting.key) == nullptr)
        return refuse(setting.from + ": " + setting.value + " is not supported; leave it out");
      TANDEM_TRY(options_.set(setting.key, setting.value, setting.from));
      translated_.insert(setting.key);
    }
    return {};
  }

  // --enforce-eager is another name of afd.execution: eager; two names with two values are refused.
  Status set_eager() {
    if (!settings_.vllm.enforce_eager || settings_.afd.execution == "eager") return {};
    if (explicit_.contains("afd.execution") || translated_.contains("afd.execution"))
      return refuse("vllm.enforce_eager: true with afd.execution " + settings_.afd.execution +
                    " is not supported; use one of the two");
    return options_.set("afd.execution", "eager", "--enforce-eager");
  }

  // The block says which half this process is, as the command does.
  Status set_role() {
    const bool is_role_command = sources_.command == "attention" || sources_.command == "ffn";
    if (is_role_command) {
      if (additional_.role.empty() || additional_.role == sources_.command) return {};
      return refuse("afd.role: " + additional_.role + " with tandem " + sources_.command +
                    " is not supported; use tandem serve, or tandem " + additional_.role);
    }
    if (explicit_.contains("afd.role")) return {};
    return options_.set("afd.role", additional_.role.empty() ? "attention" : additional_.role,
                        "--additional-config afd.role");
  }

  // The plugin's ranks meet at one host and port. Here each FFN rank listens on its own, port + rank: its
  // entry of afd.ffn.
  Status set_addresses() {
    const bool is_ffn = sources_.command == "ffn" || settings_.afd.role == "ffn";
    const bool said = !additional_.host.empty() || additional_.port != 0;
    const bool in_file = !settings_.afd.ffn.empty() || (is_ffn && !settings_.afd.listen.empty());
    if (explicit_.contains("afd.ffn") || (is_ffn && explicit_.contains("afd.listen")) || (!said && in_file))
      return {};
    const int64_t port = additional_.port != 0 ? additional_.port : kPluginPort;
    const int64_t ranks = settings_.afd.num_ffn_ranks;
    std::string host = additional_.host.empty() ? std::string(kPluginHost) : additional_.host;
    if (host.find(':') != std::string::npos && !host.starts_with('[')) host = "[" + host + "]";
    if (port + ranks - 1 > kLastPort) {
      return refuse("afd.port: " + std::to_string(port) + " with " + std::to_string(ranks) +
                    " FFN ranks is not supported; use at most " + std::to_string(kLastPort - ranks + 1) +
                    ": rank r listens at port + r");
    }
    std::string text;
    for (int64_t rank = 0; rank < ranks; ++rank)
      text += (rank == 0 ? "tcp://" : ",tcp://") + host + ":" + std::to_string(port + rank);
    additional_.notes.push_back("host and port are afd.ffn " + text + " here");
    if (is_ffn) TANDEM_TRY(options_.set("afd.listen", "", "--additional-config"));  // before the file's
    return options_.set("afd.ffn", text, "--additional-config afd.host, afd.port");
  }

  Status check_copies() const {
    for (const PluginSetting& copy : additional_.copies) {
      const std::string value = options_.find(copy.key)->get();
      if (value == copy.value) continue;
      return refuse(copy.from + ": " + copy.value + ", and " + copy.key + " is " + value +
                    "; set it in the afd block and leave the copy out");
    }
    return {};
  }

  Settings& settings_;
  const SettingSources& sources_;
  OptionSet options_;
  PluginConfig additional_, compilation_;
  std::set<std::string> explicit_;    // by flag or environment
  std::set<std::string> translated_;  // by vLLM's JSON
};

}  // namespace

Result<std::vector<std::string>> apply_sources(Settings& settings, const SettingSources& sources) {
  return Application(settings, sources).run();
}

}  // namespace tandem
