#!/usr/bin/env python3
"""Makes tests/fixtures/<family>/: tiny random checkpoints with reference outputs of transformers.

Weights are random, rounded to bf16 and saved under upstream names; the reference is computed in float32 from the saved
files. Everything is seeded. A model or a prompt whose outcome hangs on rounding (a near tie in a router or between the two
best tokens) is drawn again, so that equal ids are a fair test. Layout: tests/fixtures/README.md.
"""

import argparse
import copy
import json
import math
import re
import shutil
import tempfile
import warnings
from pathlib import Path

import torch
import transformers
from safetensors.torch import load_file, save_file

from fixture_families import BF16_BIAS, FAMILIES, PROMPTS, SHARDED, TRANSFORMERS_NAMES, dense_layers

SEED = 7
PROMPT_LENGTHS = (1, 7, 33, 70)
GREEDY_STEPS = 32
TOKEN_MARGIN = 1e-2    # best minus second logit at every greedy step
ROUTER_MARGIN = 2e-4   # last chosen minus first dropped score, also between groups; float32 engines differ by about 1e-6
INDEX_MARGIN = 1e-4    # the indexer's: lowest score taken minus highest left out
DISTINCT_TOKENS = 8    # a greedy run that falls into a short loop tests little


def make_config(prefix, config):
    """The config object of transformers; from a copy, since it edits `rope_scaling` in place."""
    # Codes are read here (gpt_oss_values), for what transformers reads them with wants a GPU.
    values = {key: value for key, value in copy.deepcopy(config).items() if key not in ("model_type", "quantization_config")}
    return getattr(transformers, f"{prefix}Config")(**values)


def randomise(model, config, generator):
    """Lively weights: no norm is 1, no bias is 0, attention is not uniform, routers have opinions."""
    uniform = lambda shape, low, high: torch.rand(shape, generator=generator) * (high - low) + low
    tensors = [(n, t) for n, t in model.named_parameters()]
    tensors += [(n, b) for n, b in model.named_buffers() if "correction" in n or "tid2eid" in n]
    for name, tensor in tensors:
        if "tid2eid" in name:  # ids of a token are drawn with replacement: some tokens name an expert twice
            tensor.data.copy_(torch.randint(config["n_routed_experts"], tensor.shape, generator=generator))
            continue
        if config["model_type"] == "deepseek_v4" and is_float32(name):
            gain = tensor.shape[-1] ** -0.5 if name.endswith("fn") else 1.0
            tensor.data.copy_(torch.randn(tensor.shape, generator=generator) * gain)
            continue
        oss = config["model_type"] == "gpt_oss"
        if oss and name.endswith(("_proj", "_proj_bias")):  # experts, [experts, in, out]: large enough for the limit of 7
            value = torch.randn(tensor.shape, generator=generator) * (3 * tensor.shape[1] ** -0.5 if name.endswith("_proj") else 1.0)
        elif oss and name.endswith((".bias", "sinks")):
            value = torch.randn(tensor.shape, generator=generator) * (2.0 if "sinks" in name else 0.5)
        elif "correction_bias" in name:
            value = uniform(tensor.shape, 0.05, 0.6)
        elif "norm" in name:
            value = uniform(tensor.shape, 0.5, 1.5)
            if name == "model.norm.weight" and config["tie_word_embeddings"]:  # else every token predicts itself
                value *= uniform(tensor.shape, -1, 1).sign()
        else:
            gain = 1.0
            if "embed_tokens" in name:
                gain = math.sqrt(tensor.shape[1]) * (0.4 if config["tie_word_embeddings"] else 1.0)
            elif "lm_head" in name:
                gain = 3.0
            elif any(part in name for part in ("q_proj", "k_proj", "q_b_proj", "kv_b_proj", "gate.weight", "router")):
                gain = 2.0
            value = torch.randn(tensor.shape, generator=generator) * gain * tensor.shape[-1] ** -0.5
        tensor.data.copy_(value.bfloat16())


def is_float32(name):
    """DeepSeek-V4's tensors that are float32 in released files, by the names of transformers."""
    return any(part in name for part in ("_hc.", "hc_head.", "position_bias", "sinks", "correction_bias"))


