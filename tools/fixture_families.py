"""Tiny configs of the supported model families, one parity fixture each, written as upstream repositories write them.

Every family is made to tell right from wrong: sizes that differ where they could be mixed up, optional behaviour turned on
in at least one place, YaRN with an original length below the longest prompt.
"""

YARN_V2 = {"type": "yarn", "factor": 40, "original_max_position_embeddings": 32, "beta_fast": 32, "beta_slow": 1,
           "mscale": 0.707, "mscale_all_dim": 0.707}
# V3's real config has equal values; unequal ones show which of the two goes where.
YARN_V3 = {"type": "yarn", "factor": 40, "original_max_position_embeddings": 32, "beta_fast": 32, "beta_slow": 1,
           "mscale": 1.0, "mscale_all_dim": 0.707}
YARN_KIMI = {"type": "yarn", "factor": 32.0, "original_max_position_embeddings": 40, "beta_fast": 1.0, "beta_slow": 1.0,
             "mscale": 1.0, "mscale_all_dim": 1.0}

COMMON = {"vocab_size": 96, "hidden_act": "silu", "bos_token_id": 0, "eos_token_id": 1, "attention_bias": False,
          "attention_dropout": 0.0, "initializer_range": 0.02, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
          "use_cache": True}
DEEPSEEK = {**COMMON, "hidden_size": 48, "intermediate_size": 64, "moe_intermediate_size": 16, "num_hidden_layers": 3,
            "num_attention_heads": 4, "num_key_value_heads": 4, "kv_lora_rank": 32, "qk_nope_head_dim": 16,
            "qk_rope_head_dim": 16, "v_head_dim": 24, "n_routed_experts": 16, "num_experts_per_tok": 4, "n_shared_experts": 1,
            "first_k_dense_replace": 1, "moe_layer_freq": 1, "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
            "max_position_embeddings": 1280}
DEEPSEEK_V2 = {**DEEPSEEK, "architectures": ["DeepseekV2ForCausalLM"], "model_type": "deepseek_v2", "n_shared_experts": 2,
               "scoring_func": "softmax", "norm_topk_prob": False, "rope_scaling": YARN_V2, "aux_loss_alpha": 0.001,
               "seq_aux": True}
DEEPSEEK_V3 = {**DEEPSEEK, "architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3", "scoring_func": "sigmoid",
               "topk_method": "noaux_tc", "norm_topk_prob": True, "num_nextn_predict_layers": 0}
QWEN3 = {**COMMON, "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "rms_norm_eps": 1e-6,
         "rope_theta": 1000000.0, "rope_scaling": None, "max_position_embeddings": 4096, "max_window_layers": 3,
         "sliding_window": None, "use_sliding_window": False, "output_router_logits": False, "router_aux_loss_coef": 0.001}
# Released configs write a ratio for each layer and each draft stage; layers with a ratio use compress_rope_theta and YaRN, the
# others rope_theta alone.
DEEPSEEK_V4 = {**COMMON, "architectures": ["DeepseekV4ForCausalLM"], "model_type": "deepseek_v4", "vocab_size": 64,
               "hidden_size": 20, "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 32, "qk_rope_head_dim": 16,
               "q_lora_rank": 16, "o_lora_rank": 12, "index_head_dim": 24, "n_shared_experts": 1,
               "num_experts_per_tok": 3, "hc_mult": 4, "hc_sinkhorn_iters": 20, "hc_eps": 1e-6, "rms_norm_eps": 1e-6,
               "rope_theta": 10000.0, "compress_rope_theta": 160000.0, "scoring_func": "sqrtsoftplus",
               "topk_method": "noaux_tc", "norm_topk_prob": True, "num_nextn_predict_layers": 1, "swiglu_limit": 10.0,
               "max_position_embeddings": 2048}
YARN_V4 = {"type": "yarn", "factor": 16, "original_max_position_embeddings": 64, "beta_fast": 32, "beta_slow": 1}

