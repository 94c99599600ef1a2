#!/usr/bin/env python3
"""Makes tests/fixtures/deepseek_v3_mtp/ and glm4_moe_mtp/: a tiny DeepSeek-V3 and a tiny GLM-4.x MoE, each with a layer of
multi-token prediction (MTP).

The model's own layers are a parity fixture like the others (tools/make_fixtures.py). `transformers` has no MTP, so its logits
come from the plain formulas below, in float64, over the hidden rows of `transformers` (behind the final norm). The weights
are drawn so that model and drafter often agree: the layers add little to the embedding, and the drafter passes the
embedding on. Added to parity.safetensors: `prompt.p.draft_logits` F32 [T - 1, V]; row i is the drafter's at position i, which
knows the hidden row of token i and the id of token i + 1 and predicts token i + 2.

usage: make_mtp_fixture.py [deepseek_v3_mtp] [glm4_moe_mtp]
"""

import json
import math
import shutil
import sys
import tempfile
from pathlib import Path

import torch
import transformers
from safetensors.torch import load_file, save_file

import make_fixtures
from fixture_families import DEEPSEEK_V3, FAMILIES

CONFIG = {**DEEPSEEK_V3, "q_lora_rank": 24, "n_group": 4, "topk_group": 2, "routed_scaling_factor": 2.5, "rope_scaling": None,
          "num_nextn_predict_layers": 1}
GLM_CONFIG = {**FAMILIES["glm4_moe"][1], "num_hidden_layers": 2, "intermediate_size": 48, "num_nextn_predict_layers": 1}
SEED = 11
LAYER_GAIN = 0.06   # of what a layer adds to the residual stream: the larger, the more the model knows and the drafter does not
DRAFT_GAIN = 0.04  # of everything that the drafter does beside passing the embedding on


def draw(shape, generator, gain=1.0):
    return (torch.randn(shape, generator=generator) * gain * shape[-1] ** -0.5).bfloat16()


def uniform(shape, generator, low, high):
    return (torch.rand(shape, generator=generator) * (high - low) + low).bfloat16()


def draft_tensors(model, c, generator):
    """The MTP layer under upstream names, copies of embedding and head included."""
    hidden = c["hidden_size"]
    number = c["num_hidden_layers"]
    layer = f"model.layers.{number}."
    own = {key[len(f"model.layers.{number - 1}."):]: value for key, value in model.state_dict().items()
           if key.startswith(f"model.layers.{number - 1}.")}
    out = {}
    for key, like in own.items():
        shape = tuple(like.shape)
        if "correction_bias" in key:
            out[layer + key] = uniform(shape, generator, 0.05, 0.6).float()
        elif "norm" in key:
            out[layer + key] = uniform(shape, generator, 0.5, 1.5)
        else:
            strong = any(part in key for part in ("q_b_proj", "kv_b_proj", "gate.weight", "q_proj", "k_proj"))
            weak = any(part in key for part in ("o_proj", "down_proj"))
            out[layer + key] = draw(shape, generator, 2.0 if strong else DRAFT_GAIN if weak else 1.0)
    final = model.state_dict()["model.norm.weight"]
    out[layer + "enorm.weight"] = uniform((hidden,), generator, 0.8, 1.2)
    out[layer + "hnorm.weight"] = uniform((hidden,), generator, 0.5, 1.5)
    join = torch.cat((torch.eye(hidden), torch.zeros(hidden, hidden)), 1) + DRAFT_GAIN * draw((hidden, 2 * hidden), generator).float()
    out[layer + "eh_proj.weight"] = join.bfloat16()
    out[layer + "shared_head.norm.weight"] = (final * uniform((hidden,), generator, 0.9, 1.1)).bfloat16()
    out[layer + "embed_tokens.weight"] = model.state_dict()["model.embed_tokens.weight"].bfloat16().clone()
    out[layer + "shared_head.head.weight"] = model.state_dict()["lm_head.weight"].bfloat16().clone()
    return out