def deepseek_v4_state(model, released_names):
    """The state of a DeepSeek-V4 in the dtypes of released files, under their names or those that transformers saves."""
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        tensors = {}
        for file in sorted(Path(folder).glob("*.safetensors")):
            tensors.update(load_file(file))
    if released_names:
        renamed = [(r"^model\.", ""), (r"^embed_tokens\.", "embed."), (r"^hc_head\.hc_", "hc_head_"), (r"\.attn\.norm\.", ".attn.kv_norm.")]
        for pattern, name in renamed:
            tensors = {re.sub(pattern, name, key): value for key, value in tensors.items()}
    wide = re.compile(r"(^|\.)hc_|\.ape$|\.attn_sink$|\.gate\.bias$|\.tid2eid$")
    return {key: value.contiguous() if wide.search(key) else value.bfloat16().contiguous() for key, value in tensors.items()}


E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])


def gpt_oss_blocks(value):
    """[experts, in, out] as mxfp4: U8 codes [experts, out, in / 32, 16], low nibble first, and scales [experts, out, in / 32]."""
    blocks = value.transpose(1, 2).unflatten(2, (-1, 32))
    scale = torch.ceil(torch.log2(blocks.abs().amax(-1) / 6).clamp(min=-20))
    codes = (blocks.unsqueeze(-1) / torch.exp2(scale)[..., None, None] - E2M1).abs().argmin(-1)
    return (codes[..., 0::2] + 16 * codes[..., 1::2]).to(torch.uint8), (scale + 127).to(torch.uint8)


def gpt_oss_values(blocks, scales):
    codes = torch.stack((blocks & 15, blocks >> 4), -1).flatten(-2)
    return (E2M1[codes.long()] * torch.exp2(scales.float() - 127).unsqueeze(-1)).flatten(2).transpose(1, 2).contiguous()


def is_mxfp4(config):
    return config.get("quantization_config", {}).get("quant_method") == "mxfp4"


def gpt_oss_state(model):
    tensors = {}
    for key, value in model.state_dict().items():
        if key.endswith(("gate_up_proj", "down_proj")):
            tensors[key + "_blocks"], tensors[key + "_scales"] = gpt_oss_blocks(value)
        else:
            tensors[key] = value.bfloat16().contiguous()
    return tensors


def save_model(model, name, config, folder):
    tensors = gpt_oss_state(model) if is_mxfp4(config) else {}
    if config["model_type"] == "deepseek_v4":
        tensors = deepseek_v4_state(model, name not in TRANSFORMERS_NAMES)
    for key, value in model.state_dict().items() if not tensors else ():
        if key == "lm_head.weight" and config["tie_word_embeddings"]:
            continue
        wide = "correction_bias" in key and name not in BF16_BIAS
        tensors[key] = value.float().contiguous() if wide else value.bfloat16().contiguous()
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    shards = SHARDED.get(name, 1)
    if shards == 1:
        save_file(tensors, str(folder / "model.safetensors"), metadata={"format": "pt"})
        return
    keys = sorted(tensors)
    files = {key: f"model-{1 + i * shards // len(keys):05}-of-{shards:05}.safetensors" for i, key in enumerate(keys)}
    for file in sorted(set(files.values())):
        save_file({k: tensors[k] for k in keys if files[k] == file}, str(folder / file), metadata={"format": "pt"})
    size = sum(t.numel() * t.element_size() for t in tensors.values())
    index = {"metadata": {"total_size": size}, "weight_map": files}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n")


def load_reference(prefix, config, folder):
    """The saved files in float32 with eager attention; corrects the one known error of the reference."""
    hf_config = make_config(prefix, config)
    hf_config._attn_implementation = "eager"
    model_class = getattr(transformers, f"{prefix}ForCausalLM")
    if is_mxfp4(config):
        stored = load_file(folder / "model.safetensors")
        for key in [key for key in stored if key.endswith("_blocks")]:
            stored[key.removesuffix("_blocks")] = gpt_oss_values(stored.pop(key), stored.pop(key.replace("_blocks", "_scales")))
        model = model_class(hf_config).float()
        model.load_state_dict({key: value.float() for key, value in stored.items()})
        return model.eval()
    model, info = model_class.from_pretrained(folder, config=hf_config, dtype=torch.float32, output_loading_info=True)
    problems = {k: v for k, v in info.items() if v}
    assert not problems, problems
    scaling = config.get("rope_scaling")
    for layer in model.model.layers:
        if "qk_nope_head_dim" in config:
            want = (config["qk_nope_head_dim"] + config["qk_rope_head_dim"]) ** -0.5
            if scaling and scaling.get("mscale_all_dim"):
                want *= (0.1 * scaling["mscale_all_dim"] * math.log(scaling["factor"]) + 1) ** 2
            if prefix == "DeepseekV2":  # releases before mid-2026 leave the factor out
                layer.self_attn.scaling = want
            assert abs(layer.self_attn.scaling - want) < 1e-9, (layer.self_attn.scaling, want)
    return model.eval()


