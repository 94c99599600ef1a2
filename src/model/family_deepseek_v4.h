// What the files of DeepSeek-V4 share: the names of its parts. A plan uses the names of the released files
// ("layers.3.ffn.gate.weight"); other spellings of a checkpoint are brought to those by
// canonical_deepseek_v4_name. One thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

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
// Gate, experts and shared experts of one block. `hashed`: the experts come from a table by token id, and the
// gate has no bias.
void plan_deepseek_v4_ffn(const ModelConfig& config, LoadPlan& plan, const std::string& prefix, bool hashed,
                          MoeLayerWeights& weights);

// The name that the released files would give to a stored tensor: without "model.", "attn" and "ffn" for
// "self_attn" and "mlp", "scale" for "weight_scale_inv", and so on through the spellings of transformers.
// A name that is no other spelling of anything comes back as it is.
std::string canonical_deepseek_v4_name(std::string_view stored);

// Copies of the embedding and the head that drafters may bring along: never read, the model's own are shared.
bool is_deepseek_v4_draft_copy(std::string_view canonical);

}  // namespace tandem
