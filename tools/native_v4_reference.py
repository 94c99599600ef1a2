"""DeepSeek-V4 in numpy, from the released layout to logits: an independent reading of the files and of the maths.

Everything is float64 after the weights are decoded, and every step computes the whole sequence anew: no cache, no state that
could be carried along wrongly. `write_parity` puts reference outputs beside a checkpoint in the layout of tests/fixtures/README.md.
"""

import json
import math
import struct

import numpy as np

import native_v4

PROMPT_LENGTHS = (1, 17, 130, 200)  # the window is 16: inside it, beyond it, past 4 and 128 windows' entries
GREEDY_STEPS = 8
TOKEN_MARGIN = 1e-2    # between the two best tokens at every greedy step
CHOICE_MARGIN = 2e-5   # between the last chosen and the first dropped score, of routers and of the indexer
ATTEMPTS = 300


def read_tensors(folder):
    """Every tensor of a native checkpoint, decoded to float64 (ids to int64)."""
    raw = {}
    for path in sorted(folder.glob("model*.safetensors")):
        data = path.read_bytes()
        length = struct.unpack("<Q", data[:8])[0]
        for name, entry in json.loads(data[8:8 + length]).items():
            if name != "__metadata__":
                begin, end = entry["data_offsets"]
                raw[name] = (entry["dtype"], data[8 + length + begin:8 + length + end], entry["shape"])

    def codes(name):
        return np.frombuffer(raw[name][1], np.uint8).reshape(raw[name][2])

    tensors = {}
    for name, (dtype, data, shape) in raw.items():
        scale = name.removesuffix(".weight") + ".scale"
        if dtype == "F8_E4M3":
            tensors[name] = native_v4.decode_fp8(codes(name), codes(scale))
        elif dtype == "I8":
            tensors[name] = native_v4.decode_fp4(codes(name), codes(scale))
        elif dtype == "BF16":
            tensors[name] = (np.frombuffer(data, np.uint16).astype(np.uint32) << 16).view(np.float32).reshape(shape)
        elif dtype == "F32":
            tensors[name] = np.frombuffer(data, np.float32).reshape(shape)
        elif dtype == "I64":
            tensors[name] = np.frombuffer(data, np.int64).reshape(shape)
    return {name: t if t.dtype == np.int64 else t.astype(np.float64) for name, t in tensors.items()}


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def norm(x, weight=1.0, epsilon=1e-6):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + epsilon) * weight


def rotate_tail(x, angles, sign=1):
    """Turns the last 2 * angles.shape[-1] columns of x [T, ..., dim], as pairs (2i, 2i + 1), by `angles` [T, pairs]."""
    pairs = angles.shape[-1]
    angles = angles.reshape(len(angles), *(1,) * (x.ndim - 2), pairs)
    turned = x.copy()
    a, b = x[..., -2 * pairs::2], x[..., 1 - 2 * pairs::2]
    turned[..., -2 * pairs::2] = a * np.cos(angles) - sign * b * np.sin(angles)
    turned[..., 1 - 2 * pairs::2] = sign * a * np.sin(angles) + b * np.cos(angles)
    return turned


