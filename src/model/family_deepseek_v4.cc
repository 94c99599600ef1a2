// DeepSeek-V4: V4-Flash, V4-Pro, their Base and DSpark releases, and the repacks of both to FP8
// ("deepseek_ref", which leaves out keys that have one value in every release) and NVFP4.
#include "model/family_deepseek_v4.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "model/families.h"
#include "model/rope_config.h"

namespace tandem {
namespace {

// The number of stages in every DSpark release; stands in where no key gives it.
constexpr uint32_t kDsparkStages = 3;
// Ten times what any released model has.
constexpr uint32_t kMostStages = 64, kMostIterations = 1000;

void refuse(ConfigReader& reader, const std::string& key, const std::string& what) {
  reader.fail(ErrorCode::invalid_argument, key, what);
}

void refuse_other(ConfigReader& reader, const std::string& key, const std::string& only) {
  if (reader.text_or(key, only) != only) {
    reader.fail(ErrorCode::unsupported, key,
                fmt::format("is {}; deepseek_v4 has {}", reader.written(key), only));
  }
}

void parse_draft(ConfigReader& reader, ModelConfig& config, size_t num_ratios) {
  DraftConfig& draft = config.draft;
  const uint32_t after_layers =
      num_ratios > config.num_layers ? static_cast<uint32_t>(num_ratios) - config.num_layers : 0;
  // DSpark releases still say num_nextn_predict_layers 1: their own keys tell them apart.
  const auto names = reader.keys();
  const auto key =
      std::ranges::find_if(names, [](const std::string& name) { return name.starts_with("dspark_"); });
  if (key == names.end()) {
    draft.num_stages = reader.u32_or("num_nextn_predict_layers", 0, 0, kMostStages);
    draft.kind = draft.num_stages == 0 ? DraftKind::none : DraftKind::mtp;
  } else {
    draft.kind = DraftKind::dspark;
    draft.num_stages =
        reader.u32_or("n_mtp_layers", after_layers != 0 ? after_layers : kDsparkStages, 1, kMostStages);
    draft.block_size = reader.u32("dspark_block_size", 1, 1024);
    draft.noise_token_id =
        static_cast<int32_t>(reader.u32("dspark_noise_token_id", 0, config.vocab_size - 1));
    draft.markov_rank = reader.u32("dspark_markov_rank", 1);
    draft.target_layers = reader.u32_list("dspark_target_layer_ids");
    if (draft.target_layers.empty()) {
      refuse(reader, "dspark_target_layer_ids", fmt::format("is missing, and {} is given", *key));
    }
    for (const uint32_t layer : draft.target_layers) {
      if (layer >= config.num_layers) {
        refuse(reader, "dspark_target_layer_ids",
               fmt::format("names layer {}; the model has {}", layer, config.num_layers));
      }
    }
    check_width(reader, "dspark_target_layer_ids", uint64_t{config.hidden_size} * draft.target_layers.size());
  }
  config.num_mtp_layers = draft.num_stages;
}

// `compress_ratios`, of the released files: one for each layer, then one for each stage of the drafter.
std::vector<uint32_t> parse_ratios(ConfigReader& reader, ModelConfig& config) {
  std::vector<uint32_t> ratios = reader.u32_list("compress_ratios");
  parse_draft(reader, config, ratios.size());
  const size_t wanted = size_t{config.num_layers} + config.draft.num_stages;
  if (ratios.size() != wanted) {
    refuse(reader, "compress_ratios",
           fmt::format("has {} entries; {} layers and {} draft stages need {}", ratios.size(),
                       config.num_layers, config.draft.num_stages, wanted));
    return ratios;
  }
  for (size_t i = 0; i < ratios.size(); ++i) {
    const uint32_t ratio = ratios[i];
    if (ratio != 0 && ratio != kSparseRatio && ratio != kHeavyRatio) {
      reader.fail(ErrorCode::unsupported, "compress_ratios",
                  fmt::format("has {} in entry {}; 0, {} and {} are implemented", ratio, i, kSparseRatio,
                              kHeavyRatio));
    } else if (i >= config.num_layers && ratio != 0) {
      reader.fail(
          ErrorCode::unsupported, "compress_ratios",
          fmt::format("has {} in entry {}, a draft stage; those attend to the window only (0)", ratio, i));
    }
  }
  ratios.resize(config.num_layers);
  return ratios;
}

// `layer_types`, as transformers saves the same.
std::vector<uint32_t> parse_layer_types(ConfigReader& reader, ModelConfig& config) {
  parse_draft(reader, config, 0);
  ConfigReader rates = reader.object("compress_rates");
  const auto rate = [&](const std::string& type, uint32_t only) {
    if (rates.u32_or(type, only) != only) {
      rates.fail(ErrorCode::unsupported, type,
                 fmt::format("is {}; {} is implemented", rates.written(type), only));
    }
  };
  const std::string sparse = "compressed_sparse_attention", heavy = "heavily_compressed_attention";
  rate(sparse, kSparseRatio);
  rate(heavy, kHeavyRatio);
  const std::vector<std::string> types = reader.texts("layer_types");
  std::vector<uint32_t> ratios;
  for (const std::string& type : types) {
    if (type != sparse && type != heavy && type != "sliding_attention") {
      reader.fail(ErrorCode::unsupported, "layer_types",
                  fmt::format("has '{}'; sliding_attention, {} and {} are implemented", type, sparse, heavy));
    }
    ratios.push_back(type == sparse ? kSparseRatio : type == heavy ? kHeavyRatio : 0);
  }
  if (ratios.size() != config.num_layers) {
    refuse(reader, "layer_types",
           fmt::format("has {} entries; num_hidden_layers is {}", ratios.size(), config.num_layers));
    ratios.resize(config.num_layers);
  }
  return ratios;
}

// Two rotations: layers without a compressor turn plainly; layers with one have a base of their own and YaRN,
// which stretches frequencies and changes nothing else (cos and sin keep the factor 1).
void parse_rotations(ConfigReader& reader, ModelConfig& config) {
  AttentionConfig& attention = config.attention;
  RopeDefaults defaults{.theta = 10000.0,
                        .dim = attention.qk_rope_head_dim,
                        .layout = RopeLayout::interleaved,
                        .max_position_embeddings = config.max_position_embeddings,
                        .partial = true};
  RopeConfig& plain = attention.rope;
  RopeConfig& compressed = config.compressed.rope;
  if (reader.has("rope_parameters")) {  // transformers 5: one object for each
    ConfigReader both = reader.object("rope_parameters");
    for (const char* key : {"main", "compress"}) {
      if (!both.has(key)) refuse(both, key, "is missing; one object each for main and compress would do");
    }
    ConfigReader main = both.object("main"), compress = both.object("compress");
    plain = parse_rope_object(main, defaults, true);
    defaults.theta = 160000.0;
    compressed = parse_rope_object(compress, defaults, true);
  } else {
    ConfigReader scaling = reader.object("rope_scaling");
    plain.theta = static_cast<float>(reader.positive_or("rope_theta", defaults.theta));
    plain.dim = defaults.dim;
    plain.layout = defaults.layout;
    defaults.theta = reader.positive_or("compress_rope_theta", 160000.0);
    compressed = parse_rope_object(scaling, defaults, !reader.has("rope_scaling"));
  }
  if (compressed.yarn && !compressed.yarn->attention_factor) compressed.yarn->attention_factor = 1.0f;
  for (const RopeConfig* rope : {&plain, &compressed}) {
    if (rope->theta <= 1) {
      refuse(reader, rope == &plain ? "rope_theta" : "compress_rope_theta",
             fmt::format("is {}; a number above 1 would do", rope->theta));
    }
  }
}

void parse_attention(ConfigReader& reader, ModelConfig& config) {
  AttentionConfig& attention = config.attention;
  CompressedAttentionConfig& compressed = config.compressed;
  attention.kind = AttentionKind::compressed;
  attention.num_kv_heads = reader.u32_or("num_key_value_heads", 1, 1, 1);
  attention.head_dim = reader.u32("head_dim", 2);
  attention.q_lora_rank = reader.u32("q_lora_rank", 1);
  attention.qk_rope_head_dim = reader.u32_or("qk_rope_head_dim", 64, 2, attention.head_dim);
  attention.softmax_scale = static_cast<float>(1 / std::sqrt(static_cast<double>(attention.head_dim)));
  check_width(reader, "head_dim", uint64_t{attention.num_heads} * attention.head_dim);

  compressed.window = reader.u32_or("sliding_window", 128, 1);
  compressed.num_output_groups = reader.u32("o_groups", 1, kMostHeads);
  compressed.output_lora_rank = reader.u32("o_lora_rank", 1);
  compressed.index_num_heads = reader.u32("index_n_heads", 1, kMostHeads);
  compressed.index_head_dim = reader.u32("index_head_dim", 2);
  compressed.index_top_k = reader.u32("index_topk", 1);
  if (reader.failed()) return;
  check_width(reader, "o_lora_rank", uint64_t{compressed.num_output_groups} * compressed.output_lora_rank);
  check_width(reader, "index_head_dim", uint64_t{compressed.index_num_heads} * compressed.index_head_dim);
  if (attention.num_heads % compressed.num_output_groups != 0) {
    refuse(reader, "o_groups",
           fmt::format("is {}; a divisor of num_attention_heads {} would do", compressed.num_output_groups,
                       attention.num_heads));
  }
  if (compressed.index_head_dim < attention.qk_rope_head_dim) {
    refuse(reader, "index_head_dim",
           fmt::format("is {}, of which qk_rope_head_dim {} are rotated", compressed.index_head_dim,
                       attention.qk_rope_head_dim));
  }
  parse_rotations(reader, config);
}

// `num_hash_layers`, or as transformers saves it: `mlp_layer_types`, "hash_moe" first.
uint32_t parse_hash_layers(ConfigReader& reader, const ModelConfig& config) {
  if (!reader.has("mlp_layer_types")) return std::min(reader.u32_or("num_hash_layers", 3), config.num_layers);
  const std::vector<std::string> types = reader.texts("mlp_layer_types");
  const auto first_scored = std::ranges::find_if(types, [](const std::string& t) { return t != "hash_moe"; });
  const bool fits = types.size() == config.num_layers &&
                    std::all_of(first_scored, types.end(), [](const std::string& t) { return t == "moe"; });
  if (!fits) {
    reader.fail(ErrorCode::unsupported, "mlp_layer_types",
                fmt::format("is {}; {} times 'hash_moe' or 'moe', hash_moe first, is implemented",
                            reader.written("mlp_layer_types"), config.num_layers));
  }
  return static_cast<uint32_t>(first_scored - types.begin());
}

void parse_moe(ConfigReader& reader, ModelConfig& config) {
  config.moe_intermediate_size = reader.u32("moe_intermediate_size", 1);
  const uint64_t shared = uint64_t{reader.u32_or("n_shared_experts", 1)} * config.moe_intermediate_size;
  check_width(reader, "n_shared_experts", shared);
  config.shared_intermediate_size = static_cast<uint32_t>(shared);
  config.num_hash_layers = parse_hash_layers(reader, config);
  config.swiglu_limit = static_cast<float>(reader.positive_or("swiglu_limit", 10.0));
  RouterConfig& router = config.router;
  router.num_experts = reader.u32("n_routed_experts", 1, kMostExperts);
  router.top_k = reader.u32_or("num_experts_per_tok", 6, 1);
  router.score = RouterScore::sqrt_softplus;
  router.has_bias = true;  // of layers that score; those that hash have none
  router.renormalize = reader.boolean_or("norm_topk_prob", true);
  router.scale_when_renormalized = true;
  router.scaling_factor = static_cast<float>(reader.positive_or("routed_scaling_factor", 1.5));
  refuse_other(reader, "scoring_func", "sqrtsoftplus");
  refuse_other(reader, "topk_method", "noaux_tc");
  check_router(reader, router, "n_routed_experts");
}

void parse_formats(ConfigReader& reader, ModelConfig& config) {
  QuantizationConfig& quantization = config.quantization;
  if (quantization.method.empty()) return;
  ConfigReader section = reader.object("quantization_config");
  if (section.text_or("scale_fmt", "ue8m0") == "ue8m0") quantization.scale_dtype = DType::f8_e8m0;
  const std::string key = "expert_dtype";
  const std::string dtype = reader.text_or(key, section.text_or(key, "fp8"));  // absent: the earliest files
  const std::string algorithm = section.text_or("moe_quant_algo", "");
  if (algorithm == "NVFP4") {
    quantization.experts = ExpertFormat::nvfp4;
  } else if (!algorithm.empty()) {
    section.fail(ErrorCode::unsupported, "moe_quant_algo", fmt::format("is '{}'; NVFP4 is known", algorithm));
  } else if (dtype == "fp4") {
    quantization.experts = ExpertFormat::mxfp4;
  } else if (dtype != "fp8") {
    reader.fail(ErrorCode::unsupported, key, fmt::format("is '{}'; fp4 and fp8 are implemented", dtype));
  }
}

}  // namespace

void parse_deepseek_v4(ConfigReader& reader, ModelConfig& config) {
  config.max_position_embeddings = reader.u32_or("max_position_embeddings", 1048576, 1);
  config.rms_norm_eps = static_cast<float>(reader.positive_or("rms_norm_eps", 1e-6));
  if (config.tie_word_embeddings) {
    reader.fail(ErrorCode::unsupported, "tie_word_embeddings", "is true; deepseek_v4 has a head of its own");
  }
  HyperConnectionConfig& streams = config.hyper_connections;
  streams.num_streams = reader.u32_or("hc_mult", 4, 1, kMostStreams);
  streams.sinkhorn_iterations = reader.u32_or("hc_sinkhorn_iters", 20, 1, kMostIterations);
  streams.epsilon = static_cast<float>(reader.positive_or("hc_eps", 1e-6));
  config.compressed.ratios = reader.has("compress_ratios") ? parse_ratios(reader, config)
                             : reader.has("layer_types")   ? parse_layer_types(reader, config)
                                                           : std::vector<uint32_t>();
  if (config.compressed.ratios.empty()) {
    refuse(reader, "compress_ratios", "is missing: a list with 0, 4 or 128 for each layer and draft stage");
  }
  parse_attention(reader, config);
  parse_moe(reader, config);
  parse_formats(reader, config);
}

void plan_deepseek_v4_ffn(const ModelConfig& config, LoadPlan& plan, const std::string& prefix, bool hashed,
                          MoeLayerWeights& weights) {
  const RouterConfig& router = config.router;
  const std::string ffn = prefix + "ffn.", gate = ffn + "gate.";
  const auto names = [](const std::string& module) {
    return LoadPlan::MlpNames{
        .gate = module + ".w1.weight", .up = module + ".w3.weight", .down = module + ".w2.weight"};
  };
  plan.matrix(weights.router, WeightRole::router, gate + "weight", router.num_experts, config.hidden_size);
  if (hashed) {
    plan.table(weights.hash_experts, WeightRole::router, gate + "tid2eid", config.vocab_size, router.top_k,
               router.num_experts);
  } else {
    plan.vector(weights.router_bias, WeightRole::router, gate + "bias", router.num_experts, DType::f32);
  }
  weights.experts.resize(router.num_experts);
  for (uint32_t e = 0; e < router.num_experts; ++e) {
    plan.at_expert(e);
    plan.mlp(weights.experts[e], WeightRole::experts, names(ffn + "experts." + std::to_string(e)),
             config.moe_intermediate_size, config.hidden_size);
  }
  plan.at_expert(kNoExpert);
  if (config.shared_intermediate_size != 0) {
    plan.mlp(weights.shared, WeightRole::shared_experts, names(ffn + "shared_experts"),
             config.shared_intermediate_size, config.hidden_size);
  }
}

void plan_deepseek_v4(const ModelConfig& config, LoadPlan& plan, ModelWeights& weights) {
  const std::vector<uint64_t> shape = {config.vocab_size, config.hidden_size};
  plan.at_layer(0);
  plan.embedding(weights, plan.claim("embed.weight", shape, WeightRole::embedding));
  plan.vector(weights.final_norm, WeightRole::norm, "norm.weight", config.hidden_size);
  plan.matrix(weights.head, WeightRole::head, "head.weight", config.vocab_size, config.hidden_size);
  plan_deepseek_v4_attention(config, plan, weights);
  for (uint32_t l = 0; l < config.num_layers; ++l) {
    plan.at_layer(l);
    plan_deepseek_v4_ffn(config, plan, "layers." + std::to_string(l) + ".", l < config.num_hash_layers,
                         weights.layers[l].moe);
  }
  for (uint32_t stage = 0; stage < config.num_draft_layers; ++stage) {
    const uint32_t layer = config.num_layers + stage;
    plan.at_layer(layer);
    plan_deepseek_v4_ffn(config, plan, "mtp." + std::to_string(stage) + ".", /*hashed=*/false,
                         weights.layers[layer].moe);
  }
}

}  // namespace tandem