class RouterTap:
    """Records, for each MoE layer, what its router chose in the last forward pass and by which margin."""

    def __init__(self, model, config):
        self.config, self.chosen, self.margin = config, {}, math.inf
        self.bias_matters = self.groups_matter = self.index_matters = 0
        self.index_margin = math.inf
        for index, layer in enumerate(model.model.layers):
            block = layer.mlp if hasattr(layer, "mlp") else layer.block_sparse_moe
            router = getattr(block, "gate", None) or getattr(block, "router", None)
            indexer = getattr(getattr(layer.self_attn, "compressor", None), "indexer", None)
            if indexer is not None:
                indexer.scorer.register_forward_hook(lambda module, inputs, output: self.record_index(output[0]))
            if router is not None:
                router.register_forward_hook(lambda module, inputs, output, index=index: self.record(index, module, inputs, output))

    def record(self, index, module, inputs, output):
        c = self.config
        x = inputs[0].flatten(0, -2)
        weight = module.layer.weight if hasattr(module, "layer") else module.weight
        logits = x @ weight.T
        if c["model_type"] == "gpt_oss":
            logits = logits + module.bias
        k = c["num_experts_per_tok"]
        if c["model_type"] in ("deepseek_v2", "deepseek_v3", "kimi_k2", "glm4_moe", "glm4_moe_lite"):
            ids, weights = output
            scores = logits.softmax(-1) if c["model_type"] == "deepseek_v2" else logits.sigmoid()
            choice = scores + getattr(module, "e_score_correction_bias", 0.0)
            # A losing group is masked with 0 by the reference and with -inf by the paper: equal while scores are positive.
            assert choice.min() > 0
            plain = choice
            if c["n_group"] > 1:
                groups = choice.view(len(x), c["n_group"], -1)
                score = groups.topk(2).values.sum(-1) if c["model_type"] != "deepseek_v2" else groups.max(-1).values
                best = score.sort(-1, descending=True)
                self.note_margin(best.values, c["topk_group"])
                kept = torch.zeros_like(score).scatter_(1, best.indices[:, :c["topk_group"]], 1).bool()
                choice = groups.masked_fill(~kept.unsqueeze(-1), float("-inf")).flatten(1)
                self.groups_matter += int((self.top(plain, k) != self.top(choice, k)).any(1).sum())
            if choice is not scores:
                self.bias_matters += int((self.top(scores, k) != self.top(plain, k)).any(1).sum())
            assert (self.top(choice, k) == ids.sort(-1).values).all()
        elif c["model_type"] == "deepseek_v4":
            _, weights, ids = output
            scores = torch.nn.functional.softplus(logits).sqrt()
            if hasattr(module, "tid2eid"):  # nothing hangs on rounding; a row may name an expert twice
                order = ids.argsort(dim=-1, stable=True)
                self.chosen[index] = (ids.gather(1, order).int(), weights.gather(1, order).float())
                return
            choice = scores + module.e_score_correction_bias
            self.bias_matters += int((self.top(scores, k) != self.top(choice, k)).any(1).sum())
            assert (self.top(choice, k) == ids.sort(-1).values).all()
        else:
            choice = logits.softmax(-1)
            weights, ids = choice.topk(k, -1)
            if c.get("norm_topk_prob", True):  # Mixtral and Granite: always
                weights = weights / weights.sum(-1, keepdim=True)
        self.note_margin(choice.sort(-1, descending=True).values, k)
        order = ids.argsort(-1)
        self.chosen[index] = (ids.gather(1, order).int(), weights.gather(1, order).float())

    def record_index(self, scores):
        """Scores [tokens, entries] of every entry; a token sees those that are complete."""
        k = self.config["index_topk"]
        for token in range(4 * (k + 1) - 1, len(scores)):
            best = scores[token, :(token + 1) // 4].sort(descending=True).values
            self.index_margin = min(self.index_margin, (best[k - 1] - best[k]).item())
            self.index_matters += 1

    @staticmethod
    def top(scores, k):
        return scores.topk(k, -1).indices.sort(-1).values

    def note_margin(self, descending, k):
        self.margin = min(self.margin, (descending[:, k - 1] - descending[:, k]).min().item())


@torch.no_grad()
def try_prompt(model, tap, ids, greedy_steps):
    """The reference outputs for one prompt, or None where a near tie makes them unfair."""
    tap.margin = tap.index_margin = math.inf
    prefill = model(ids.unsqueeze(0), use_cache=False).logits[0]
    routers = dict(tap.chosen)
    tokens, rows = [], []
    sequence, logits = ids, prefill
    for step in range(greedy_steps):
        best = logits[-1].topk(2)
        if best.values[0] - best.values[1] < TOKEN_MARGIN or tap.margin < ROUTER_MARGIN or tap.index_margin < INDEX_MARGIN:
            return None
        rows.append(logits[-1])
        tokens.append(best.indices[0])
        sequence = torch.cat((sequence, tokens[-1].view(1)))
        if step + 1 < greedy_steps:
            logits = model(sequence.unsqueeze(0), use_cache=False).logits[0]
    if len(set(map(int, tokens))) < DISTINCT_TOKENS:
        return None
    result = {"ids": ids.int(), "logits": prefill, "greedy_ids": torch.stack(tokens).int(), "greedy_logits": torch.stack(rows)}
    for layer, (chosen, weights) in routers.items():
        result[f"layer.{layer}.router_ids"], result[f"layer.{layer}.router_weights"] = chosen, weights
    return result


def make_family(name, output):
    prefix, config = FAMILIES[name]
    lengths, greedy_steps = PROMPTS.get(name, (PROMPT_LENGTHS, GREEDY_STEPS))
    folder = output / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    generator = torch.Generator().manual_seed(SEED)
    hf_config = make_config(prefix, config)
    model = getattr(transformers, f"{prefix}ForCausalLM")(hf_config)
    randomise(model, config, generator)
    save_model(model, name, config, folder)
    model = load_reference(prefix, config, folder)
    tap = RouterTap(model, config)
    tensors, prompts = {}, []
    for number, length in enumerate(lengths):
        for attempt in range(500):
            result = try_prompt(model, tap, torch.randint(2, config["vocab_size"], (length,), generator=generator), greedy_steps)
            if result:
                break
        assert result, f"{name}: no fair prompt of length {length}; change SEED"
        tensors.update({f"prompt.{number}.{key}": value.contiguous() for key, value in result.items()})
        prompts.append({"length": length, "attempts": attempt + 1, "distinct_greedy_tokens": len(set(result["greedy_ids"].tolist()))})
    moe_layers = sorted(tap.chosen)
    assert moe_layers == sorted(set(range(config["num_hidden_layers"])) - set(dense_layers(config)))
    if config.get("n_group", 1) > 1:
        assert tap.groups_matter > 0
    if config.get("topk_method") == "noaux_tc" or config["model_type"] == "glm4_moe":
        assert tap.bias_matters > 0
    if config["model_type"] == "deepseek_v4":
        assert (tap.index_matters > 0) == (4 * config["index_topk"] < max(lengths))
    used = {layer: torch.cat([tensors[f"prompt.{n}.layer.{layer}.router_ids"] for n in range(len(prompts))]).unique().numel()
            for layer in moe_layers}
    save_file(tensors, str(folder / "parity.safetensors"))
    parity = {"family": name, "reference": f"transformers {transformers.__version__}, float32, eager attention",
              "seed": SEED, "vocab_size": config["vocab_size"], "top_k": config["num_experts_per_tok"],
              "moe_layers": moe_layers, "greedy_steps": greedy_steps, "prompts": prompts,
              "token_margin": TOKEN_MARGIN, "router_margin": ROUTER_MARGIN,
              **({"index_margin": INDEX_MARGIN} if tap.index_matters else {}),
              "experts_used": used}
    (folder / "parity.json").write_text(json.dumps(parity, indent=2) + "\n")
    size = sum(f.stat().st_size for f in folder.iterdir())
    print(f"{name}: {size / 1024:.0f} KiB, logits up to {max(t.abs().max() for k, t in tensors.items() if k.endswith('logits')):.1f}, "
          f"experts used {used}, {prompts}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("families", nargs="*", help=f"default: all of {', '.join(FAMILIES)}")
    parser.add_argument("--output", type=Path, default=Path(__file__).resolve().parent.parent / "tests" / "fixtures")
    args = parser.parse_args()
    unknown = set(args.families) - set(FAMILIES)
    if unknown:
        parser.error(f"unknown family {', '.join(sorted(unknown))}; known: {', '.join(FAMILIES)}")
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    for name in args.families or FAMILIES:
        if not hasattr(transformers, f"{FAMILIES[name][0]}Config"):
            print(f"{name}: transformers {transformers.__version__} has no {FAMILIES[name][0]}; see tools/README.md", flush=True)
            if args.families:
                raise SystemExit(1)
            continue
        make_family(name, args.output)


if __name__ == "__main__":
    main()
