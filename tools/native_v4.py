#!/usr/bin/env python3
"""Writes a random DeepSeek-V4 checkpoint in the layout of the released files: FP4 experts (e2m1, a power of two per 32 columns),
FP8 dense weights (e4m3, a power of two per 128 x 128), tid2eid, compressors, hyper-connections, a drafter, shards and an index.

    tools/native_v4.py FOLDER                          a tiny model, with the reference logits of native_v4_parity.py
    tools/native_v4.py FOLDER --shape flash-layers     V4-Flash's width: one layer of each kind, 256 experts, vocabulary cut
    tools/native_v4.py FOLDER --shape flash-4          the same width, four layers
    tools/native_v4.py FOLDER --drafter dspark         with the drafter of the DSpark releases: three stages, blocks of 5 tokens
    tools/native_v4.py FOLDER --dequantised            the same values as bf16 tensors, which holds each of them exactly

Needs numpy alone. The same seed gives the same bytes.
"""

import argparse
import json
import os
import struct
from pathlib import Path

# The reference's matrices are small; on a busy machine numpy's threads spend their time waiting for each other.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np  # noqa: E402

SEED = 11
SHARD_BYTES = 2 << 30  # a shard is written when it holds this much, so that memory stays small
FLASH = {"hidden_size": 4096, "num_attention_heads": 64, "head_dim": 512, "qk_rope_head_dim": 64, "q_lora_rank": 1024, "o_groups": 8,
         "o_lora_rank": 1024, "n_routed_experts": 256, "num_experts_per_tok": 6, "moe_intermediate_size": 2048, "index_n_heads": 64,
         "index_head_dim": 128, "index_topk": 512, "sliding_window": 128, "vocab_size": 4096, "num_nextn_predict_layers": 0,
         "max_position_embeddings": 1048576, "num_hash_layers": 1}
YARN = {"type": "yarn", "factor": 16, "beta_fast": 32, "beta_slow": 1}
TINY = {
    # Widths that blocks of 128 do not divide, a window, an index and an original length that short prompts pass.
    "hidden_size": 128, "num_attention_heads": 4, "head_dim": 96, "qk_rope_head_dim": 32, "q_lora_rank": 128, "o_groups": 2,
    "o_lora_rank": 64, "n_routed_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 64, "index_n_heads": 16,
    "index_head_dim": 32, "index_topk": 8, "sliding_window": 16, "vocab_size": 320, "num_nextn_predict_layers": 1,
    "max_position_embeddings": 4096, "num_hash_layers": 2, "num_hidden_layers": 5, "compress_ratios": [0, 4, 128, 4, 0, 0],
    "swiglu_limit": 1.5,
    "rope_scaling": {**YARN, "original_max_position_embeddings": 64}}
SHAPES = {
    "tiny": TINY,
    "tiny-128": {**TINY, "sliding_window": 128, "index_topk": 64},  # the released window; from 260 tokens on there are more entries than are taken
    "flash-layers": {**FLASH, "num_hidden_layers": 3, "compress_ratios": [0, 4, 128],
                     "rope_scaling": {**YARN, "original_max_position_embeddings": 65536}},
    "flash-4": {**FLASH, "num_hidden_layers": 4, "compress_ratios": [0, 4, 128, 4],
                "rope_scaling": {**YARN, "original_max_position_embeddings": 65536}},
}
DRAFTERS = ("none", "mtp", "dspark")
DSPARK_STAGES, DSPARK_TARGETS, DSPARK_BLOCK = 3, 3, 5
# Of random weights no draft would ever be right. So in models whose drafter is asked for sublayers add little to the residual, and
# the last token decides most of the next. Either drafter knows that much: MTP's joint hands the embedding on, DSpark's Markov head has
# what follows a token, with too few columns to know all.
BRANCH_GAIN, MTP_HIDDEN_GAIN = 1 / 16, 1 / 4
DSPARK_MARKOV_GAIN, DSPARK_MARKOV_RANK = 4.0, {"tiny": 112, "tiny-128": 112}
COMMON = {"architectures": ["DeepseekV4ForCausalLM"], "model_type": "deepseek_v4", "torch_dtype": "bfloat16", "hidden_act": "silu",
          "attention_bias": False, "num_key_value_heads": 1, "n_shared_experts": 1, "hc_mult": 4, "hc_sinkhorn_iters": 20, "hc_eps": 1e-6,
          "rms_norm_eps": 1e-6, "rope_theta": 10000, "compress_rope_theta": 160000, "scoring_func": "sqrtsoftplus",
          "topk_method": "noaux_tc", "norm_topk_prob": True, "routed_scaling_factor": 1.5, "swiglu_limit": 10.0, "expert_dtype": "fp4",
          "tie_word_embeddings": False, "bos_token_id": 0, "eos_token_id": 1,
          "quantization_config": {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "scale_fmt": "ue8m0",
                                  "weight_block_size": [128, 128]}}

