// Small shapes of every kind of attention, for tests of the benchmarks.
#pragma once

#include "bench/model_shapes.h"

namespace tandem::bench {

inline ModelShape small_gqa(std::string_view model_type = "qwen3_moe") {
  return {.name = "small",
          .model = "Small",
          .model_type = model_type,
          .layers = 2,
          .hidden = 64,
          .vocab = 96,
          .intermediate = 32,
          .experts = 4,
          .top_k = 2,
          .heads = 4,
          .kv_heads = 2,
          .head_dim = 16};
}

inline ModelShape small_mla(std::string_view model_type) {
  return {.name = "small-mla",
          .model = "Small-MLA",
          .model_type = model_type,
          .layers = 2,
          .hidden = 64,
          .vocab = 96,
          .intermediate = 32,
          .experts = 16,
          .top_k = 2,
          .shared = 32,
          .dense_layers = 1,
          .dense_intermediate = 48,
          .attention = ShapeAttention::mla,
          .heads = 2,
          .q_lora = model_type == "deepseek_v3" ? 24u : 0u,
          .kv_lora = 32,
          .nope = 16,
          .rope = 16,
          .v = 16};
}

inline ModelShape small_compressed() {
  return {.name = "small-v4",
          .model = "Small-V4",
          .model_type = "deepseek_v4",
          .layers = 2,
          .hidden = 64,
          .vocab = 96,
          .intermediate = 32,
          .experts = 4,
          .top_k = 2,
          .shared = 32,
          .attention = ShapeAttention::compressed,
          .heads = 8,
          .kv_heads = 1,
          .head_dim = 32,
          .q_lora = 32,
          .rope = 16};
}

}  // namespace tandem::bench