class Drafter:
    """The MTP layer in float64, straight from the formulas: no cache, no absorption, one expert at a time."""

    def __init__(self, tensors, config):
        self.c = config
        number = config["num_hidden_layers"]
        self.layer = f"model.layers.{number}."
        self.t = {key: value.double() for key, value in tensors.items()}
        self.margin = math.inf

    def w(self, name):
        return self.t[self.layer + name]

    def rms(self, x, weight, epsilon=None):
        return x / (x.pow(2).mean(-1, keepdim=True) + (epsilon or self.c["rms_norm_eps"])).sqrt() * weight

    def rotate(self, x):
        """Interleaved pairs by position; x [rows, heads, dim]."""
        dim = x.shape[-1]
        angle = torch.arange(len(x)).double()[:, None] * self.c["rope_theta"] ** (-torch.arange(0, dim, 2).double() / dim)
        cos, sin = angle.cos()[:, None], angle.sin()[:, None]
        even, odd = x[..., 0::2], x[..., 1::2]
        return torch.stack((even * cos - odd * sin, even * sin + odd * cos), -1).flatten(-2)

    def attention(self, x):
        c = self.c
        heads, nope, rope, value, rank = (c[k] for k in ("num_attention_heads", "qk_nope_head_dim", "qk_rope_head_dim",
                                                         "v_head_dim", "kv_lora_rank"))
        rows = len(x)
        low = self.rms(x @ self.w("self_attn.q_a_proj.weight").T, self.w("self_attn.q_a_layernorm.weight"), 1e-6)
        q = (low @ self.w("self_attn.q_b_proj.weight").T).view(rows, heads, nope + rope)
        both = x @ self.w("self_attn.kv_a_proj_with_mqa.weight").T
        latent = self.rms(both[:, :rank], self.w("self_attn.kv_a_layernorm.weight"), 1e-6)
        kv = (latent @ self.w("self_attn.kv_b_proj.weight").T).view(rows, heads, nope + value)
        key_rope = self.rotate(both[:, None, rank:]).expand(rows, heads, rope)
        query = torch.cat((q[..., :nope], self.rotate(q[..., nope:])), -1)
        key = torch.cat((kv[..., :nope], key_rope), -1)
        score = torch.einsum("ihd,jhd->hij", query, key) * (nope + rope) ** -0.5
        score = score.masked_fill(torch.ones(rows, rows).triu(1).bool(), -math.inf)
        out = torch.einsum("hij,jhd->ihd", score.softmax(-1), kv[..., nope:])
        return out.flatten(1) @ self.w("self_attn.o_proj.weight").T

    def mlp(self, x, prefix):
        gate, up = (x @ self.w(f"{prefix}{name}_proj.weight").T for name in ("gate", "up"))
        return (gate * gate.sigmoid() * up) @ self.w(prefix + "down_proj.weight").T

    def experts(self, x):
        c = self.c
        score = (x @ self.w("mlp.gate.weight").T).sigmoid()
        choice = score + self.w("mlp.gate.e_score_correction_bias")
        groups = choice.view(len(x), c["n_group"], -1)
        best = groups.topk(2).values.sum(-1).sort(-1, descending=True)
        kept = torch.zeros(len(x), c["n_group"]).scatter_(1, best.indices[:, :c["topk_group"]], 1).bool()
        choice = groups.masked_fill(~kept[..., None], -math.inf).flatten(1)
        order = choice.sort(-1, descending=True)
        k = c["num_experts_per_tok"]
        for values, count in ((best.values, c["topk_group"]), (order.values, k)):
            self.margin = min(self.margin, (values[:, count - 1] - values[:, count]).min().item())
        out = self.mlp(x, "mlp.shared_experts.")
        for row in range(len(x)):
            chosen = order.indices[row, :k]
            weights = score[row, chosen] / (score[row, chosen].sum() + 1e-20) * c["routed_scaling_factor"]
            for expert, weight in zip(chosen.tolist(), weights):
                out[row] += weight * self.mlp(x[row], f"mlp.experts.{expert}.")
        return out

    def logits(self, hidden, behind):
        """hidden [rows, H] of the model, behind its final norm; behind [rows]: the ids one further."""
        embedded = self.t["model.embed_tokens.weight"][behind]
        x = torch.cat((self.rms(embedded, self.w("enorm.weight")), self.rms(hidden.double(), self.w("hnorm.weight"))), -1)
        x = x @ self.w("eh_proj.weight").T
        x = x + self.attention(self.rms(x, self.w("input_layernorm.weight")))
        x = x + self.experts(self.rms(x, self.w("post_attention_layernorm.weight")))
        return self.rms(x, self.w("shared_head.norm.weight")) @ self.t["lm_head.weight"].T


