#include "cli/plugin_config.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "afd/connector.h"
#include "base/options.h"
#include "checkpoint/strict_json.h"

namespace tandem {
namespace {

using nlohmann::json;

enum class ValueType : uint8_t { text, whole_number, boolean, object };

struct CommonKey {
  const char* name;
  const char* alias;  // may be null
  ValueType type;
  const char* ours;  // the setting that takes the value as it is; null: more than that
  const char* meaning;
};

// The keys of the plugin's afd block.
constexpr CommonKey kCommonKeys[] = {
    {"connector", "afd_connector", ValueType::text, nullptr, "`afd.connector`, by the table of names"},
    {"role", "afd_role", ValueType::text, nullptr, "`afd.role`; `tandem serve` runs either"},
    {"host", "afd_host", ValueType::text, nullptr,
     "`afd.ffn`: FFN rank r listens at host, port + r, and attention connects there"},
    {"port", "afd_port", ValueType::whole_number, nullptr, "see host; 1239 by default, as there"},
    {"async_dp", "async", ValueType::boolean, nullptr,
     "true with m2n, whose attention ranks never wait for one another; false with the others"},
    {"num_attention_ranks", nullptr, ValueType::whole_number, "afd.num_attention_ranks", ""},
    {"num_ffn_ranks", nullptr, ValueType::whole_number, "afd.num_ffn_ranks", ""},
    {"compute_gate_on_attention", nullptr, ValueType::boolean, "afd.compute_gate_on_attention", ""},
    {"connector_extra_config", nullptr, ValueType::object, nullptr, "see below"},
};

struct ConnectorName {
  const char* theirs;
  const char* ours;  // null: refused
  const char* what_would_do;
};

constexpr ConnectorName kConnectorNames[] = {
    {"P2pNcclAFDConnector", "p2p", ""},
    {"P2pHcclAFDConnector", "p2p", ""},
    {"CAMP2pAFDConnector", "p2p", ""},
    {"CAMAsyncAFDConnector", "m2n", ""},
    {"GpuAsyncAFDConnector", "m2n", ""},
    {"WindowAFDConnector", "m2n", ""},
    {"p2pconnector", "p2p", ""},
    {"camp2pconnector", "p2p", ""},
    {"m2nconnector", "m2n", ""},
    {"camm2nconnector", "m2n", ""},
    {"dummy", nullptr, "local, which runs both halves in one process: every connector here moves real rows"},
    {"stepmesh", nullptr, "p2p or m2n; the transport is chosen by the address"},
};

struct RefusedKey {
  const char* name;
  const char* what_would_do;
};

// Of the block as it was before the plugin.
constexpr RefusedKey kFormerKeys[] = {
    {"num_attention_servers", "num_attention_ranks"},
    {"num_ffn_servers", "num_ffn_ranks"},
    {"num_afd_stages", "--micro-batches"},
    {"afd_server_rank", "--ffn-rank"},
    {"afd_size", "num_attention_ranks and num_ffn_ranks"},
    {"afd_extra_config", "connector_extra_config"},
    {"quant_mode", "--activation-dtype"},
};

// Of connector_extra_config: what only their accelerators have.
constexpr RefusedKey kRefusedExtraKeys[] = {
    {"core_num", "leave it out, and use --threads"},
    {"attn_core_num", "leave it out, and use --threads of the attention process"},
    {"ffn_core_num", "leave it out, and use --threads of the FFN process"},
    {"hccl_buffer_size", "leave it out: slots are sized by the model"},
    {"async_transfer", "leave it out: sending never waits for computing"},
    {"async_slots", "leave it out: eight tiles are in flight in each direction"},
    {"ring_depth", "leave it out: eight tiles are in flight in each direction"},
    {"recv_poll_timeout_ms", "leave it out: receivers sleep until something comes"},
};

constexpr const char* kTranslatedExtraKeys[] = {"dynamicQuant",           "quant_mode",
                                                "attn_ranks_per_dp",      "async_moe_ubatching",
                                                "async_moe_num_ubatches", "async_moe_split"};

std::unexpected<Error> refuse(const std::string& message) {
  return make_error(ErrorCode::invalid_argument, message);
}

std::string value_text(const json& value) {
  return printable(value.is_string() ? value.get<std::string>() : value.dump());
}

Status check_type(const json& value, ValueType type, const std::string& from) {
  const char* expected = nullptr;
  if (type == ValueType::text && !(value.is_string() && !value.get<std::string>().empty()))
    expected = "a word";
  if (type == ValueType::whole_number && !value.is_number_integer()) expected = "a whole number";
  if (type == ValueType::boolean && !value.is_boolean()) expected = "true or false";
  if (type == ValueType::object && !value.is_object()) expected = "an object";
  if (expected == nullptr) return {};
  return refuse(from + ": " + printable(value.dump()) + " where " + expected + " is expected");
}

const CommonKey* find_common(const std::string& name) {
  for (const CommonKey& key : kCommonKeys) {
    if (name == key.name || (key.alias != nullptr && name == key.alias)) return &key;
  }
  return nullptr;
}

// "; did you mean ...?", or all that there are.
std::string known_keys(const std::string& name, const std::vector<std::string>& known) {
  const std::string nearest = nearest_word(name, known);
  std::string all;
  for (const std::string& key : known) all += (all.empty() ? "" : ", ") + key;
  return (nearest.empty() ? "" : "; did you mean '" + nearest + "'?") + (" Known are: " + all);
}

Result<std::string> connector_name(const std::string& name, const std::string& from) {
  for (const std::string& ours : connector_names()) {
    if (name == ours) return name;
  }
  std::vector<std::string> known = connector_names();
  for (const ConnectorName& entry : kConnectorNames) {
    known.emplace_back(entry.theirs);
    if (name != entry.theirs) continue;
    if (entry.ours != nullptr) return std::string(entry.ours);
    return refuse(from + ": " + name + " is not supported; use " + entry.what_would_do);
  }
  return refuse(from + ": unknown connector '" + printable(name) + "'" + known_keys(name, known));
}

// What a common key says in our words; equal texts are equal values.
Result<std::string> common_value(const CommonKey& key, const json& value, const std::string& from) {
  TANDEM_TRY(check_type(value, key.type, from));
  std::string text = value_text(value);
  if (std::string_view(key.name) == "connector") return connector_name(text, from);
  if (std::string_view(key.name) == "role" && text != "attention" && text != "ffn")
    return refuse(from + ": '" + text + "' is not one of attention | ffn");
  if (std::string_view(key.name) == "port" &&
      (value.get<json::number_integer_t>() < 1 || value.get<json::number_integer_t>() > 65535))
    return refuse(from + ": " + text + " is not in 1..65535");
  return text;
}

std::string our_key(const CommonKey& key) {
  if (key.ours != nullptr) return key.ours;
  return std::string_view(key.name) == "connector" ? "afd.connector" : "";
}

// The afd block while it is read.
class BlockReader {
 public:
  BlockReader(const std::string& where, PluginConfig& config) : where_(where), config_(config) {}