CONTROL_TOKENS = ["<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜User｜>", "<｜Assistant｜>", "<think>", "</think>", "｜DSML｜"]

E4M3_ONE, E8M0_ONE = 0x38, 127
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)


def decode_e4m3(code):
    code = code.astype(np.int32)
    exponent, mantissa = (code >> 3) & 15, code & 7
    value = np.where(exponent == 0, mantissa * 2.0**-9, (8 + mantissa) * 2.0 ** (exponent - 10.0))
    return (np.where(code & 128, -value, value)).astype(np.float32)


def decode_e8m0(code):
    return np.exp2(code.astype(np.float32) - 127)


def decode_fp4(packed, scale):
    """[rows, cols / 2] bytes, the low nibble first, and [rows, cols / 32] exponents: [rows, cols]."""
    values = np.empty((packed.shape[0], packed.shape[1] * 2), np.float32)
    values[:, 0::2], values[:, 1::2] = E2M1[packed & 15], E2M1[packed >> 4]
    return values * np.repeat(decode_e8m0(scale), 32, axis=1)[:, : values.shape[1]]


def decode_fp8(codes, scale):
    """[rows, cols] bytes and [ceil(rows / 128), ceil(cols / 128)] exponents: [rows, cols]."""
    tiles = np.repeat(np.repeat(decode_e8m0(scale), 128, axis=0), 128, axis=1)
    return decode_e4m3(codes) * tiles[: codes.shape[0], : codes.shape[1]]


def to_bf16(values):
    """Rounded to nearest even, as the 16 bits that a file holds."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


class Checkpoint:
    """Collects tensors and writes them as shards; a folder's safetensors and their index."""

    def __init__(self, folder):
        self.folder, self.pending, self.bytes, self.files, self.total = folder, [], 0, [], 0

    def add(self, name, dtype, array):
        array = np.ascontiguousarray(array)
        self.pending.append((name, dtype, array))
        self.bytes += array.nbytes
        if self.bytes >= SHARD_BYTES:
            self.flush()

    def flush(self):
        if not self.pending:
            return
        header, offset = {}, 0
        for name, dtype, array in self.pending:
            header[name] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": [offset, offset + array.nbytes]}
            offset += array.nbytes
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        path = self.folder / f"part-{len(self.files):05}.safetensors"
        with path.open("wb") as file:
            file.write(struct.pack("<Q", len(text)) + text)
            for _, _, array in self.pending:
                file.write(array.data)
        print(f"{path.name}: {len(header)} tensors, {offset / 2**20:.1f} MiB", flush=True)
        self.files.append((path, [name for name, _, _ in self.pending]))
        self.total += offset
        self.pending, self.bytes = [], 0

    def finish(self):
        self.flush()
        weight_map = {}
        for number, (path, names) in enumerate(self.files):
            final = f"model-{number + 1:05}-of-{len(self.files):05}.safetensors"
            path.rename(self.folder / final)
            weight_map.update(dict.fromkeys(names, final))
        index = {"metadata": {"total_size": self.total}, "weight_map": weight_map}
        (self.folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=1) + "\n")


