"""The whole attention half of models/arith in numpy, its experts in an FFN pool. Start the pool first:

    tandem ffn --model models/arith --listen tcp://127.0.0.1:7000
    python client/python/examples/generate_numpy.py models/arith 120 tcp://127.0.0.1:7000 0 3 446 276 225 21 22 477 18 ...

Takes and gives token ids, as client/examples/generate.c does. Any DeepSeek-V3 model without rope scaling and quantised files would do,
and only what is not an expert is read of it.
"""
import json
import pathlib
import struct
import sys

import numpy as np

import tandem_client


class Weights:
    """Tensors of model.safetensors as float32, each read when it is first asked for."""

    def __init__(self, folder):
        self.bytes = np.memmap(pathlib.Path(folder) / "model.safetensors", np.uint8, "r")
        (length,) = struct.unpack("<Q", self.bytes[:8].tobytes())
        self.data, self.header, self.known = 8 + length, json.loads(self.bytes[8:8 + length].tobytes()), {}

    def __getitem__(self, name):
        if name not in self.known:
            entry = self.header[name + ".weight"]
            begin, end = (self.data + offset for offset in entry["data_offsets"])
            raw = self.bytes[begin:end].tobytes()
            if entry["dtype"] == "BF16":  # the upper half of a float32
                values = (np.frombuffer(raw, "<u2").astype(np.uint32) << 16).view(np.float32)
            elif entry["dtype"] == "F32":
                values = np.frombuffer(raw, "<f4")
            else:
                raise SystemExit(f"{name}: {entry['dtype']}; BF16 or F32 would do")
            self.known[name] = values.reshape(entry["shape"])
        return self.known[name]


def silu(x):
    return x / (1 + np.exp(-x))


def rotate(x, positions):
    """The pairs (0, 1), (2, 3), ... of x [rows, ..., size], each by its own angle a position."""
    frequencies = 10000.0 ** -(np.arange(0, x.shape[-1], 2) / x.shape[-1])
    angles = positions.reshape(-1, *[1] * (x.ndim - 1)) * frequencies
    c, s = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
    a, b = x[..., 0::2], x[..., 1::2]
    return np.stack([a * c - b * s, a * s + b * c], -1).reshape(x.shape)


class Attention:
    """One sequence at a time. `experts`: a tandem_client.Client whose pool has the gate and the shared experts."""

    def __init__(self, folder, experts):
        self.config = json.loads((pathlib.Path(folder) / "config.json").read_text())
        self.weights, self.experts = Weights(folder), experts
        experts_here = [what for what in ("gate", "shared_experts") if experts.settings.raw[what] == "attention"]
        if experts_here or self.config.get("rope_scaling") or self.config.get("rope_theta") != 10000.0:
            raise SystemExit(f"this program leaves gate and shared experts to the pool ({experts_here} is here), and scales no rope")

    def norm(self, x, name):
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + np.float32(self.config["rms_norm_eps"])) * self.weights[name]

    def attend(self, layer, x, positions):
        c, name, rows = self.config, f"model.layers.{layer}.self_attn.", len(x)
        heads, nope, rope = c["num_attention_heads"], c["qk_nope_head_dim"], c["qk_rope_head_dim"]
        query = self.norm(x @ self.weights[name + "q_a_proj"].T, name + "q_a_layernorm") @ self.weights[name + "q_b_proj"].T
        query = query.reshape(rows, heads, nope + rope)
        query = np.concatenate([query[..., :nope], rotate(query[..., nope:], positions)], -1)
        latent = x @ self.weights[name + "kv_a_proj_with_mqa"].T
        kept = self.norm(latent[:, :c["kv_lora_rank"]], name + "kv_a_layernorm")
        expanded = (kept @ self.weights[name + "kv_b_proj"].T).reshape(rows, heads, -1)
        turned = rotate(latent[:, None, c["kv_lora_rank"]:], positions)  # one part for all heads
        keys = np.concatenate([expanded[..., :nope], np.repeat(turned, heads, 1)], -1)
        self.keys[layer] = np.concatenate([self.keys[layer], keys]) if layer in self.keys else keys  # [positions, heads, nope + rope]
        values = expanded[..., nope:]
        self.values[layer] = np.concatenate([self.values[layer], values]) if layer in self.values else values
        scores = np.einsum("rhd,phd->hrp", query, self.keys[layer]) / np.float32(np.sqrt(nope + rope))
        scores[:, np.arange(len(self.keys[layer])) > positions[:, None]] = -np.inf
        scores = np.exp(scores - scores.max(-1, keepdims=True))
        scores /= scores.sum(-1, keepdims=True)
        attended = np.einsum("hrp,phv->rhv", scores, self.values[layer]).reshape(rows, -1)
        return attended @ self.weights[name + "o_proj"].T

    def step(self, tokens, first):
        """The token behind `tokens`, which stand at positions first, first + 1, ..."""
        x, positions = self.weights["model.embed_tokens"][tokens], np.arange(first, first + len(tokens))
        for layer in range(self.config["num_hidden_layers"]):
            name = f"model.layers.{layer}."
            x = x + self.attend(layer, self.norm(x, name + "input_layernorm"), positions)
            normed = self.norm(x, name + "post_attention_layernorm")
            if layer < self.config["first_k_dense_replace"]:
                gate, up, down = (self.weights[f"{name}mlp.{part}_proj"] for part in ("gate", "up", "down"))
                x = x + (silu(normed @ gate.T) * (normed @ up.T)) @ down.T
            else:
                asked = {"token_ids": np.array(tokens)} if self.experts.settings.token_ids else {}
                x = x + self.experts.compute(layer, normed, row_class="prefill" if len(tokens) > 1 else "decode", **asked)
        return int(np.argmax(self.norm(x[-1], "model.norm") @ self.weights["lm_head"].T))

    def generate(self, prompt, most):
        """The ids that follow greedily, up to the end of the answer or `most`."""
        self.keys, self.values, made, known = {}, {}, [], list(prompt)
        new = known
        while len(made) < most:
            token = self.step(new, len(known) - len(new))
            if token == self.config["eos_token_id"]:
                break
            made.append(token)
            known.append(token)
            new = [token]
        return made


if __name__ == "__main__":
    folder, most, addresses, *prompt = sys.argv[1:]
    with tandem_client.Client(addresses) as client:
        print(*Attention(folder, client).generate([int(token) for token in prompt], int(most)))