  Status read(const json& block) {
    for (const auto& [name, value] : block.items()) TANDEM_TRY(read_common(name, value));
    if (values_.contains("connector")) note_connector(block);
    TANDEM_TRY(check_async());
    if (extra_ != nullptr) TANDEM_TRY(read_extra(*extra_));
    for (const CommonKey& key : kCommonKeys) {
      const auto at = values_.find(key.name);
      if (at == values_.end()) continue;
      if (const std::string ours = our_key(key); !ours.empty())
        config_.settings.push_back({ours, at->second, from(key.name)});
    }
    if (const auto at = values_.find("role"); at != values_.end()) config_.role = at->second;
    if (const auto at = values_.find("host"); at != values_.end()) config_.host = at->second;
    if (const auto at = values_.find("port"); at != values_.end()) config_.port = std::stoll(at->second);
    return {};
  }

 private:
  std::string from(const std::string& name) const { return where_ + " afd." + name; }

  Status read_common(const std::string& name, const json& value) {
    const CommonKey* key = find_common(name);
    if (key == nullptr) {
      for (const RefusedKey& former : kFormerKeys) {
        if (name == former.name) return refuse(from(name) + ": unknown key; use " + former.what_would_do);
      }
      std::vector<std::string> known;
      for (const CommonKey& common : kCommonKeys) {
        known.emplace_back(common.name);
        if (common.alias != nullptr) known.emplace_back(common.alias);
      }
      return refuse(where_ + ": unknown key 'afd." + printable(name) + "'" + known_keys(name, known));
    }
    if (key->type == ValueType::object) {
      TANDEM_TRY(check_type(value, key->type, from(name)));
      extra_ = &value;
      return {};
    }
    TANDEM_ASSIGN(const std::string text, common_value(*key, value, from(name)));
    const auto [at, is_new] = values_.insert({key->name, text});
    if (is_new || at->second == text) return {};
    return refuse(where_ + ": afd." + key->name + " and its alias afd." + key->alias +
                  " are given with two values, " + at->second + " and " + text + "; keep one");
  }

