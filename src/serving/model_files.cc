#include "serving/model_files.h"

#include <fmt/format.h>

#include <limits>
#include <nlohmann/json.hpp>

#include "base/file.h"

namespace tandem {

using nlohmann::json;

namespace {

// tokenizer_config.json lists every added token; the largest known one is some 200 KB.
constexpr size_t kMaxFileBytes = 16 << 20;

Error wrong(const std::string& file, const std::string& field, const json& value, const char* want) {
  return {ErrorCode::data_loss,
          fmt::format("{}: {} is {}; it must be {}", file, field,
                      value.dump(-1, ' ', false, json::error_handler_t::replace).substr(0, 80), want)};
}

// An absent file is an empty object.
Result<json> read_object(const std::string& path) {
  if (!file_exists(path)) return json::object();
  TANDEM_ASSIGN(const std::string text, read_file(path, kMaxFileBytes));
  json value = json::parse(text, nullptr, false);
  if (value.is_object()) return value;
  return make_error(ErrorCode::data_loss, path + " is not a JSON object: fetch the file again");
}

Status read_number(const json& object, const std::string& file, const char* name, double low, double high,
                   float& out) {
  const auto found = object.find(name);
  if (found == object.end() || found->is_null()) return {};
  if (!found->is_number() || !(found->get<double>() >= low && found->get<double>() <= high)) {
    return std::unexpected(wrong(file, name, *found, fmt::format("a number in {}..{}", low, high).c_str()));
  }
  out = found->get<float>();
  return {};
}

Status read_eos(const json& object, const std::string& file, std::vector<int32_t>& out) {
  const auto found = object.find("eos_token_id");
  if (found == object.end() || found->is_null()) return {};
  const json list = found->is_array() ? *found : json::array({*found});
  for (const json& id : list) {
    if (!id.is_number_integer() || id < 0 || id > std::numeric_limits<int32_t>::max()) {
      return std::unexpected(wrong(file, "eos_token_id", *found, "a token id or a list of them"));
    }
    out.push_back(id.get<int32_t>());
  }
  return {};
}

// A token in tokenizer_config.json is its text, or an object with "content".
Result<std::string> read_token(const json& object, const std::string& file, const char* name) {
  const auto found = object.find(name);
  if (found == object.end() || found->is_null()) return "";
  const json text = found->is_object() ? found->value("content", json()) : *found;
  if (!text.is_string())
    return std::unexpected(wrong(file, name, *found, "a string, or an object with content"));
  return text.get<std::string>();
}

Result<std::string> default_template(const json& object, const std::string& file) {
  const auto found = object.find("chat_template");
  if (found == object.end() || found->is_null()) return "";
  if (found->is_string()) return found->get<std::string>();
  std::string names;
  if (found->is_array()) {
    for (const json& item : *found) {
      if (!item.is_object() || !item.value("name", json()).is_string() ||
          !item.value("template", json()).is_string()) {
        return std::unexpected(wrong(file, "chat_template", item, "an object with name and template"));
      }
      if (item["name"] == "default") return item["template"].get<std::string>();
      names += (names.empty() ? "" : ", ") + item["name"].get<std::string>();
    }
    return make_error(ErrorCode::data_loss,
                      fmt::format("{}: chat_template has {} and none is named default: put the one "
                                  "to use into chat_template.jinja",
                                  file, names.empty() ? "no templates" : names));
  }
  return std::unexpected(
      wrong(file, "chat_template", *found, "a string, or a list of objects with name and template"));
}

}  // namespace

Result<GenerationDefaults> read_generation_defaults(const std::string& folder) {
  GenerationDefaults out;
  const std::string file = folder + "/generation_config.json", config_file = folder + "/config.json";
  TANDEM_ASSIGN(const json object, read_object(file));
  SamplingParams& sampling = out.sampling;
  TANDEM_TRY(read_number(object, file, "temperature", 0, 2, sampling.temperature));
  TANDEM_TRY(read_number(object, file, "top_p", 0, 1, sampling.top_p));
  TANDEM_TRY(read_number(object, file, "min_p", 0, 1, sampling.min_p));
  TANDEM_TRY(read_number(object, file, "repetition_penalty", 1e-6, 100, sampling.repetition_penalty));
  float top_k = 0;
  TANDEM_TRY(read_number(object, file, "top_k", -1, 1 << 24, top_k));
  sampling.top_k = static_cast<int32_t>(top_k);
  if (object.value("do_sample", json()) == json(false)) sampling.temperature = 0;

  TANDEM_TRY(read_eos(object, file, out.eos_token_ids));
  if (out.eos_token_ids.empty()) {
    TANDEM_ASSIGN(const json config, read_object(config_file));
    TANDEM_TRY(read_eos(config, config_file, out.eos_token_ids));
  }
  return out;
}

Result<ChatTemplateSource> read_chat_template(const std::string& folder) {
  ChatTemplateSource out;
  TANDEM_ASSIGN(const json config, read_object(folder + "/config.json"));
  // deepseek_ref: what repacks in the layout of the reference code call themselves.
  const json type = config.value("model_type", json()), names = config.value("architectures", json());
  out.is_deepseek_v4 = type == "deepseek_v4" || type == "deepseek_ref" ||
                       (names.is_array() && !names.empty() && names.front() == "DeepseekV4ForCausalLM");
  for (const auto& [key, value] : config.items())
    out.has_dspark = out.has_dspark || key.starts_with("dspark_");
  const std::string file = folder + "/tokenizer_config.json", own_file = folder + "/chat_template.jinja";
  TANDEM_ASSIGN(const json object, read_object(file));
  TANDEM_ASSIGN(out.bos_token, read_token(object, file, "bos_token"));
  TANDEM_ASSIGN(out.eos_token, read_token(object, file, "eos_token"));
  if (file_exists(own_file)) {
    TANDEM_ASSIGN(out.text, read_file(own_file, kMaxFileBytes));
    out.file = own_file;
  } else {
    TANDEM_ASSIGN(out.text, default_template(object, file));
    out.file = file;
  }
  return out;
}

}  // namespace tandem