def frequencies(dim, base, yarn):
    f = base ** (-np.arange(0, dim, 2) / dim)
    if yarn is None:
        return f

    def dimension(turns):
        return dim * math.log(yarn["original_max_position_embeddings"] / (turns * 2 * math.pi)) / (2 * math.log(base))

    low, high = max(math.floor(dimension(yarn["beta_fast"])), 0), min(math.ceil(dimension(yarn["beta_slow"])), dim - 1)
    ramp = np.clip((np.arange(dim // 2) - low) / max(high - low, 1e-3), 0, 1)
    return f / yarn["factor"] * ramp + f * (1 - ramp)


class Reference:
    def __init__(self, folder):
        self.config = json.loads((folder / "config.json").read_text())
        self.weights = read_tensors(folder)
        self.margin, self.routing = math.inf, {}

    def note_margin(self, scores, kept):
        """scores [T, n]: remembers how close the nearest choice of `kept` was."""
        if scores.shape[-1] > kept:
            ordered = -np.sort(-scores, axis=-1)
            ordered = ordered[np.isfinite(ordered[:, kept])]  # rows that see more than they keep
            self.margin = min(self.margin, (ordered[:, kept - 1] - ordered[:, kept]).min(initial=math.inf))

    def angles(self, positions, compressed):
        c = self.config
        base, yarn = (c["compress_rope_theta"], c["rope_scaling"]) if compressed else (c["rope_theta"], None)
        return np.outer(positions, frequencies(c["qk_rope_head_dim"], base, yarn))

    def mix(self, name, streams):
        """[T, n, d] through fn, scaled and biased: the raw numbers of a hyper-connection."""
        flat = streams.reshape(len(streams), -1)
        return norm(flat, 1.0, self.config["rms_norm_eps"]) @ self.weights[name + "_fn"].T

    def site(self, name, streams):
        """The input of a sublayer, and what its output is spread with."""
        c, w = self.config, self.weights
        n, epsilon = c["hc_mult"], c["hc_eps"]
        m, scale, base = self.mix(name, streams), w[name + "_scale"], w[name + "_base"]
        pre = sigmoid(m[:, :n] * scale[0] + base[:n]) + epsilon
        post = 2 * sigmoid(m[:, n:2 * n] * scale[1] + base[n:2 * n])
        comb = (m[:, 2 * n:] * scale[2] + base[2 * n:]).reshape(-1, n, n)
        comb = np.exp(comb - comb.max(-1, keepdims=True))
        comb = comb / comb.sum(-1, keepdims=True) + epsilon
        comb = comb / (comb.sum(1, keepdims=True) + epsilon)
        for _ in range(c["hc_sinkhorn_iters"] - 1):
            comb = comb / (comb.sum(2, keepdims=True) + epsilon)
            comb = comb / (comb.sum(1, keepdims=True) + epsilon)
        return (pre[..., None] * streams).sum(1), post, comb

    @staticmethod
    def spread(streams, y, post, comb):
        return post[..., None] * y[:, None] + comb.transpose(0, 2, 1) @ streams

    def pooled(self, name, x, ratio):
        """The entries of a compressor, [T // ratio, dim], before their use."""
        w = self.weights
        kv, score = x @ w[name + ".wkv.weight"].T, x @ w[name + ".wgate.weight"].T
        dim = w[name + ".norm.weight"].shape[0]
        entries = []
        for entry in range(len(x) // ratio):
            rows = slice(entry * ratio, (entry + 1) * ratio)
            k, s = kv[rows], score[rows] + w[name + ".ape"]
            if ratio == 4:
                k, s = k[:, dim:], s[:, dim:]
                if entry:
                    before = slice(rows.start - ratio, rows.start)
                    k = np.vstack([kv[before, :dim], k])
                    s = np.vstack([(score[before] + w[name + ".ape"])[:, :dim], s])
            p = np.exp(s - s.max(0))
            entries.append((p * k).sum(0) / p.sum(0))
        entries = np.array(entries).reshape(-1, dim)
        return rotate_tail(norm(entries, w[name + ".norm.weight"]), self.angles(np.arange(len(entries)) * ratio, True))

    def attention(self, name, x, ratio):
        c, w = self.config, self.weights
        tokens, heads, dim = len(x), c["num_attention_heads"], c["head_dim"]
        angles = self.angles(np.arange(tokens), ratio != 0)
        low = norm(x @ w[name + ".wq_a.weight"].T, w[name + ".q_norm.weight"])
        q = rotate_tail(norm((low @ w[name + ".wq_b.weight"].T).reshape(tokens, heads, dim)), angles)
        keys = rotate_tail(norm(x @ w[name + ".wkv.weight"].T, w[name + ".kv_norm.weight"]), angles)
        t, s = np.arange(tokens)[:, None], np.arange(tokens)[None]
        visible = (s <= t) & (s > t - c["sliding_window"])
        if ratio:
            entries = self.pooled(name + ".compressor", x, ratio)
            seen = np.arange(len(entries))[None] < (t + 1) // ratio
            if ratio == 4:
                seen = self.indexed(name + ".indexer", x, low, angles, seen)
            keys, visible = np.vstack([keys, entries]), np.hstack([visible, seen])
        scores = np.where(visible[:, None], (q @ keys.T) * dim**-0.5, -np.inf)
        top = scores.max(-1, keepdims=True)
        p = np.exp(scores - top)
        p /= p.sum(-1, keepdims=True) + np.exp(w[name + ".attn_sink"][None, :, None] - top)
        out = rotate_tail(p @ keys, angles, -1).reshape(tokens, c["o_groups"], -1)
        groups = w[name + ".wo_a.weight"].reshape(c["o_groups"], c["o_lora_rank"], -1)
        low_out = [out[:, group] @ groups[group].T for group in range(c["o_groups"])]
        return np.hstack(low_out) @ w[name + ".wo_b.weight"].T

    def indexed(self, name, x, low, angles, seen):
        """Of the visible entries, those that the indexer keeps."""
        c, w = self.config, self.weights
        heads, dim, kept = c["index_n_heads"], c["index_head_dim"], c["index_topk"]
        keys = self.pooled(name + ".compressor", x, 4)
        q = rotate_tail((low @ w[name + ".wq_b.weight"].T).reshape(len(x), heads, dim), angles)
        gain = x @ w[name + ".weights_proj.weight"].T * (dim * heads) ** -0.5
        scores = (np.maximum(q @ keys.T, 0) * gain[..., None]).sum(1)
        scores = np.where(seen, scores, -np.inf)
        self.note_margin(scores, kept)
        chosen = np.zeros_like(seen)
        np.put_along_axis(chosen, np.argsort(-scores, axis=-1, kind="stable")[:, :kept], True, axis=-1)
        return chosen & seen

    def mlp(self, name, x):
        w, limit = self.weights, self.config["swiglu_limit"]
        gate = np.minimum(x @ w[name + ".w1.weight"].T, limit)
        up = np.clip(x @ w[name + ".w3.weight"].T, -limit, limit)
        return (gate * sigmoid(gate) * up) @ w[name + ".w2.weight"].T

    def experts(self, layer, name, x, ids):
        c, w = self.config, self.weights
        score = np.sqrt(np.logaddexp(0, x @ w[name + ".gate.weight"].T))
        if name + ".gate.tid2eid" in w:
            chosen = w[name + ".gate.tid2eid"][ids]
        else:
            biased = score + w[name + ".gate.bias"]
            self.note_margin(biased, c["num_experts_per_tok"])
            chosen = np.argsort(-biased, axis=-1)[:, :c["num_experts_per_tok"]]
        weight = np.take_along_axis(score, chosen, -1)
        weight *= c["routed_scaling_factor"] / weight.sum(-1, keepdims=True)
        order = np.argsort(chosen, axis=-1, kind="stable")
        self.routing[layer] = (np.take_along_axis(chosen, order, -1), np.take_along_axis(weight, order, -1))
        out = self.mlp(name + ".shared_experts", x)
        for expert in range(c["n_routed_experts"]):
            rows, slots = np.nonzero(chosen == expert)  # a row that names an expert twice comes twice
            if len(rows):
                np.add.at(out, rows, weight[rows, slots][:, None] * self.mlp(f"{name}.experts.{expert}", x[rows]))
        return out

    def block(self, layer, name, ratio, streams, ids):
        w = self.weights
        x, post, comb = self.site(name + ".hc_attn", streams)
        y = self.attention(name + ".attn", norm(x, w[name + ".attn_norm.weight"]), ratio)
        streams = self.spread(streams, y, post, comb)
        x, post, comb = self.site(name + ".hc_ffn", streams)
        y = self.experts(layer, name + ".ffn", norm(x, w[name + ".ffn_norm.weight"]), ids)
        return self.spread(streams, y, post, comb)

    def head(self, prefix, streams):
        w = self.weights
        mixed = self.mix(prefix + "hc_head", streams) * w[prefix + "hc_head_scale"] + w[prefix + "hc_head_base"]
        x = ((sigmoid(mixed) + self.config["hc_eps"])[..., None] * streams).sum(1)
        return norm(x, w[prefix + "norm.weight"]) @ w["head.weight"].T

    def logits(self, ids):
        """[T, vocabulary] of a sequence of token ids."""
        c, w = self.config, self.weights
        self.margin, self.routing = math.inf, {}
        streams = np.repeat(w["embed.weight"][ids][:, None], c["hc_mult"], axis=1)
        for layer in range(c["num_hidden_layers"]):
            streams = self.block(layer, f"layers.{layer}", c["compress_ratios"][layer], streams, ids)
        self.streams = streams
        return self.head("", streams)

    def draft_logits(self, ids):
        """[T - 1, vocabulary] behind `logits` of the same ids: row i knows the streams of token i and the id of token i + 1."""
        w, behind = self.weights, ids[1:]
        embedded = norm(w["embed.weight"][behind], w["mtp.0.enorm.weight"]) @ w["mtp.0.e_proj.weight"].T
        streams = embedded[:, None] + norm(self.streams[:-1], w["mtp.0.hnorm.weight"]) @ w["mtp.0.h_proj.weight"].T
        return self.head("mtp.0.", self.block(len(self.routing), "mtp.0", 0, streams, behind))


def try_prompt(model, ids):
    """The outputs for one prompt; None where a near tie makes equal choices a matter of rounding."""
    prefill = logits = model.logits(ids)
    if model.margin < CHOICE_MARGIN:
        return None
    routing, sequence, tokens, rows = dict(model.routing), list(ids), [], []
    drafts = None
    if len(ids) > 1 and model.config["num_nextn_predict_layers"] == 1:
        drafts = model.draft_logits(np.array(ids))
        if model.margin < CHOICE_MARGIN:
            return None
    for step in range(GREEDY_STEPS):
        best = np.sort(logits[-1])[-2:]
        if best[1] - best[0] < TOKEN_MARGIN or model.margin < CHOICE_MARGIN:
            return None
        rows.append(logits[-1])
        tokens.append(int(logits[-1].argmax()))
        sequence.append(tokens[-1])
        if step + 1 < GREEDY_STEPS:
            logits = model.logits(np.array(sequence))
    result = {"ids": np.array(ids, np.int32), "logits": prefill, "greedy_ids": np.array(tokens, np.int32), "greedy_logits": np.array(rows)}
    if drafts is not None:
        result["draft_logits"] = drafts
    for layer, (chosen, weight) in routing.items():
        result[f"layer.{layer}.router_ids"], result[f"layer.{layer}.router_weights"] = chosen.astype(np.int32), weight
    return result


def write_parity(folder, prompt_lengths=PROMPT_LENGTHS, seed=native_v4.SEED):
    model, random = Reference(folder), np.random.default_rng(seed)
    config, out = model.config, native_v4.Checkpoint(folder)
    for number, length in enumerate(prompt_lengths):
        for _ in range(ATTEMPTS):
            result = try_prompt(model, random.integers(2, config["vocab_size"], length))
            if result:
                break
        assert result, f"no fair prompt of length {length}: change the seed"
        for key, value in result.items():
            ids = key.endswith("ids")
            out.add(f"prompt.{number}.{key}", "I32" if ids else "F32", value.astype(np.int32 if ids else np.float32))
    out.flush()
    out.files[0][0].rename(folder / "parity.safetensors")
    parity = {"reference": "tools/native_v4_reference.py, float64", "seed": seed, "vocab_size": config["vocab_size"],
              "top_k": config["num_experts_per_tok"], "moe_layers": list(range(config["num_hidden_layers"])),
              "greedy_steps": GREEDY_STEPS, "prompts": [{"length": length} for length in prompt_lengths],
              "token_margin": TOKEN_MARGIN, "router_margin": CHOICE_MARGIN}
    (folder / "parity.json").write_text(json.dumps(parity, indent=2) + "\n")