  void note_connector(const json& block) {
    for (const char* name : {"connector", "afd_connector"}) {
      if (!block.contains(name)) continue;
      const std::string theirs = block[name].get<std::string>();
      if (theirs != values_["connector"])
        config_.notes.push_back("connector " + theirs + " is " + values_["connector"] + " here");
    }
  }

  // The plugin's own rule: its asynchronous mode belongs to its asynchronous connectors.
  Status check_async() {
    const auto at = values_.find("async_dp");
    if (at == values_.end()) return {};
    const std::string connector = values_.contains("connector") ? values_["connector"] : "p2p";
    if (at->second == "true" && connector != "m2n")
      return refuse(from("async_dp") + ": true with connector " + connector +
                    " is not supported; use connector m2n (CAMAsyncAFDConnector, GpuAsyncAFDConnector)");
    if (at->second == "false" && connector == "m2n")
      return refuse(from("async_dp") +
                    ": false with connector m2n is not supported; use true, or leave it out: attention ranks "
                    "never wait for one another");
    return {};
  }

  Status read_extra(const json& extra) {
    for (const auto& [name, value] : extra.items()) {
      const std::string place = from("connector_extra_config." + name);
      if (const CommonKey* key = find_common(name); key != nullptr && key->type != ValueType::object) {
        TANDEM_TRY(read_copy(*key, name, value, place));
        continue;
      }
      for (const RefusedKey& refused : kRefusedExtraKeys) {
        if (name == refused.name)
          return refuse(place + ": " + value_text(value) + " is not supported; " + refused.what_would_do);
      }
      if (std::ranges::find(kTranslatedExtraKeys, std::string_view(name)) == std::end(kTranslatedExtraKeys)) {
        std::vector<std::string> known(std::begin(kTranslatedExtraKeys), std::end(kTranslatedExtraKeys));
        return refuse(where_ + ": unknown key 'afd.connector_extra_config." + printable(name) + "'" +
                      known_keys(name, known));
      }
    }
    TANDEM_TRY(read_quantisation(extra));
    return read_stages(extra);
  }

  // Never a second judge: it is equal, or it is refused.
  Status read_copy(const CommonKey& key, const std::string& name, const json& value,
                   const std::string& place) {
    TANDEM_ASSIGN(const std::string text, common_value(key, value, place));
    config_.notes.push_back("connector_extra_config." + name + " is deprecated: it copies afd." + key.name +
                            "; leave it out");
    std::string said;
    if (const auto at = values_.find(key.name); at != values_.end()) {
      said = at->second;
    } else if (const std::string ours = our_key(key); !ours.empty()) {
      config_.copies.push_back({ours, text, place});
      return {};
    } else {
      const std::string_view common = key.name;
      said = common == "role"   ? "attention"
             : common == "host" ? std::string(kPluginHost)
             : common == "port" ? std::to_string(kPluginPort)
                                : "false";
    }
    if (said == text) return {};
    return refuse(place + ": " + text + ", and afd." + key.name + " is " + said + "; set afd." + key.name +
                  " and leave the copy out");
  }

  Status read_quantisation(const json& extra) {
    if (extra.contains("quant_mode")) {
      const std::string place = from("connector_extra_config.quant_mode");
      TANDEM_TRY(check_type(extra["quant_mode"], ValueType::whole_number, place));
      if (extra["quant_mode"] != 0)
        return refuse(place + ": " + value_text(extra["quant_mode"]) +
                      " is not supported; use 0, and --activation-dtype for a quantised wire");
    }
    if (!extra.contains("dynamicQuant")) return {};
    const std::string place = from("connector_extra_config.dynamicQuant");
    TANDEM_TRY(check_type(extra["dynamicQuant"], ValueType::whole_number, place));
    if (extra["dynamicQuant"] == 0) return {};
    if (extra["dynamicQuant"] != 1)
      return refuse(place + ": " + value_text(extra["dynamicQuant"]) +
                    " is not supported; use 0, or 1 for int8 with a scale a row");
    config_.settings.push_back({"afd.activation_dtype", "int8", place});
    config_.notes.push_back("dynamicQuant 1 is afd.activation_dtype int8 here");
    return {};
  }