GPT_OSS = {**COMMON, "architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss", "attention_bias": True, "head_dim": 16,
           "rms_norm_eps": 1e-5, "rope_theta": 150000.0, "sliding_window": 24, "initial_context_length": 32,
           "max_position_embeddings": 1024, "output_router_logits": False, "router_aux_loss_coef": 0.9,
           "rope_scaling": {"beta_fast": 32.0, "beta_slow": 1.0, "factor": 32.0, "original_max_position_embeddings": 32,
                            "rope_type": "yarn", "truncate": False}}

# name → (class prefix in transformers, config.json)
FAMILIES = {
    "deepseek_v2": ("DeepseekV2", {
        **DEEPSEEK_V2, "q_lora_rank": 24, "topk_method": "group_limited_greedy", "n_group": 4, "topk_group": 2,
        "num_experts_per_tok": 3, "routed_scaling_factor": 4.0}),
    "deepseek_v2_lite": ("DeepseekV2", {
        **DEEPSEEK_V2, "q_lora_rank": None, "topk_method": "greedy", "n_group": 1, "topk_group": 1, "n_routed_experts": 8,
        "moe_intermediate_size": 24, "num_experts_per_tok": 3, "routed_scaling_factor": 1.0}),
    "deepseek_v3": ("DeepseekV3", {
        **DEEPSEEK_V3, "q_lora_rank": 24, "n_group": 4, "topk_group": 2, "routed_scaling_factor": 2.5,
        "rope_scaling": YARN_V3}),
    "moonlight": ("DeepseekV3", {
        **DEEPSEEK_V3, "q_lora_rank": None, "n_group": 1, "topk_group": 1, "n_routed_experts": 8, "num_experts_per_tok": 3,
        "moe_intermediate_size": 24, "n_shared_experts": 2, "v_head_dim": 16, "routed_scaling_factor": 2.446,
        "rms_norm_eps": 1e-3, "rope_theta": 50000.0, "rope_scaling": None, "max_position_embeddings": 8192}),
    "kimi_k2": ("DeepseekV3", {
        **DEEPSEEK_V3, "model_type": "kimi_k2", "q_lora_rank": 40, "n_group": 1, "topk_group": 1,
        "num_experts_per_tok": 4, "v_head_dim": 16, "routed_scaling_factor": 2.827, "rope_theta": 50000.0,
        "rope_scaling": YARN_KIMI}),
    "qwen3_moe": ("Qwen3Moe", {
        **QWEN3, "hidden_size": 64, "intermediate_size": 96, "moe_intermediate_size": 32, "num_hidden_layers": 3,
        "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 16, "num_experts": 8, "num_experts_per_tok": 3,
        "norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": [1]}),
    "qwen3_moe_sparse_step": ("Qwen3Moe", {  # sizes that no tile divides
        **QWEN3, "hidden_size": 72, "intermediate_size": 88, "moe_intermediate_size": 40, "num_hidden_layers": 4,
        "num_attention_heads": 3, "num_key_value_heads": 1, "head_dim": 24, "num_experts": 6, "num_experts_per_tok": 2,
        "norm_topk_prob": False, "decoder_sparse_step": 2, "mlp_only_layers": []}),
    "mixtral": ("Mixtral", {
        **COMMON, "architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "hidden_size": 48, "intermediate_size": 32,
        "num_hidden_layers": 3, "num_attention_heads": 6, "num_key_value_heads": 2, "num_local_experts": 8,
        "num_experts_per_tok": 2, "rms_norm_eps": 1e-3, "rope_theta": 1000000.0, "sliding_window": None,
        "max_position_embeddings": 32768, "output_router_logits": False, "router_aux_loss_coef": 0.02}),
    "granitemoe": ("GraniteMoe", {
        **COMMON, "architectures": ["GraniteMoeForCausalLM"], "model_type": "granitemoe", "hidden_size": 64,
        "intermediate_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2,
        "num_local_experts": 8, "num_experts_per_tok": 3, "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "rope_scaling": None,
        "max_position_embeddings": 4096, "tie_word_embeddings": True, "embedding_multiplier": 3.0,
        "attention_multiplier": 0.0625, "residual_multiplier": 0.7, "logits_scaling": 1.5, "output_router_logits": False,
        "router_aux_loss_coef": 0.0}),
    # One norm over all heads, values that are clipped, and every projection of attention with a bias.
    "olmoe": ("Olmoe", {
        **COMMON, "architectures": ["OlmoeForCausalLM"], "model_type": "olmoe", "hidden_size": 64, "intermediate_size": 24,
        "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2, "num_experts": 6, "num_experts_per_tok": 3,
        "norm_topk_prob": False, "rms_norm_eps": 1e-3, "rope_theta": 10000.0, "rope_scaling": None,
        "max_position_embeddings": 4096, "attention_bias": True, "clip_qkv": 1.25, "output_router_logits": False,
        "router_aux_loss_coef": 0.01}),
    # A dense layer by mlp_only_layers and one by decoder_sparse_step; sizes that no tile divides.
    "qwen2_moe": ("Qwen2Moe", {
        **COMMON, "architectures": ["Qwen2MoeForCausalLM"], "model_type": "qwen2_moe", "hidden_size": 60, "intermediate_size": 72,
        "moe_intermediate_size": 20, "shared_expert_intermediate_size": 44, "num_hidden_layers": 4, "num_attention_heads": 6,
        "num_key_value_heads": 2, "num_experts": 6, "num_experts_per_tok": 2, "norm_topk_prob": False, "decoder_sparse_step": 2,
        "mlp_only_layers": [], "qkv_bias": True, "rms_norm_eps": 1e-6, "rope_theta": 1000000.0, "rope_scaling": None,
        "max_position_embeddings": 4096, "max_window_layers": 2, "sliding_window": 16, "use_sliding_window": False,
        "output_router_logits": False, "router_aux_loss_coef": 0.001}),
    # Half of a head rotates; biases and head norms both, which released models have one or both of.
    "glm4_moe": ("Glm4Moe", {
        **COMMON, "architectures": ["Glm4MoeForCausalLM"], "model_type": "glm4_moe", "hidden_size": 48, "intermediate_size": 64,
        "moe_intermediate_size": 16, "num_hidden_layers": 3, "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 16,
        "partial_rotary_factor": 0.5, "attention_bias": True, "use_qk_norm": True, "n_routed_experts": 8,
        "num_experts_per_tok": 2, "n_shared_experts": 2, "n_group": 4, "topk_group": 2, "first_k_dense_replace": 1,
        "norm_topk_prob": True, "routed_scaling_factor": 2.5, "rms_norm_eps": 1e-3, "rope_theta": 1000000.0,
        "rope_scaling": None, "max_position_embeddings": 4096, "num_nextn_predict_layers": 0}),
    # GLM-4.7-Flash: DeepSeek-V3's layers with values wider than keys. transformers 5 has a class of its own for it, of equal maths.
    "glm4_moe_lite": ("DeepseekV3", {
        **COMMON, "architectures": ["Glm4MoeLiteForCausalLM"], "model_type": "glm4_moe_lite", "hidden_size": 48,
        "intermediate_size": 64, "moe_intermediate_size": 20, "num_hidden_layers": 3, "num_attention_heads": 4,
        "num_key_value_heads": 4, "q_lora_rank": 24, "kv_lora_rank": 32, "qk_nope_head_dim": 12, "qk_rope_head_dim": 8,
        "v_head_dim": 24, "n_routed_experts": 8, "num_experts_per_tok": 3, "n_shared_experts": 1, "n_group": 1, "topk_group": 1,
        "topk_method": "noaux_tc", "norm_topk_prob": True, "first_k_dense_replace": 1, "routed_scaling_factor": 1.8,
        "rms_norm_eps": 1e-5, "rope_theta": 1000000.0, "rope_scaling": None, "max_position_embeddings": 4096,
        "num_nextn_predict_layers": 0}),
    # Experts as transformers saves them once it has dequantised them: bf16, [in, out], gate and up in columns that alternate. Sizes
    # that no tile and no block divides, heads of queries that hold less than the hidden size.
    "gpt_oss_bf16": ("GptOss", {
        **GPT_OSS, "hidden_size": 44, "intermediate_size": 28, "num_hidden_layers": 3, "num_attention_heads": 4,
        "num_key_value_heads": 2, "num_local_experts": 5, "num_experts_per_tok": 2, "experts_per_token": 2, "swiglu_limit": 7.0,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]}),
    # Windows of 24 by turns with all keys, more query heads than the hidden size holds, a limit that is felt, gaps in the YaRN
    # bounds that rounding would close, experts in mxfp4 blocks.
    "gpt_oss": ("GptOss", {
        **GPT_OSS, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4, "num_attention_heads": 12,
        "num_key_value_heads": 3, "num_local_experts": 6, "num_experts_per_tok": 3, "experts_per_token": 3, "swiglu_limit": 7.0,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
        "quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": [
            "model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]}}),
    # All kinds of layers; an indexer that leaves entries out from position 68 on.
    "deepseek_v4": ("DeepseekV4", {
        **DEEPSEEK_V4, "num_hidden_layers": 4, "compress_ratios": [0, 4, 128, 4, 0], "num_hash_layers": 2, "o_groups": 2,
        "index_n_heads": 8, "index_head_dim": 32, "index_topk": 16, "sliding_window": 24, "n_routed_experts": 6, "moe_intermediate_size": 8,
        "routed_scaling_factor": 1.5, "rope_scaling": YARN_V4}),
    # As the larger release begins: HCA first; every entry is seen, sizes that no tile divides, a clamp that is felt.
    "deepseek_v4_pro": ("DeepseekV4", {
        **DEEPSEEK_V4, "num_hidden_layers": 3, "compress_ratios": [128, 128, 4, 0], "num_hash_layers": 1, "o_groups": 3,
        "hidden_size": 28, "num_attention_heads": 6, "head_dim": 24, "q_lora_rank": 20, "index_n_heads": 3,
        "index_topk": 512, "sliding_window": 40, "n_routed_experts": 6, "num_experts_per_tok": 2,
        "moe_intermediate_size": 12, "routed_scaling_factor": 2.5, "swiglu_limit": 1.0, "rms_norm_eps": 1e-4,
        "rope_scaling": YARN_V4}),
}

SHARDED = {"deepseek_v2": 3, "mixtral": 2}     # family → number of safetensors files; the others have one
# Lengths of the prompts and steps of the greedy continuations; the others have PROMPT_LENGTHS and GREEDY_STEPS. Past the window,
# past index_topk entries of 4 tokens, and past entries of 128, in the prompt and while decoding.
PROMPTS = {"deepseek_v4": ((1, 9, 100, 200), 64), "deepseek_v4_pro": ((1, 127, 210), 64)}
TRANSFORMERS_NAMES = {"deepseek_v4_pro"}       # saved as transformers does it; released names elsewhere
BF16_BIAS = {"moonlight"}                      # selection bias stored as bf16; float32 elsewhere


def dense_layers(config):
    """Layer numbers without experts, worked out from the config as upstream does."""
    layers = range(config["num_hidden_layers"])
    if config["model_type"] == "deepseek_v4":
        return []
    if "first_k_dense_replace" in config:
        return [i for i in layers if i < config["first_k_dense_replace"]]
    step, only = config.get("decoder_sparse_step", 1), config.get("mlp_only_layers", [])
    return [i for i in layers if i in only or (i + 1) % step != 0]
