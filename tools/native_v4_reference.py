"""DeepSeek-V4 in numpy, from the released layout to logits: an independent reading of the files and of the maths.

Everything is float64 after the weights are decoded, and every step computes the whole sequence anew: no cache, no state that
could be carried along wrongly. `qat_simulation` rounds keys, entries and the indexer's vectors as the model was trained, `activation_dtype` the rows that go to experts. native_v4_parity.py puts outputs beside a checkpoint.
"""

import json
import math
import struct

import numpy as np

import native_v4
import native_v4_rounding


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
    def __init__(self, folder, qat_simulation=False, activation_dtype=None):
        self.config = json.loads((folder / "config.json").read_text())
        self.weights = read_tensors(folder)
        self.qat_simulation, self.activation_dtype = qat_simulation, activation_dtype
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

    def stored(self, keys):
        """Keys and entries as the model was trained to read them: all but the rotated columns in fp8."""
        if not self.qat_simulation:
            return keys
        plain = keys.shape[-1] - self.config["qk_rope_head_dim"]
        return np.concatenate([native_v4_rounding.fp8(keys[..., :plain]), keys[..., plain:]], axis=-1)

    def stored_index(self, x):
        return native_v4_rounding.hadamard_fp4(x) if self.qat_simulation else x

    def keys(self, name, x, angles):
        """Key and value in one of each row of x."""
        w = self.weights
        return self.stored(rotate_tail(norm(x @ w[name + ".wkv.weight"].T, w[name + ".kv_norm.weight"]), angles))

    def queries(self, name, x, angles):
        """The low-rank rows, and the heads [T, heads, dim]."""
        c, w = self.config, self.weights
        low = norm(x @ w[name + ".wq_a.weight"].T, w[name + ".q_norm.weight"])
        heads = (low @ w[name + ".wq_b.weight"].T).reshape(len(x), c["num_attention_heads"], c["head_dim"])
        return low, rotate_tail(norm(heads), angles)

    def attention(self, name, x, ratio):
        tokens = len(x)
        angles = self.angles(np.arange(tokens), ratio != 0)
        low, q = self.queries(name, x, angles)
        keys = self.keys(name, x, angles)
        t, s = np.arange(tokens)[:, None], np.arange(tokens)[None]
        visible = (s <= t) & (s > t - self.config["sliding_window"])
        if ratio:
            entries = self.stored(self.pooled(name + ".compressor", x, ratio))
            seen = np.arange(len(entries))[None] < (t + 1) // ratio
            if ratio == 4:
                seen = self.indexed(name + ".indexer", x, low, angles, seen)
            keys, visible = np.vstack([keys, entries]), np.hstack([visible, seen])
        return self.attend(name, q, keys, visible, angles)

    def attend(self, name, q, keys, visible, angles):
        """The output [T, hidden] of queries at `angles` over the keys [n, dim] that `visible` [T, n] marks."""
        c, w = self.config, self.weights
        scores = np.where(visible[:, None], (q @ keys.T) * c["head_dim"]**-0.5, -np.inf)
        sink = w[name + ".attn_sink"][None, :, None]
        top = np.maximum(scores.max(-1, keepdims=True), sink)
        p = np.exp(scores - top)
        p /= p.sum(-1, keepdims=True) + np.exp(sink - top)
        out = rotate_tail(p @ keys, angles, -1).reshape(len(q), c["o_groups"], -1)
        groups = w[name + ".wo_a.weight"].reshape(c["o_groups"], c["o_lora_rank"], -1)
        low_out = [out[:, group] @ groups[group].T for group in range(c["o_groups"])]
        return np.hstack(low_out) @ w[name + ".wo_b.weight"].T

    def indexed(self, name, x, low, angles, seen):
        """Of the visible entries, those that the indexer keeps."""
        c, w = self.config, self.weights
        heads, dim, kept = c["index_n_heads"], c["index_head_dim"], c["index_topk"]
        keys = self.stored_index(self.pooled(name + ".compressor", x, 4))
        q = self.stored_index(rotate_tail((low @ w[name + ".wq_b.weight"].T).reshape(len(x), heads, dim), angles))
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
        if self.activation_dtype:  # the router has seen the rows as they were
            x = native_v4_rounding.crossing(x, self.activation_dtype)
        out = self.mlp(name + ".shared_experts", x)
        for expert in range(c["n_routed_experts"]):
            rows, slots = np.nonzero(chosen == expert)  # a row that names an expert twice comes twice
            if len(rows):
                np.add.at(out, rows, weight[rows, slots][:, None] * self.mlp(f"{name}.experts.{expert}", x[rows]))
        return out

    def block(self, layer, name, attention, streams, ids):
        """One block; `attention` takes the normed rows [T, hidden] to the sublayer's output."""
        w = self.weights
        x, post, comb = self.site(name + ".hc_attn", streams)
        y = attention(norm(x, w[name + ".attn_norm.weight"]))
        streams = self.spread(streams, y, post, comb)
        x, post, comb = self.site(name + ".hc_ffn", streams)
        y = self.experts(layer, name + ".ffn", norm(x, w[name + ".ffn_norm.weight"]), ids)
        return self.spread(streams, y, post, comb)

    def causal_block(self, layer, name, ratio, streams, ids):
        """A block whose rows are a whole sequence."""
        return self.block(layer, name, lambda x: self.attention(name + ".attn", x, ratio), streams, ids)

    def collapsed(self, prefix, streams):
        """The streams as one row [T, hidden]."""
        w = self.weights
        mixed = self.mix(prefix + "hc_head", streams) * w[prefix + "hc_head_scale"] + w[prefix + "hc_head_base"]
        return ((sigmoid(mixed) + self.config["hc_eps"])[..., None] * streams).sum(1)

    def head(self, prefix, streams):
        w = self.weights
        return norm(self.collapsed(prefix, streams), w[prefix + "norm.weight"]) @ w["head.weight"].T

    def logits(self, ids):
        """[T, vocabulary] of a sequence of token ids."""
        c, w = self.config, self.weights
        self.margin, self.routing = math.inf, {}
        streams = np.repeat(w["embed.weight"][ids][:, None], c["hc_mult"], axis=1)
        means = []
        for layer in range(c["num_hidden_layers"]):
            streams = self.causal_block(layer, f"layers.{layer}", c["compress_ratios"][layer], streams, ids)
            means.append(streams.mean(1))
        self.streams = streams
        if "dspark_target_layer_ids" in c:
            self.taps = np.stack([means[layer] for layer in c["dspark_target_layer_ids"]], axis=1)  # [T, targets, hidden]
        return self.head("", streams)

    def draft_logits(self, ids):
        """[T - 1, vocabulary] behind `logits` of the same ids: row i knows the streams of token i and the id of token i + 1."""
        w, behind = self.weights, ids[1:]
        embedded = norm(w["embed.weight"][behind], w["mtp.0.enorm.weight"]) @ w["mtp.0.e_proj.weight"].T
        streams = embedded[:, None] + norm(self.streams[:-1], w["mtp.0.hnorm.weight"]) @ w["mtp.0.h_proj.weight"].T
        return self.head("mtp.0.", self.causal_block(len(self.routing), "mtp.0", 0, streams, behind))
