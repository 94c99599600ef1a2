// ModelShape: the sizes of released models by short name, for benchmarks without their files. Facts from
// their config.json; a shape that the engine has no family for works for products and attention alone.
// Values; any thread.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "base/result.h"
#include "kernels/packed_weight.h"

namespace tandem::bench {

enum class ShapeAttention : uint8_t { gqa, mla, compressed };

struct ModelShape {
  std::string_view name = {};        // "qwen3-30b"
  std::string_view model = {};       // "Qwen3-30B-A3B"
  std::string_view model_type = {};  // of config.json; empty: the engine has no such family
  uint32_t layers = 0, hidden = 0, vocab = 0;
  uint32_t intermediate = 0, experts = 0, top_k = 0;  // of a routed expert
  uint32_t shared = 0;                                // intermediate rows of the fused shared expert; 0: none
  uint32_t dense_layers = 0, dense_intermediate = 0;  // the first layers, without experts
  ShapeAttention attention = ShapeAttention::gqa;
  uint32_t heads = 0, kv_heads = 0, head_dim = 0;               // gqa; compressed: heads and head_dim
  uint32_t q_lora = 0, kv_lora = 0, nope = 0, rope = 0, v = 0;  // mla; q_lora 0: none
  PackFormat released = PackFormat::bf16;                       // how its files store weights, and experts
  PackFormat released_experts = PackFormat::bf16;

  // Layers without experts of a cut to `cut` layers: the same share, rounded down.
  uint32_t dense_layers_of(uint32_t cut) const { return dense_layers * cut / layers; }
};

std::span<const ModelShape> model_shapes();

// invalid_argument naming the nearest: a name that is none of them. not_found: an empty name.
Result<const ModelShape*> find_model_shape(std::string_view name);

// The table of all shapes, as text or JSON.
std::string list_model_shapes(bool json);

// The format of a name; invalid_argument with the list of names for one that is none. f32 is refused: it is
// the reference mode, which no benchmark measures.
Result<PackFormat> find_weight_format(std::string_view name);

}  // namespace tandem::bench
