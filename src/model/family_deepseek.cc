// DeepSeek-V2 (with and without q_lora) and V3, with everything that is V3 by its config: R1, V3.1, Kimi-K2,
// Moonlight, GLM-4.7-Flash (glm4_moe_lite).
#include <fmt/core.h>

#include <cmath>

#include "model/families.h"
#include "model/load_plan.h"
#include "model/rope_config.h"

namespace tandem {
namespace {

struct DeepseekDefaults {
  uint32_t max_position_embeddings, first_k_dense_replace, num_shared_experts;
  double rms_norm_eps = 1e-6;
  uint32_t q_lora_rank = 1536, qk_nope_head_dim = 128, v_head_dim = 128;
};

// Multi-head latent attention; q_lora_rank null means none.
void parse_mla(ConfigReader& reader, ModelConfig& config, const DeepseekDefaults& defaults) {
  AttentionConfig& attention = config.attention;
  attention.kind = AttentionKind::mla;
  attention.q_lora_rank =
      reader.is_null("q_lora_rank") ? 0 : reader.u32_or("q_lora_rank", defaults.q_lora_rank);
  attention.kv_lora_rank = reader.u32_or("kv_lora_rank", 512, 1);
  attention.qk_nope_head_dim = reader.u32_or("qk_nope_head_dim", defaults.qk_nope_head_dim, 1);
  attention.qk_rope_head_dim = reader.u32_or("qk_rope_head_dim", 64, 2);
  attention.v_head_dim = reader.u32_or("v_head_dim", defaults.v_head_dim, 1);
  const uint64_t query_rows = uint64_t{attention.qk_nope_head_dim} + attention.qk_rope_head_dim;
  check_width(reader, "qk_nope_head_dim", attention.num_heads * query_rows);
  check_width(reader, "v_head_dim",
              attention.num_heads * (uint64_t{attention.qk_nope_head_dim} + attention.v_head_dim));
  const bool interleaved = reader.boolean_or("rope_interleave", true);
  attention.rope =
      parse_rope(reader, {.theta = 10000.0,
                          .dim = attention.qk_rope_head_dim,
                          .layout = interleaved ? RopeLayout::interleaved : RopeLayout::half_split,
                          .max_position_embeddings = config.max_position_embeddings});
  const double query_dim = attention.qk_nope_head_dim + attention.qk_rope_head_dim;
  attention.softmax_scale = static_cast<float>(mla_softmax_correction(attention.rope) / std::sqrt(query_dim));
}

// Everything but the router's rule, which is where V2 and V3 differ.
void parse_deepseek(ConfigReader& reader, ModelConfig& config, const DeepseekDefaults& defaults) {
  config.max_position_embeddings =
      reader.u32_or("max_position_embeddings", defaults.max_position_embeddings, 1);
  config.rms_norm_eps = static_cast<float>(reader.positive_or("rms_norm_eps", defaults.rms_norm_eps));
  parse_mtp(reader, config);
  parse_mla(reader, config, defaults);

  const uint32_t first_dense = reader.u32_or("first_k_dense_replace", defaults.first_k_dense_replace);
  const uint32_t frequency = reader.u32_or("moe_layer_freq", 1, 1);
  bool any_dense = false;
  for (uint32_t layer = 0; layer < config.num_layers; ++layer) {
    if (layer < first_dense || layer % frequency != 0) {
      config.layer_ffn[layer] = FfnKind::dense;
      any_dense = true;
    }
  }
  if (any_dense) config.dense_intermediate_size = reader.u32("intermediate_size", 1);
  config.moe_intermediate_size = reader.u32("moe_intermediate_size", 1);
  const uint32_t shared =
      reader.is_null("n_shared_experts") ? 0 : reader.u32_or("n_shared_experts", defaults.num_shared_experts);
  const uint64_t width = uint64_t{shared} * config.moe_intermediate_size;  // the files store them fused
  check_width(reader, "n_shared_experts", width);
  config.shared_intermediate_size = static_cast<uint32_t>(width);
}

// n_group and topk_group; null means one group.
void parse_groups(ConfigReader& reader, RouterConfig& router, uint32_t default_groups,
                  uint32_t default_kept) {
  router.num_groups = reader.is_null("n_group") ? 1 : reader.u32_or("n_group", default_groups, 1);
  router.groups_kept = reader.is_null("topk_group") ? 1 : reader.u32_or("topk_group", default_kept, 1);
  if (router.num_groups == 1) router.groups_kept = 1;
}

void refuse_text(ConfigReader& reader, const std::string& key, const std::string& only) {
  reader.fail(ErrorCode::unsupported, key, fmt::format("is {}; {}", reader.written(key), only));
}

}  // namespace

void parse_deepseek_v2(ConfigReader& reader, ModelConfig& config) {
  parse_deepseek(reader, config,
                 {.max_position_embeddings = 2048, .first_k_dense_replace = 0, .num_shared_experts = 2});
  RouterConfig& router = config.router;
  router.num_experts = reader.u32_or("n_routed_experts", 64, 1, kMostExperts);
  router.top_k = reader.u32("num_experts_per_tok", 1);
  router.score = RouterScore::softmax;
  router.group_score = GroupScore::max;
  // The official gate renormalises only where there is something to share, and scales only where it does not
  // renormalise.
  router.renormalize = reader.boolean_or("norm_topk_prob", false) && router.top_k > 1;
  router.scale_when_renormalized = false;
  router.scaling_factor = static_cast<float>(reader.positive_or("routed_scaling_factor", 1.0));
  const std::string method = reader.text_or("topk_method", "greedy");
  if (method == "group_limited_greedy") {
    parse_groups(reader, router, 1, 1);
  } else if (method != "greedy") {
    refuse_text(reader, "topk_method", "deepseek_v2 has greedy and group_limited_greedy");
  }
  if (reader.text_or("scoring_func", "softmax") != "softmax") {
    refuse_text(reader, "scoring_func", "deepseek_v2 has softmax");
  }
  check_router(reader, router, "n_routed_experts");
}

void parse_sigmoid_router(ConfigReader& reader, ModelConfig& config, const SigmoidRouterDefaults& defaults) {
  RouterConfig& router = config.router;
  router.num_experts = reader.u32_or("n_routed_experts", defaults.num_experts, 1, kMostExperts);
  router.top_k = reader.u32_or("num_experts_per_tok", defaults.top_k, 1);
  router.score = RouterScore::sigmoid;
  router.has_bias = true;
  router.group_score = GroupScore::top2_sum;
  router.renormalize = reader.boolean_or("norm_topk_prob", true);
  router.scale_when_renormalized = true;
  router.scaling_factor =
      static_cast<float>(reader.positive_or("routed_scaling_factor", defaults.scaling_factor));
  parse_groups(reader, router, defaults.groups, defaults.groups_kept);
  if (reader.text_or("topk_method", "noaux_tc") != "noaux_tc") {
    refuse_text(reader, "topk_method", config.model_type + " has noaux_tc");
  }
  if (reader.text_or("scoring_func", "sigmoid") != "sigmoid") {
    refuse_text(reader, "scoring_func", config.model_type + " has sigmoid");
  }
  check_router(reader, router, "n_routed_experts");
}

void parse_deepseek_v3(ConfigReader& reader, ModelConfig& config) {
  parse_deepseek(reader, config,
                 {.max_position_embeddings = 4096, .first_k_dense_replace = 3, .num_shared_experts = 1});
  parse_sigmoid_router(
      reader, config, {.num_experts = 256, .top_k = 8, .groups = 8, .groups_kept = 4, .scaling_factor = 2.5});
}

void parse_glm4_moe_lite(ConfigReader& reader, ModelConfig& config) {
  parse_deepseek(reader, config,
                 {.max_position_embeddings = 202752,
                  .first_k_dense_replace = 1,
                  .num_shared_experts = 1,
                  .rms_norm_eps = 1e-5,
                  .q_lora_rank = 768,
                  .qk_nope_head_dim = 192,
                  .v_head_dim = 256});
  // transformers 5 writes the pattern out.
  const std::vector<std::string> types = reader.texts("mlp_layer_types");
  for (uint32_t layer = 0; layer < config.num_layers && !types.empty(); ++layer) {
    const bool dense = config.layer_ffn[layer] == FfnKind::dense;
    if (layer < types.size() && types[layer] == (dense ? "dense" : "sparse")) continue;
    refuse_text(
        reader, "mlp_layer_types",
        "one of num_hidden_layers, \"dense\" for the first first_k_dense_replace and \"sparse\" for the "
        "others, is implemented");
    break;
  }
  parse_sigmoid_router(reader, config,
                       {.num_experts = 64, .top_k = 4, .groups = 1, .groups_kept = 1, .scaling_factor = 1.8});
}

void parse_mtp(ConfigReader& reader, ModelConfig& config) {
  config.num_mtp_layers = reader.u32_or("num_nextn_predict_layers", 0);
  if (config.num_mtp_layers == 0) return;
  config.draft.kind = DraftKind::mtp;
  config.draft.num_stages = config.num_mtp_layers;
}

// Its embedding and head are the model's; files repeat both.
void plan_mtp(const ModelConfig& config, LoadPlan& plan, const std::string& prefix, DraftWeights& weights) {
  const uint32_t hidden = config.hidden_size;
  plan.vector(weights.embedding_norm, WeightRole::norm, prefix + "enorm.weight", hidden);
  plan.vector(weights.hidden_norm, WeightRole::norm, prefix + "hnorm.weight", hidden);
  plan.matrix(weights.join, WeightRole::attention, prefix + "eh_proj.weight", hidden, 2 * hidden);
  plan.vector(weights.head_norm, WeightRole::norm, prefix + "shared_head.norm.weight", hidden);
}

void plan_deepseek_experts(const ModelConfig& config, LoadPlan& plan, const std::string& prefix,
                           MoeLayerWeights& weights) {
  const uint32_t experts = config.router.num_experts;
  plan.matrix(weights.router, WeightRole::router, prefix + "gate.weight", experts, config.hidden_size);
  if (config.router.has_bias) {
    plan.vector(weights.router_bias, WeightRole::router, prefix + "gate.e_score_correction_bias", experts,
                DType::f32);
  }
  plan_numbered_experts(config, plan, prefix + "experts.", weights);
  if (config.shared_intermediate_size == 0) return;
  plan_gated_mlp(plan, weights.shared, WeightRole::shared_experts, prefix + "shared_experts.",
                 config.shared_intermediate_size, config.hidden_size);
}

void plan_deepseek(const ModelConfig& config, LoadPlan& plan, ModelWeights& weights) {
  const AttentionConfig& a = config.attention;
  const uint32_t hidden = config.hidden_size, heads = a.num_heads;
  const uint32_t query_dim = a.qk_nope_head_dim + a.qk_rope_head_dim,
                 head_rows = a.qk_nope_head_dim + a.v_head_dim;
  plan_ends(config, plan, weights);
  for (uint32_t l = 0; l < config.total_layers(); ++l) {
    LayerWeights& layer = weights.layers[l];
    const std::string prefix = "model.layers." + std::to_string(l) + ".", attn = prefix + "self_attn.";
    plan.at_layer(l);
    if (l >= config.num_layers) plan_mtp(config, plan, prefix, weights.draft);
    plan_layer_norms(config, plan, prefix, layer.attention);

    AttentionWeights& w = layer.attention;
    constexpr WeightRole kRole = WeightRole::attention;
    if (a.q_lora_rank != 0) {
      plan.matrix(w.q_a, kRole, attn + "q_a_proj.weight", a.q_lora_rank, hidden);
      plan.vector(w.q_a_norm, kRole, attn + "q_a_layernorm.weight", a.q_lora_rank);
      plan.matrix(w.q_b, kRole, attn + "q_b_proj.weight", heads * query_dim, a.q_lora_rank);
    } else {
      plan.matrix(w.q_b, kRole, attn + "q_proj.weight", heads * query_dim, hidden);
    }
    plan.matrix(w.kv_a, kRole, attn + "kv_a_proj_with_mqa.weight", a.kv_lora_rank + a.qk_rope_head_dim,
                hidden);
    plan.vector(w.kv_a_norm, kRole, attn + "kv_a_layernorm.weight", a.kv_lora_rank);
    // kv_b_proj holds, head after head, the rows that make the key's nope part and those that make the value.
    // Absorbed attention multiplies the query by the first (transposed) and the summed latents by the second;
    // expanded attention multiplies latents by both.
    const size_t kv_b =
        plan.claim(attn + "kv_b_proj.weight", {heads * head_rows, a.kv_lora_rank}, kRole, true);
    w.key_absorb.resize(heads);
    w.key_expand.resize(heads);
    w.value_absorb.resize(heads);
    for (uint32_t head = 0; head < heads; ++head) {
      const uint64_t first = uint64_t{head} * head_rows;
      plan.pack_transposed(w.key_absorb[head], kRole, {kv_b, first, a.qk_nope_head_dim}, a.kv_lora_rank);
      plan.pack(w.key_expand[head], kRole, PackArrangement::plain, {{kv_b, first, a.qk_nope_head_dim}},
                a.kv_lora_rank);
      plan.pack(w.value_absorb[head], kRole, PackArrangement::plain,
                {{kv_b, first + a.qk_nope_head_dim, a.v_head_dim}}, a.kv_lora_rank);
    }
    plan.matrix(w.output, kRole, attn + "o_proj.weight", hidden, heads * a.v_head_dim);

    const std::string mlp = prefix + "mlp.";
    if (!config.is_moe(l)) {
      plan_gated_mlp(plan, layer.dense, WeightRole::dense, mlp, config.dense_intermediate_size, hidden);
      continue;
    }
    plan_deepseek_experts(config, plan, mlp, layer.moe);
  }
}

}  // namespace tandem