  Status read_stages(const json& extra) {
    const auto place = [&](const char* name) { return from(std::string("connector_extra_config.") + name); };
    if (extra.contains("attn_ranks_per_dp")) {
      TANDEM_TRY(check_type(extra["attn_ranks_per_dp"], ValueType::whole_number, place("attn_ranks_per_dp")));
      if (extra["attn_ranks_per_dp"] != 1)
        return refuse(place("attn_ranks_per_dp") + ": " + value_text(extra["attn_ranks_per_dp"]) +
                      " is not supported; use 1: an attention rank has its sequences to itself");
    }
    bool stages = false;
    if (extra.contains("async_moe_ubatching")) {
      TANDEM_TRY(check_type(extra["async_moe_ubatching"], ValueType::boolean, place("async_moe_ubatching")));
      stages = extra["async_moe_ubatching"].get<bool>();
    }
    for (const char* name : {"async_moe_num_ubatches", "async_moe_split"}) {
      if (extra.contains(name) && !stages)
        return refuse(place(name) + ": " + value_text(extra[name]) +
                      " does nothing alone; use async_moe_ubatching: true with it, or leave it out");
    }
    if (!stages) return {};
    std::string lanes = "2";  // the plugin's default
    if (extra.contains("async_moe_num_ubatches")) {
      TANDEM_TRY(check_type(extra["async_moe_num_ubatches"], ValueType::whole_number,
                            place("async_moe_num_ubatches")));
      lanes = value_text(extra["async_moe_num_ubatches"]);
    }
    config_.settings.push_back({"afd.micro_batches", lanes, place("async_moe_num_ubatches")});
    if (extra.contains("async_moe_split")) {
      TANDEM_TRY(check_type(extra["async_moe_split"], ValueType::text, place("async_moe_split")));
      config_.settings.push_back(
          {"afd.micro_batch_split", value_text(extra["async_moe_split"]), place("async_moe_split")});
    }
    return {};
  }

  const std::string& where_;
  PluginConfig& config_;
  std::map<std::string, std::string, std::less<>> values_;  // by the key's own name
  const json* extra_ = nullptr;
};

}  // namespace

Result<PluginConfig> read_additional_config(std::string_view text, const std::string& where) {
  TANDEM_ASSIGN(const json root, parse_strict_json(text, where));
  TANDEM_TRY(check_type(root, ValueType::object, where));
  PluginConfig config;
  for (const auto& [name, value] : root.items()) {
    if (name != "afd") return refuse(where + ": unknown key '" + printable(name) + "'; the only one is afd");
    TANDEM_TRY(check_type(value, ValueType::object, where + " afd"));
    config.has_afd = true;
    TANDEM_TRY(BlockReader(where, config).read(value));
  }
  return config;
}

std::string plugin_key_table() {
  std::string text = "| in the `afd` block | alias | here |\n| --- | --- | --- |\n";
  for (const CommonKey& key : kCommonKeys) {
    text += "| `" + std::string(key.name) + "` | " +
            (key.alias != nullptr ? "`" + std::string(key.alias) + "`" : "") + " | " +
            (key.ours != nullptr ? "`" + std::string(key.ours) + "`" : key.meaning) + " |\n";
  }
  text += "\n| in `connector_extra_config` | here |\n| --- | --- |\n";
  text += "| any key of the block | deprecated copy: must be equal |\n";
  text += "| `dynamicQuant` | 0: nothing; 1: `afd.activation_dtype` int8; others refused |\n";
  text += "| `quant_mode`, `attn_ranks_per_dp` | 0 and 1, and nothing else |\n";
  text +=
      "| `async_moe_ubatching`, `async_moe_num_ubatches`, `async_moe_split` | `afd.micro_batches`, "
      "`afd.micro_batch_split` |\n";
  for (const RefusedKey& key : kRefusedExtraKeys)
    text += "| `" + std::string(key.name) + "` | refused; " + key.what_would_do + " |\n";
  return text;
}

std::string plugin_connector_table() {
  std::string text = "| connector there | here |\n| --- | --- |\n";
  for (const ConnectorName& name : kConnectorNames) {
    text += "| `" + std::string(name.theirs) + "` | " +
            (name.ours != nullptr ? "`" + std::string(name.ours) + "`"
                                  : "refused; use " + std::string(name.what_would_do)) +
            " |\n";
  }
  return text;
}

}  // namespace tandem
