// What the files of DeepSeek-V4 share: the names of its parts. A plan uses the names of the released files
// ("layers.3.ffn.gate.weight"). One thread.
#pragma once

#include <cstdint>
#include <string>

#include "model/compressed_shape.h"
#include "model/load_plan.h"
#include "model/model_config.h"
#include "model/model_weights.h"

namespace tandem {

// Claims norms, attention, compressor, indexer and hyper-connections of every layer, and the head's
// hyper-connection.
void plan_deepseek_v4_attention(const ModelConfig& config, LoadPlan& plan, ModelWeights& weights);
// The same of one block with names from `prefix` on ("layers.3." or "mtp.0."); without the head's.
void plan_deepseek_v4_attention(const ModelConfig& config, LoadPlan& plan, const std::string& prefix,
                                uint32_t ratio, LayerWeights& layer);

}  // namespace tandem
