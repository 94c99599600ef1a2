#include "model/model_config.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <string_view>

#include "model/config_reader.h"
#include "model/families.h"

namespace tandem {
namespace {

// More layers than any released model has; a list of this size costs nothing.
constexpr uint32_t kMostLayers = 1024;

std::string implemented_types() {
  std::string list;
  for (const FamilyEntry& entry : family_entries())
    list += (list.empty() ? "" : ", ") + std::string(entry.model_type);
  return list;
}

DType parse_stored_dtype(ConfigReader& reader) {
  // transformers 5 writes `dtype`, everything before it `torch_dtype`.
  const std::string key = reader.has("dtype") ? "dtype" : "torch_dtype";
  const std::string name = reader.text_or(key, "float32");
  if (name == "float32") return DType::f32;
  if (name == "bfloat16") return DType::bf16;
  if (name == "float16") return DType::f16;
  reader.fail(ErrorCode::unsupported, key,
              fmt::format("is {}; float32, bfloat16 and float16 are implemented", reader.written(key)));
  return DType::none;
}

QuantizationConfig parse_quantization(ConfigReader& reader, const std::string& model_type) {
  QuantizationConfig quantization;
  if (reader.has("compression_config")) {
    reader.fail(ErrorCode::unsupported, "compression_config",
                "is given; only fp8 with block scales is implemented");
  }
  if (!reader.has("quantization_config")) return quantization;
  ConfigReader section = reader.object("quantization_config");
  quantization.method = section.text_or("quant_method", "");
  if (quantization.method == "mxfp4" && model_type == "gpt_oss") {
    quantization.modules_not_converted = section.texts("modules_to_not_convert");
    return quantization;
  }
  if (quantization.method != "fp8") {
    section.fail(ErrorCode::unsupported, "quant_method",
                 fmt::format("is {}; only fp8 with a weight_block_size is implemented",
                             section.written("quant_method")));
    return quantization;
  }
  if (const std::string format = section.text_or("fmt", "e4m3"); format != "e4m3") {
    section.fail(ErrorCode::unsupported, "fmt", fmt::format("is '{}'; e4m3 is implemented", format));
  }
  if (const std::string scheme = section.text_or("activation_scheme", "dynamic"); scheme != "dynamic") {
    section.fail(ErrorCode::unsupported, "activation_scheme",
                 fmt::format("is '{}'; dynamic is implemented", scheme));
  }
  const std::vector<uint32_t> block = section.u32_list("weight_block_size");
  if (block.size() != 2 || block[0] == 0 || block[1] == 0) {
    section.fail(ErrorCode::unsupported, "weight_block_size",
                 fmt::format("is {}; two numbers, such as [128, 128], would do",
                             section.written("weight_block_size")));
    return quantization;
  }
  quantization.block_rows = block[0];
  quantization.block_cols = block[1];
  quantization.modules_not_converted = section.texts("modules_to_not_convert");
  return quantization;
}

void parse_special_tokens(ConfigReader& reader, ModelConfig& config) {
  const auto as_id = [&](const std::string& key, uint32_t id) {
    if (id >= config.vocab_size) {
      reader.fail(ErrorCode::out_of_range, key,
                  fmt::format("is {}; vocab_size is {}", id, config.vocab_size));
    }
    return static_cast<int32_t>(id);
  };
  // Some files give a list for the beginning too; the first is the one that is written.
  if (const auto bos = reader.u32_list("bos_token_id"); !bos.empty())
    config.bos_token_id = as_id("bos_token_id", bos[0]);
  for (const uint32_t id : reader.u32_list("eos_token_id"))
    config.eos_token_ids.push_back(as_id("eos_token_id", id));
}

void parse_common(ConfigReader& reader, ModelConfig& config) {
  config.hidden_size = reader.u32("hidden_size", 1);
  config.num_layers = reader.u32("num_hidden_layers", 1, kMostLayers);
  config.vocab_size = reader.u32("vocab_size", 1);
  config.attention.num_heads = reader.u32("num_attention_heads", 1, kMostHeads);
  config.tie_word_embeddings = reader.boolean_or("tie_word_embeddings", false);
  config.stored_dtype = parse_stored_dtype(reader);
  config.quantization = parse_quantization(reader, config.model_type);
  parse_special_tokens(reader, config);
  if (const std::string act = reader.text_or("hidden_act", "silu"); act != "silu") {
    reader.fail(ErrorCode::unsupported, "hidden_act", fmt::format("is '{}'; silu is implemented", act));
  }
  reader.require_false("mlp_bias", "biases of the experts are not implemented");
  config.layer_ffn.assign(config.num_layers, FfnKind::moe);
}

}  // namespace

Result<ModelConfig> parse_model_config(const std::string& text, const std::string& source) {
  TANDEM_ASSIGN(ConfigReader reader, ConfigReader::parse(text, source));
  const std::string type = reader.text_or("model_type", "");
  TANDEM_TRY(reader.status());
  if (type.empty()) {
    return make_error(ErrorCode::invalid_argument,
                      fmt::format("{}: model_type is missing; implemented: {}", source, implemented_types()));
  }
  const auto families = family_entries();
  const auto entry = std::ranges::find(families, type, &FamilyEntry::model_type);
  if (entry == families.end()) {
    reader.fail(ErrorCode::unsupported, "model_type",
                fmt::format("{} is not implemented; implemented: {}", reader.written("model_type"),
                            implemented_types()));
    return std::unexpected(reader.status().error());
  }
  ModelConfig config;
  config.family = entry->family;
  config.model_type = type;
  parse_common(reader, config);
  if (!reader.failed()) entry->parse(reader, config);  // families divide by what has been checked above
  if (!config.attention.qkv_bias)
    reader.require_false("attention_bias", "biases of the projections are not implemented for this family");
  TANDEM_TRY(reader.status());
  return config;
}

}  // namespace tandem