class Writer:
    def __init__(self, config, checkpoint, dequantised, seed, foreseeable):
        """`foreseeable`: the drafter is right now and then."""
        self.config, self.out, self.dequantised, self.foreseeable = config, checkpoint, dequantised, foreseeable
        self.branch_gain = BRANCH_GAIN if foreseeable else 1.0
        self.random = np.random.default_rng(seed)
        # Codes of normally distributed values with a standard deviation of 32, in e4m3: drawn from, since rounding
        # hundreds of millions of values takes minutes.
        table = decode_e4m3(np.arange(256, dtype=np.uint8))
        table[(np.arange(256) & 127) == 127] = np.inf  # NaN
        order = np.argsort(table[:255], kind="stable")
        order = order[np.isfinite(table[order])]
        sample = np.clip(self.random.standard_normal(1 << 16) * 32, -440, 440)
        middle = (table[order][1:] + table[order][:-1]) / 2
        self.e4m3_codes = order[np.searchsorted(middle, sample)].astype(np.uint8)

    def values(self, shape, deviation):
        return self.random.standard_normal(shape, np.float32) * np.float32(deviation)

    def bf16(self, name, values):
        self.out.add(name, "BF16", to_bf16(values))

    def f32(self, name, values):
        self.out.add(name, "F32", values.astype(np.float32))

    def norm(self, name, width):
        gains = self.random.uniform(0.5, 1.5, width)
        self.bf16(name, gains)
        return gains

    def exponents(self, shape, deviation):
        """Codes of powers of two around a standard deviation."""
        return np.clip(self.random.integers(-1, 2, shape) + 127 + round(np.log2(deviation)), 1, 254).astype(np.uint8)

    def fp8(self, module, rows, cols, gain=1.0):
        codes = self.e4m3_codes[self.random.integers(0, len(self.e4m3_codes), (rows, cols), np.uint16)]
        self.fp8_codes(module, codes, self.exponents((-(-rows // 128), -(-cols // 128)), gain * cols**-0.5 / 32))

    def fp8_codes(self, module, codes, scale):
        if self.dequantised:
            self.bf16(module + ".weight", decode_fp8(codes, scale))
        else:
            self.out.add(module + ".weight", "F8_E4M3", codes)
            self.out.add(module + ".scale", "F8_E8M0", scale)

    def fp4(self, module, rows, cols, gain=1.0):
        packed = self.random.integers(0, 256, (rows, cols // 2), np.uint8)
        scale = self.exponents((rows, cols // 32), gain * cols**-0.5 / 2.9)  # 2.9: of the 16 values alike
        if self.dequantised:
            self.bf16(module + ".weight", decode_fp4(packed, scale))
        else:
            self.out.add(module + ".weight", "I8", packed)
            self.out.add(module + ".scale", "F8_E8M0", scale)

    def hyper_connection(self, name, mixes, scales):
        c = self.config
        width = c["hc_mult"] * c["hidden_size"]
        self.f32(name + "_fn", self.values((mixes, width), width**-0.5))
        self.f32(name + "_base", self.values(mixes, 0.5))
        self.f32(name + "_scale", self.random.uniform(0.5, 1.5, scales))

    def compressor(self, name, ratio, width):
        c = self.config
        projected = width * (2 if ratio == 4 else 1)
        self.f32(name + ".ape", self.values((ratio, projected), 0.5))
        self.bf16(name + ".wkv.weight", self.values((projected, c["hidden_size"]), c["hidden_size"] ** -0.5))
        self.bf16(name + ".wgate.weight", self.values((projected, c["hidden_size"]), c["hidden_size"] ** -0.5))
        self.norm(name + ".norm.weight", width)

    def attention(self, name, ratio):
        c = self.config
        hidden, heads, dim = c["hidden_size"], c["num_attention_heads"], c["head_dim"]
        self.fp8(name + ".wq_a", c["q_lora_rank"], hidden)
        self.norm(name + ".q_norm.weight", c["q_lora_rank"])
        self.fp8(name + ".wq_b", heads * dim, c["q_lora_rank"])
        self.fp8(name + ".wkv", dim, hidden)
        self.norm(name + ".kv_norm.weight", dim)
        self.f32(name + ".attn_sink", self.values(heads, 1.0))
        self.fp8(name + ".wo_a", c["o_groups"] * c["o_lora_rank"], heads * dim // c["o_groups"])
        self.fp8(name + ".wo_b", hidden, c["o_groups"] * c["o_lora_rank"], self.branch_gain)
        if ratio:
            self.compressor(name + ".compressor", ratio, dim)
        if ratio == 4:
            self.fp8(name + ".indexer.wq_b", c["index_n_heads"] * c["index_head_dim"], c["q_lora_rank"])
            self.bf16(name + ".indexer.weights_proj.weight", self.values((c["index_n_heads"], hidden), hidden**-0.5))
            self.compressor(name + ".indexer.compressor", 4, c["index_head_dim"])

    def experts(self, name, hashed):
        c = self.config
        hidden, width, count = c["hidden_size"], c["moe_intermediate_size"], c["n_routed_experts"]
        self.bf16(name + ".gate.weight", self.values((count, hidden), 2 * hidden**-0.5))
        if hashed:
            ids = np.argsort(self.random.random((c["vocab_size"], count)), axis=1)[:, : c["num_experts_per_tok"]]
            ids[::7, 1] = ids[::7, 0]  # a row may name an expert twice
            self.out.add(name + ".gate.tid2eid", "I64", ids.astype(np.int64))
        else:
            self.f32(name + ".gate.bias", self.random.uniform(0.0, 0.3, count))
        for expert in range(count):
            self.fp4(f"{name}.experts.{expert}.w1", width, hidden)
            self.fp4(f"{name}.experts.{expert}.w3", width, hidden)
            self.fp4(f"{name}.experts.{expert}.w2", hidden, width, self.branch_gain)
        self.fp8(name + ".shared_experts.w1", width, hidden)
        self.fp8(name + ".shared_experts.w3", width, hidden)
        self.fp8(name + ".shared_experts.w2", hidden, width, self.branch_gain)

    def block(self, name, ratio, hashed):
        self.norm(name + ".attn_norm.weight", self.config["hidden_size"])
        self.norm(name + ".ffn_norm.weight", self.config["hidden_size"])
        for site in ("attn", "ffn"):
            self.hyper_connection(f"{name}.hc_{site}", self.config["hc_mult"] * (self.config["hc_mult"] + 2), 3)
        self.attention(name + ".attn", ratio)
        self.experts(name + ".ffn", hashed)

    def mtp_stages(self):
        hidden = self.config["hidden_size"]
        for stage in range(self.config["num_nextn_predict_layers"]):
            name = f"mtp.{stage}"
            self.block(name, 0, False)
            if self.foreseeable:
                self.fp8_codes(name + ".e_proj", np.eye(hidden, dtype=np.uint8) * np.uint8(E4M3_ONE), np.full((-(-hidden // 128),) * 2, E8M0_ONE, np.uint8))
            else:
                self.fp8(name + ".e_proj", hidden, hidden)
            self.fp8(name + ".h_proj", hidden, hidden, MTP_HIDDEN_GAIN if self.foreseeable else 1.0)
            for norm in ("enorm", "hnorm", "norm"):
                self.norm(f"{name}.{norm}.weight", hidden)
            self.hyper_connection(name + ".hc_head", self.config["hc_mult"], 1)

    def dspark_stages(self):
        c = self.config
        hidden, last = c["hidden_size"], f"mtp.{DSPARK_STAGES - 1}"
        for stage in range(DSPARK_STAGES):
            self.block(f"mtp.{stage}", 0, False)
        self.fp8("mtp.0.main_proj", hidden, len(c["dspark_target_layer_ids"]) * hidden)
        self.norm("mtp.0.main_norm.weight", hidden)
        self.norm(last + ".norm.weight", hidden)
        self.hyper_connection(last + ".hc_head", c["hc_mult"], 1)
        width = hidden + c["dspark_markov_rank"]
        self.bf16(last + ".confidence_head.proj.weight", self.values((1, width), 2 * width**-0.5))

    def markov_head(self, embedding, head):
        """The first columns of what follows a token where nothing but the token itself reaches the head."""
        rank, last = self.config["dspark_markov_rank"], f"mtp.{DSPARK_STAGES - 1}"
        self.bf16(last + ".markov_head.markov_w1.weight", embedding[:, :rank])
        self.bf16(last + ".markov_head.markov_w2.weight", head[:, :rank] * np.float32(DSPARK_MARKOV_GAIN))

    def model(self):
        c = self.config
        hidden, streams = c["hidden_size"], c["hc_mult"]
        embedding = self.values((c["vocab_size"], hidden), 1.0)
        self.bf16("embed.weight", embedding)
        for layer in range(c["num_hidden_layers"]):
            self.block(f"layers.{layer}", c["compress_ratios"][layer], layer < c["num_hash_layers"])
        if "dspark_block_size" in c:
            self.dspark_stages()
        else:
            self.mtp_stages()
        self.hyper_connection("hc_head", streams, 1)
        gains = self.norm("norm.weight", hidden)
        head = self.values((c["vocab_size"], hidden), 3 * hidden**-0.5)
        self.bf16("head.weight", head)
        if "dspark_block_size" in c:
            self.markov_head(embedding * gains.astype(np.float32), head)
        self.out.finish()


def write_tokenizer(folder, vocab_size):
    """One token a byte, the control tokens of the prompt format, and names for all other ids, so that any answer of random weights can
    be shown."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]  # the bytes that byte-level BPE writes as themselves
    letters, spare = {}, 256
    for byte in range(256):
        letters[chr(byte if byte in printable else spare)] = len(letters) + 2
        spare += byte not in printable
    ids = [0, 1, *range(258, vocab_size)]
    names = CONTROL_TOKENS + [f"<{token}>" for token in ids[len(CONTROL_TOKENS):]]
    added = [{"id": token, "content": name, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
              "special": name.startswith("<｜")} for token, name in zip(ids, names)]
    tokenizer = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": None,
                 "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
                 "post_processor": None, "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
                 "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                           "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "vocab": letters, "merges": []}}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer, ensure_ascii=False) + "\n")


def configuration(shape, drafter=None):
    """config.json of a shape; `drafter` one of DRAFTERS, None for what the shape has by itself."""
    config = {**COMMON, **SHAPES[shape]}
    if drafter is None:
        return config
    layers = config["num_hidden_layers"]
    stages = {"none": 0, "mtp": 1, "dspark": DSPARK_STAGES}[drafter]
    config["compress_ratios"] = config["compress_ratios"][:layers] + [0] * stages
    config["num_nextn_predict_layers"] = min(stages, 1)  # DSpark releases still say 1
    if drafter == "dspark":
        config["dspark_block_size"] = DSPARK_BLOCK
        config["dspark_noise_token_id"] = config["vocab_size"] - 1
        config["dspark_target_layer_ids"] = list(range(layers - DSPARK_TARGETS, layers))
        config["dspark_markov_rank"] = DSPARK_MARKOV_RANK.get(shape, 256)
    return config


def write(folder, shape="tiny", dequantised=False, seed=SEED, drafter=None):
    folder.mkdir(parents=True, exist_ok=True)
    config = configuration(shape, drafter)
    stored = dict(config)
    if dequantised:
        del stored["quantization_config"], stored["expert_dtype"]
    (folder / "config.json").write_text(json.dumps(stored, indent=1) + "\n")
    write_tokenizer(folder, config["vocab_size"])
    Writer(config, Checkpoint(folder), dequantised, seed, foreseeable=drafter in ("mtp", "dspark")).model()
    return config


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--shape", choices=SHAPES, default="tiny")
    parser.add_argument("--drafter", choices=DRAFTERS, help="one that is right now and then; default: the tiny shape has a random mtp, others none")
    parser.add_argument("--dequantised", action="store_true")
    parser.add_argument("--seed", type=int, default=SEED)
    arguments = parser.parse_args()
    if any(arguments.folder.glob("*.safetensors")):
        parser.error(f"{arguments.folder} holds a checkpoint already: remove it or name another folder")
    write(arguments.folder, arguments.shape, arguments.dequantised, arguments.seed, arguments.drafter)
    if arguments.shape.startswith("tiny"):
        import native_v4_parity

        native_v4_parity.write(arguments.folder)


if __name__ == "__main__":
    main()