class GlmDrafter(Drafter):
    """The same with grouped-query attention whose heads rotate in part."""

    def rotate(self, x):
        """Halves of the first values by position; x [rows, heads, dim]."""
        dim = int(x.shape[-1] * self.c["partial_rotary_factor"])
        angle = torch.arange(len(x)).double()[:, None] * self.c["rope_theta"] ** (-torch.arange(0, dim, 2).double() / dim)
        cos, sin = angle.cos()[:, None], angle.sin()[:, None]
        first, second, rest = x[..., :dim // 2], x[..., dim // 2:dim], x[..., dim:]
        return torch.cat((first * cos - second * sin, second * cos + first * sin, rest), -1)

    def attention(self, x):
        c, rows = self.c, len(x)
        heads, shared, dim = c["num_attention_heads"], c["num_key_value_heads"], c["head_dim"]
        project = lambda name: x @ self.w(f"self_attn.{name}_proj.weight").T + self.w(f"self_attn.{name}_proj.bias")
        query = self.rotate(self.rms(project("q").view(rows, heads, dim), self.w("self_attn.q_norm.weight")))
        key = self.rotate(self.rms(project("k").view(rows, shared, dim), self.w("self_attn.k_norm.weight")))
        value = project("v").view(rows, shared, dim)
        key, value = (t.repeat_interleave(heads // shared, 1) for t in (key, value))
        score = torch.einsum("ihd,jhd->hij", query, key) * dim ** -0.5
        score = score.masked_fill(torch.ones(rows, rows).triu(1).bool(), -math.inf)
        return torch.einsum("hij,jhd->ihd", score.softmax(-1), value).flatten(1) @ self.w("self_attn.o_proj.weight").T


FIXTURES = {"deepseek_v3_mtp": ("DeepseekV3", CONFIG, Drafter), "glm4_moe_mtp": ("Glm4Moe", GLM_CONFIG, GlmDrafter)}


@torch.no_grad()
def make(name):
    prefix, config, drafter_class = FIXTURES[name]
    output = Path(__file__).resolve().parent.parent / "tests" / "fixtures" / name
    generator = torch.Generator().manual_seed(SEED)
    model = getattr(transformers, f"{prefix}ForCausalLM")(make_fixtures.make_config(prefix, config))
    make_fixtures.randomise(model, config, generator)
    for key, tensor in model.named_parameters():
        if "o_proj" in key or "down_proj" in key:
            tensor.data.mul_(LAYER_GAIN).copy_(tensor.data.bfloat16())
    shutil.rmtree(output, ignore_errors=True)
    output.mkdir(parents=True)
    drafts = draft_tensors(model, config, generator)
    with tempfile.TemporaryDirectory() as folder:  # transformers knows no layer behind the last
        make_fixtures.save_model(model, name, config, Path(folder))
        own = load_file(f"{folder}/model.safetensors")
        model = make_fixtures.load_reference(prefix, config, folder)
    (output / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    save_file({**own, **drafts}, str(output / "model.safetensors"), metadata={"format": "pt"})

    tap, drafter = make_fixtures.RouterTap(model, config), drafter_class({**own, **drafts}, config)
    tensors, prompts, right, drafted = {}, [], 0, 0
    for number, length in enumerate(make_fixtures.PROMPT_LENGTHS):
        for attempt in range(500):
            result = make_fixtures.try_prompt(model, tap, torch.randint(2, config["vocab_size"], (length,), generator=generator),
                                              make_fixtures.GREEDY_STEPS)
            if not result:
                continue
            text = torch.cat((result["ids"], result["greedy_ids"])).long()
            hidden = model.model(text[None], use_cache=False).last_hidden_state[0]
            drafter.margin = math.inf
            logits = drafter.logits(hidden[:-1], text[1:])
            if drafter.margin >= make_fixtures.ROUTER_MARGIN:
                break
        assert result and drafter.margin >= make_fixtures.ROUTER_MARGIN, f"no fair prompt of length {length}; change SEED"
        if length > 1:
            result["draft_logits"] = logits[:length - 1].float()
        # Of the greedy text: the drafts that the model says too.
        agreed = logits[length - 1:-1].argmax(-1) == text[length + 1:]
        right, drafted = right + int(agreed.sum()), drafted + len(agreed)
        tensors.update({f"prompt.{number}.{key}": value.contiguous() for key, value in result.items()})
        prompts.append({"length": length, "attempts": attempt + 1, "distinct_greedy_tokens": len(set(result["greedy_ids"].tolist()))})
    save_file(tensors, str(output / "parity.safetensors"))
    parity = {"family": name, "reference": f"transformers {transformers.__version__}, float32; drafts: float64 formulas",
              "seed": SEED, "vocab_size": config["vocab_size"], "top_k": config["num_experts_per_tok"],
              "moe_layers": sorted(tap.chosen), "greedy_steps": make_fixtures.GREEDY_STEPS, "prompts": prompts,
              "token_margin": make_fixtures.TOKEN_MARGIN, "router_margin": make_fixtures.ROUTER_MARGIN,
              "draft_acceptance": round(right / drafted, 3)}
    (output / "parity.json").write_text(json.dumps(parity, indent=2) + "\n")
    assert 0.3 < right / drafted < 0.95, f"{right} of {drafted} drafts are right: a test needs both kinds"
    print(json.dumps(parity))


def main():
    unknown = set(sys.argv[1:]) - set(FIXTURES)
    if unknown:
        raise SystemExit(f"unknown: {', '.join(sorted(unknown))}; there are {', '.join(FIXTURES)}")
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    for name in sys.argv[1:] or FIXTURES:
        make(name)


if __name__ == "__main__":
    main()
