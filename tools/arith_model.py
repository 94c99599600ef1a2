"""DeepSeek-V3 in plain torch: the training model of `train_demo.py`, small and fast on a CPU.

The maths is that of `DeepseekV3ForCausalLM` (multi-head latent attention with interleaved rotary embedding, sigmoid router
with a selection bias and groups, one shared expert, dense first layers). Parameter names are those of the Hugging Face
checkpoint except that the routed experts of a layer are stacked; `to_checkpoint` unstacks them.
"""

import torch
import torch.nn.functional as F
from torch import nn

CONFIG = {
    "architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3",
    "vocab_size": 512, "hidden_size": 128, "intermediate_size": 256, "moe_intermediate_size": 64,
    "num_hidden_layers": 5, "num_attention_heads": 4, "num_key_value_heads": 4,
    "q_lora_rank": 64, "kv_lora_rank": 64, "qk_nope_head_dim": 32, "qk_rope_head_dim": 16, "v_head_dim": 32,
    "n_routed_experts": 16, "n_shared_experts": 1, "num_experts_per_tok": 4, "n_group": 4, "topk_group": 2,
    "first_k_dense_replace": 1, "moe_layer_freq": 1, "scoring_func": "sigmoid", "topk_method": "noaux_tc",
    "norm_topk_prob": True, "routed_scaling_factor": 2.5, "hidden_act": "silu", "attention_bias": False,
    "attention_dropout": 0.0, "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "rope_scaling": None,
    "max_position_embeddings": 2048, "num_nextn_predict_layers": 0, "tie_word_embeddings": False, "initializer_range": 0.02,
    "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2, "use_cache": True, "torch_dtype": "bfloat16",
}


class RmsNorm(nn.Module):
    def __init__(self, size, eps):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(size)), eps

    def forward(self, x):
        return F.rms_norm(x, (x.shape[-1],), self.weight, self.eps)


def linear(inputs, outputs):
    return nn.Linear(inputs, outputs, bias=False)


def rotate_pairs(x, cos, sin):
    """x [..., tokens, rope_dim] turned by angles [tokens, rope_dim/2]; pairs are neighbours (2i, 2i+1)."""
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.stack((even * cos - odd * sin, even * sin + odd * cos), -1).flatten(-2)


class Attention(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.heads, self.nope, self.rope, self.v = (c["num_attention_heads"], c["qk_nope_head_dim"], c["qk_rope_head_dim"],
                                                    c["v_head_dim"])
        hidden, eps, self.lora = c["hidden_size"], c["rms_norm_eps"], c["kv_lora_rank"]
        self.q_a_proj = linear(hidden, c["q_lora_rank"])
        self.q_a_layernorm = RmsNorm(c["q_lora_rank"], eps)
        self.q_b_proj = linear(c["q_lora_rank"], self.heads * (self.nope + self.rope))
        self.kv_a_proj_with_mqa = linear(hidden, self.lora + self.rope)
        self.kv_a_layernorm = RmsNorm(self.lora, eps)
        self.kv_b_proj = linear(self.lora, self.heads * (self.nope + self.v))
        self.o_proj = linear(self.heads * self.v, hidden)

    def forward(self, x, cos, sin):
        batch, tokens, _ = x.shape
        q = self.q_b_proj(self.q_a_layernorm(self.q_a_proj(x))).view(batch, tokens, self.heads, -1).transpose(1, 2)
        latent, k_rope = self.kv_a_proj_with_mqa(x).split([self.lora, self.rope], -1)
        kv = self.kv_b_proj(self.kv_a_layernorm(latent)).view(batch, tokens, self.heads, -1).transpose(1, 2)
        k_nope, v = kv.split([self.nope, self.v], -1)
        q_nope, q_rope = q.split([self.nope, self.rope], -1)
        q_rope, k_rope = rotate_pairs(q_rope, cos, sin), rotate_pairs(k_rope, cos, sin)
        q = torch.cat((q_nope, q_rope), -1)
        k = torch.cat((k_nope, k_rope.unsqueeze(1).expand(-1, self.heads, -1, -1)), -1)
        v = F.pad(v, (0, self.rope))  # the fused kernel wants one head size
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)[..., :self.v]
        return self.o_proj(mixed.transpose(1, 2).reshape(batch, tokens, -1))


