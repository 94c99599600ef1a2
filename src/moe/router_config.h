// RouterConfig: how a hidden row becomes a routing. One description for every family; MODELS' names in the
// comments.
#pragma once

#include <cstdint>

namespace tandem {

enum class RouterScore : uint8_t {
  softmax,        // p = softmax(logits): V2, Qwen3
  sigmoid,        // s = sigmoid(logits): V3, R1, Kimi-K2, Moonlight
  sqrt_softplus,  // s = sqrt(log(1 + e^logit)): V4
  top_k_logits,   // select on logits, softmax over the selected ones: Mixtral, GraniteMoE
};

enum class GroupScore : uint8_t {
  max,       // V2: a group is as good as its best expert
  top2_sum,  // V3: the sum of its two best biased scores
};

struct RouterConfig {
  uint32_t num_experts = 0;
  uint32_t top_k = 0;
  RouterScore score = RouterScore::softmax;
  bool has_bias = false;  // e_score_correction_bias: added for selection only, never to a weight
  // gpt-oss: added to the logits themselves, so to weights as well.
  bool has_logit_bias = false;
  uint32_t num_groups = 1;   // n_group
  uint32_t groups_kept = 1;  // topk_group
  GroupScore group_score = GroupScore::max;
  bool renormalize = false;             // norm_topk_prob: weights divided by their sum (guarded)
  float scaling_factor = 1.0f;          // routed_scaling_factor, applied here once and nowhere else
  bool scale_when_renormalized = true;  // V3: both; V2 scales only when it does not renormalise
};

}  // namespace tandem
