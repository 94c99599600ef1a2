"""The three models of the comparison, as config.json has them, and the tensors that each consists of.

M1  GraniteMoE-1b-a400m, whole: 24 layers, 32 experts of 512, 8 a token
M2  DeepSeek-V2-Lite cut to 6 layers: 64 experts of 1408, 6 a token, 2 shared ones, MLA
M3  Qwen3-30B-A3B cut to 4 layers: 128 experts of 768, 8 a token

The vocabularies of M2 and M3 are cut to 32,000: with few layers the whole head would be most of what a token reads."""

_SHARED = dict(hidden_act="silu", max_position_embeddings=4096, rms_norm_eps=1e-6, rope_scaling=None,
               attention_bias=False, attention_dropout=0.0, initializer_range=0.02, use_cache=True,
               torch_dtype="bfloat16", bos_token_id=0, eos_token_id=0, pad_token_id=0)

MODELS = {
    "M1": dict(_SHARED, architectures=["GraniteMoeForCausalLM"], model_type="granitemoe", vocab_size=49155,
               hidden_size=1024, intermediate_size=512, num_hidden_layers=24, num_attention_heads=16,
               num_key_value_heads=8, num_local_experts=32, num_experts_per_tok=8, rope_theta=10000.0,
               attention_multiplier=0.015625, embedding_multiplier=12.0, logits_scaling=6.0,
               residual_multiplier=0.22, tie_word_embeddings=True, output_router_logits=False,
               router_aux_loss_coef=0.0),
    "M2": dict(_SHARED, architectures=["DeepseekV2ForCausalLM"], model_type="deepseek_v2", vocab_size=32000,
               hidden_size=2048, intermediate_size=10944, moe_intermediate_size=1408, num_hidden_layers=6,
               num_attention_heads=16, num_key_value_heads=16, n_shared_experts=2, n_routed_experts=64,
               num_experts_per_tok=6, first_k_dense_replace=1, moe_layer_freq=1, n_group=1, topk_group=1,
               topk_method="greedy", norm_topk_prob=False, routed_scaling_factor=1.0, scoring_func="softmax",
               seq_aux=True, aux_loss_alpha=0.001, kv_lora_rank=512, q_lora_rank=None, qk_nope_head_dim=128,
               qk_rope_head_dim=64, v_head_dim=128, rope_theta=10000.0, tie_word_embeddings=False, pretraining_tp=1),
    "M3": dict(_SHARED, architectures=["Qwen3MoeForCausalLM"], model_type="qwen3_moe", vocab_size=32000,
               hidden_size=2048, intermediate_size=6144, moe_intermediate_size=768, num_hidden_layers=4,
               num_attention_heads=32, num_key_value_heads=4, head_dim=128, num_experts=128,
               num_experts_per_tok=8, norm_topk_prob=True, decoder_sparse_step=1, mlp_only_layers=[],
               rope_theta=1000000.0, tie_word_embeddings=False, sliding_window=None, use_sliding_window=False,
               max_window_layers=4, output_router_logits=False, router_aux_loss_coef=0.001),
}


def _mlp(prefix, hidden, inter):
    return {prefix + "gate_proj.weight": (inter, hidden), prefix + "up_proj.weight": (inter, hidden),
            prefix + "down_proj.weight": (hidden, inter)}


def _attention(config):
    hidden, heads, kv_heads = config["hidden_size"], config["num_attention_heads"], config["num_key_value_heads"]
    if config["model_type"] == "deepseek_v2":
        rank, rope = config["kv_lora_rank"], config["qk_rope_head_dim"]
        nope, value = config["qk_nope_head_dim"], config["v_head_dim"]
        return {"q_proj.weight": (heads * (nope + rope), hidden), "kv_a_proj_with_mqa.weight": (rank + rope, hidden),
                "kv_a_layernorm.weight": (rank,), "kv_b_proj.weight": (heads * (nope + value), rank),
                "o_proj.weight": (hidden, heads * value)}
    width = config.get("head_dim") or hidden // heads
    tensors = {"q_proj.weight": (heads * width, hidden), "k_proj.weight": (kv_heads * width, hidden),
               "v_proj.weight": (kv_heads * width, hidden), "o_proj.weight": (hidden, heads * width)}
    if config["model_type"] == "qwen3_moe":
        tensors |= {"q_norm.weight": (width,), "k_norm.weight": (width,)}
    return tensors


def _feed_forward(config, layer):
    hidden = config["hidden_size"]
    if config["model_type"] == "granitemoe":
        experts, inter = config["num_local_experts"], config["intermediate_size"]
        return {"block_sparse_moe.input_linear.weight": (experts, 2 * inter, hidden),
                "block_sparse_moe.output_linear.weight": (experts, hidden, inter),
                "block_sparse_moe.router.layer.weight": (experts, hidden)}
    if layer < config.get("first_k_dense_replace", 0):
        return _mlp("mlp.", hidden, config["intermediate_size"])
    experts = config.get("n_routed_experts") or config["num_experts"]
    inter = config["moe_intermediate_size"]
    tensors = {"mlp.gate.weight": (experts, hidden)}
    for expert in range(experts):
        tensors |= _mlp(f"mlp.experts.{expert}.", hidden, inter)
    if config.get("n_shared_experts"):
        tensors |= _mlp("mlp.shared_experts.", hidden, config["n_shared_experts"] * inter)
    return tensors


def files(config):
    """One dict of tensor name -> shape for each layer, and a last one for what belongs to none. Shapes of one number are norms."""
    hidden, vocab = config["hidden_size"], config["vocab_size"]
    for layer in range(config["num_hidden_layers"]):
        tensors = {"input_layernorm.weight": (hidden,), "post_attention_layernorm.weight": (hidden,)}
        tensors |= {"self_attn." + name: shape for name, shape in _attention(config).items()}
        tensors |= _feed_forward(config, layer)
        yield {f"model.layers.{layer}.{name}": shape for name, shape in tensors.items()}
    last = {"model.embed_tokens.weight": (vocab, hidden), "model.norm.weight": (hidden,)}
    yield last if config["tie_word_embeddings"] else last | {"lm_head.weight": (vocab, hidden)}