class Mlp(nn.Module):
    def __init__(self, hidden, inner):
        super().__init__()
        self.gate_proj, self.up_proj, self.down_proj = linear(hidden, inner), linear(hidden, inner), linear(inner, hidden)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Moe(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c = c
        experts, hidden, inner = c["n_routed_experts"], c["hidden_size"], c["moe_intermediate_size"]
        self.gate = linear(hidden, experts)
        self.register_buffer("bias", torch.zeros(experts))
        self.gate_up = nn.Parameter(torch.empty(2 * experts, inner, hidden))  # gate, up of expert 0, gate, up of expert 1 ...
        self.down = nn.Parameter(torch.empty(experts, hidden, inner))
        self.shared_experts = Mlp(hidden, inner * c["n_shared_experts"])
        self.load = None  # rows of each expert in the last forward pass

    def route(self, x):
        """x [tokens, hidden] → expert ids and weights, both [tokens, top_k]; also the raw scores [tokens, experts]."""
        scores = self.gate(x).sigmoid()
        biased = (scores + self.bias).detach().view(len(x), self.c["n_group"], -1)
        best = biased.topk(2, -1).values.sum(-1).topk(self.c["topk_group"], -1).indices
        dropped = torch.ones(len(x), self.c["n_group"], dtype=torch.bool).scatter_(1, best, False)
        ids = biased.masked_fill(dropped.unsqueeze(-1), float("-inf")).flatten(1).topk(self.c["num_experts_per_tok"], -1).indices
        weights = scores.gather(1, ids)
        return ids, weights / (weights.sum(-1, keepdim=True) + 1e-20) * self.c["routed_scaling_factor"], scores

    def forward(self, x):
        ids, weights, self.scores = self.route(x)
        order = ids.flatten().argsort(stable=True)
        self.load = torch.bincount(ids.flatten(), minlength=len(self.bias))
        token = order // ids.shape[1]
        counts = self.load.tolist()
        rows, scale = x.index_select(0, token).split(counts), weights.flatten()[order].unsqueeze(-1).split(counts)
        results = []
        both = self.gate_up.view(len(self.bias), -1, x.shape[1])
        for part, weight, gate_up, down in zip(rows, scale, both.unbind(), self.down.unbind()):
            gate, up = (part @ gate_up.T).chunk(2, -1)
            results.append((F.silu(gate) * up * weight) @ down.T)
        return self.shared_experts(x).index_add(0, token, torch.cat(results))


class Layer(nn.Module):
    def __init__(self, c, index):
        super().__init__()
        hidden, eps = c["hidden_size"], c["rms_norm_eps"]
        self.input_layernorm, self.post_attention_layernorm = RmsNorm(hidden, eps), RmsNorm(hidden, eps)
        self.self_attn = Attention(c)
        self.mlp = Mlp(hidden, c["intermediate_size"]) if index < c["first_k_dense_replace"] else Moe(c)

    def forward(self, x, cos, sin):
        x = x + self.self_attn(self.input_layernorm(x), cos, sin)
        return x + self.mlp(self.post_attention_layernorm(x).flatten(0, 1)).view_as(x)


class Model(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c = c
        self.embed_tokens = nn.Embedding(c["vocab_size"], c["hidden_size"])
        self.layers = nn.ModuleList(Layer(c, i) for i in range(c["num_hidden_layers"]))
        self.norm = RmsNorm(c["hidden_size"], c["rms_norm_eps"])
        self.lm_head = linear(c["hidden_size"], c["vocab_size"])
        for name, parameter in self.named_parameters():
            if parameter.dim() > 1:  # variance-preserving; residual outputs smaller so that depth does not blow up
                deep = (2 * c["num_hidden_layers"]) ** -0.5 if name.endswith(("o_proj.weight", "down_proj.weight", "down")) else 1.0
                nn.init.normal_(parameter, std=0.5 if "embed" in name else deep * parameter.shape[-1] ** -0.5)

    def moe_layers(self):
        return [layer.mlp for layer in self.layers if isinstance(layer.mlp, Moe)]

    def hidden(self, ids):
        """ids [batch, tokens], padded at the end → hidden states after the last norm [batch, tokens, hidden]."""
        tokens, rope = ids.shape[1], self.c["qk_rope_head_dim"]
        angles = torch.arange(tokens).float().outer(self.c["rope_theta"] ** (-torch.arange(0, rope, 2).float() / rope))
        x = self.embed_tokens(ids)
        for layer in self.layers:
            x = layer(x, angles.cos(), angles.sin())
        return self.norm(x)

    def forward(self, ids):
        return self.lm_head(self.hidden(ids))

    @torch.no_grad()
    def update_bias(self, speed):
        """Auxiliary-loss-free balance: raise the bias of underused experts, lower that of overused ones."""
        for moe in self.moe_layers():
            moe.bias += speed * torch.sign(moe.load.float().mean() - moe.load)

    @torch.no_grad()
    def round_to_bf16(self):
        for parameter in self.parameters():
            parameter.copy_(parameter.bfloat16())


def to_checkpoint(model):
    """Upstream tensor names; bf16 except the selection bias, which is float32 as upstream.

    A constant added to all biases of a layer changes no choice, so they are shifted to start at 0: then every biased score
    is positive, and implementations that mask losing groups with 0 instead of minus infinity agree.
    """
    tensors = {}
    for name, value in model.state_dict().items():
        name = name if name.startswith("lm_head") else "model." + name
        stem, _, last = name.rpartition(".")
        if last == "bias":
            tensors[f"{stem}.gate.e_score_correction_bias"] = (value - value.min()).float().contiguous()
        elif last == "gate_up":
            for row, matrix in enumerate(value.bfloat16()):
                tensors[f"{stem}.experts.{row // 2}.{('gate', 'up')[row % 2]}_proj.weight"] = matrix.contiguous().clone()
        elif last == "down":
            for expert, down in enumerate(value.bfloat16()):
                tensors[f"{stem}.experts.{expert}.down_proj.weight"] = down.contiguous().clone()
        else:
            tensors[name] = value.bfloat16().contiguous()
    return tensors
