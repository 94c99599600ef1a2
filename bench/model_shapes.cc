#include "bench/model_shapes.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <vector>

#include "base/options.h"

namespace tandem::bench {
namespace {

constexpr PackFormat kFp8 = PackFormat::fp8_block, kMxfp4 = PackFormat::mxfp4;

constexpr ModelShape kShapes[] = {
    {.name = "granite-1b",
     .model = "granite-3.1-1b-a400m",
     .model_type = "granitemoe",
     .layers = 24,
     .hidden = 1024,
     .vocab = 49155,
     .intermediate = 512,
     .experts = 32,
     .top_k = 8,
     .heads = 16,
     .kv_heads = 8,
     .head_dim = 64},
    {.name = "olmoe",
     .model = "OLMoE-1B-7B-0924",
     .model_type = "olmoe",
     .layers = 16,
     .hidden = 2048,
     .vocab = 50304,
     .intermediate = 1024,
     .experts = 64,
     .top_k = 8,
     .heads = 16,
     .kv_heads = 16,
     .head_dim = 128},
    {.name = "v2-lite",
     .model = "DeepSeek-V2-Lite",
     .model_type = "deepseek_v2",
     .layers = 27,
     .hidden = 2048,
     .vocab = 102400,
     .intermediate = 1408,
     .experts = 64,
     .top_k = 6,
     .shared = 2 * 1408,
     .dense_layers = 1,
     .dense_intermediate = 10944,
     .attention = ShapeAttention::mla,
     .heads = 16,
     .kv_lora = 512,
     .nope = 128,
     .rope = 64,
     .v = 128},
    {.name = "qwen3-30b",
     .model = "Qwen3-30B-A3B",
     .model_type = "qwen3_moe",
     .layers = 48,
     .hidden = 2048,
     .vocab = 151936,
     .intermediate = 768,
     .experts = 128,
     .top_k = 8,
     .heads = 32,
     .kv_heads = 4,
     .head_dim = 128},
    {.name = "gpt-oss-20b",
     .model = "gpt-oss-20b",
     .model_type = "gpt_oss",
     .layers = 24,
     .hidden = 2880,
     .vocab = 201088,
     .intermediate = 2880,
     .experts = 32,
     .top_k = 4,
     .heads = 64,
     .kv_heads = 8,
     .head_dim = 64,
     .released_experts = kMxfp4},
    {.name = "v3",
     .model = "DeepSeek-V3",
     .model_type = "deepseek_v3",
     .layers = 61,
     .hidden = 7168,
     .vocab = 129280,
     .intermediate = 2048,
     .experts = 256,
     .top_k = 8,
     .shared = 2048,
     .dense_layers = 3,
     .dense_intermediate = 18432,
     .attention = ShapeAttention::mla,
     .heads = 128,
     .q_lora = 1536,
     .kv_lora = 512,
     .nope = 128,
     .rope = 64,
     .v = 128,
     .released = kFp8,
     .released_experts = kFp8},
    {.name = "v4-flash",
     .model = "DeepSeek-V4-Flash",
     .model_type = "deepseek_v4",
     .layers = 43,
     .hidden = 4096,
     .vocab = 129280,
     .intermediate = 2048,
     .experts = 256,
     .top_k = 6,
     .shared = 2048,
     .attention = ShapeAttention::compressed,
     .heads = 64,
     .kv_heads = 1,
     .head_dim = 512,
     .q_lora = 1024,
     .rope = 64,
     .released = kFp8,
     .released_experts = kMxfp4},
};

std::string attention_text(const ModelShape& shape) {
  switch (shape.attention) {
    case ShapeAttention::gqa:
      return fmt::format("gqa {}/{} of {}", shape.heads, shape.kv_heads, shape.head_dim);
    case ShapeAttention::mla:
      return fmt::format("mla {} heads {}+{}", shape.heads, shape.kv_lora, shape.rope);
    case ShapeAttention::compressed:
      return fmt::format("compressed {} heads of {}", shape.heads, shape.head_dim);
  }
  return {};
}

std::vector<std::string> shape_names() {
  std::vector<std::string> names;
  for (const ModelShape& shape : kShapes) names.emplace_back(shape.name);
  return names;
}

}  // namespace

std::span<const ModelShape> model_shapes() {
  return kShapes;
}

Result<const ModelShape*> find_model_shape(std::string_view name) {
  for (const ModelShape& shape : kShapes) {
    if (shape.name == name) return &shape;
  }
  const std::vector<std::string> names = shape_names();
  const std::string nearest = name.empty() ? std::string() : nearest_word(name, names);
  return make_error(
      ErrorCode::invalid_argument,
      fmt::format("measure.shape: {}; use {}{}",
                  name.empty() ? std::string("none is given") : fmt::format("there is no '{}'", name),
                  nearest.empty() ? fmt::format("one of {}", fmt::join(names, ", ")) : nearest,
                  nearest.empty() ? "" : " (--list-shapes prints all)"));
}

std::string list_model_shapes(bool json) {
  if (json) {
    nlohmann::ordered_json list = nlohmann::ordered_json::array();
    for (const ModelShape& shape : kShapes) {
      list.push_back({{"name", shape.name},
                      {"model", shape.model},
                      {"hidden", shape.hidden},
                      {"intermediate", shape.intermediate},
                      {"experts", shape.experts},
                      {"top_k", shape.top_k},
                      {"shared_intermediate", shape.shared},
                      {"layers", shape.layers},
                      {"dense_layers", shape.dense_layers},
                      {"vocab", shape.vocab},
                      {"attention", attention_text(shape)},
                      {"weights", pack_format_name(shape.released)},
                      {"expert_weights", pack_format_name(shape.released_experts)},
                      {"whole_model", !shape.model_type.empty()}});
    }
    return list.dump() + "\n";
  }
  std::string text = fmt::format("{:<12} {:<22} {:>6} {:>6} {:>7} {:>5} {:>6} {:>7}  {:<26} {:<20} {}\n",
                                 "shape", "model", "hidden", "interm", "experts", "top_k", "layers", "vocab",
                                 "attention", "released as", "decode, prefill");
  for (const ModelShape& shape : kShapes) {
    const std::string released = shape.released == shape.released_experts
                                     ? std::string(pack_format_name(shape.released))
                                     : fmt::format("{}, experts {}", pack_format_name(shape.released),
                                                   pack_format_name(shape.released_experts));
    text += fmt::format("{:<12} {:<22} {:>6} {:>6} {:>7} {:>5} {:>6} {:>7}  {:<26} {:<20} {}\n", shape.name,
                        shape.model, shape.hidden, shape.intermediate, shape.experts, shape.top_k,
                        shape.layers, shape.vocab, attention_text(shape), released,
                        shape.model_type.empty() ? "no: the engine has no such family" : "yes");
  }
  return text;
}

Result<PackFormat> find_weight_format(std::string_view name) {
  std::string names;
  for (size_t i = 0; i < kPackFormats; ++i) {
    const auto format = static_cast<PackFormat>(i);
    if (format == PackFormat::f32) continue;
    if (pack_format_name(format) == name) return format;
    names += (names.empty() ? "" : ", ") + std::string(pack_format_name(format));
  }
  return make_error(
      ErrorCode::invalid_argument,
      fmt::format("measure.weights: '{}' is not a format that can be measured; use one of {}", name, names));
}

}  // namespace tandem::bench
