"""Checkpoints whose weights are codes with scales (fp8 as in DeepSeek-V3, fp4 experts as in V4) stay packed as they are stored: every
placement has the bits of the colocated run, slices that begin inside a block of scales too."""

import json
import math
import pathlib
import random
import struct
import subprocess

import pytest

from .test_bit_equality import BINARY, outcome

ROOT = pathlib.Path(__file__).resolve().parents[2]
HIDDEN, INTERMEDIATE, EXPERTS, VOCAB = 200, 192, 8, 96
CONFIG = json.loads((ROOT / "tests" / "fixtures" / "deepseek_v3" / "config.json").read_text()) | {
    "hidden_size": HIDDEN, "moe_intermediate_size": INTERMEDIATE, "intermediate_size": 150, "num_hidden_layers": 3, "q_lora_rank": 72,
    "n_routed_experts": EXPERTS, "num_experts_per_tok": 3, "vocab_size": VOCAB,
    "quantization_config": {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]}}


def blocks(count, size):
    return -(-count // size)


class Writer:
    def __init__(self, style):
        self.style, self.rng, self.tensors = style, random.Random(5), {}

    def floats(self, name, *shape, scale=1.0, offset=0.0):
        count = math.prod(shape)
        values = [offset + self.rng.uniform(-scale, scale) for _ in range(count)]
        self.tensors[name] = ("F32", shape, struct.pack(f"<{count}f", *values))

    def matrix(self, module, rows, cols):
        if self.style == "fp4" and ".experts." in module:
            self.tensors[module + ".weight"] = ("I8", (rows, cols // 2), self.rng.randbytes(rows * cols // 2))
            count = blocks(cols, 32)
            self.tensors[module + ".scale"] = ("F8_E8M0", (rows, count), bytes(self.rng.choices((119, 120, 121, 122), k=rows * count)))
            return
        codes = bytes(code if code & 0x7F != 0x7F else 0 for code in self.rng.randbytes(rows * cols))
        self.tensors[module + ".weight"] = ("F8_E4M3", (rows, cols), codes)
        shape = blocks(rows, 128), blocks(cols, 128)
        count = math.prod(shape)
        if self.style == "fp4":
            self.tensors[module + ".scale"] = ("F8_E8M0", shape, bytes(self.rng.choices((113, 114, 115), k=count)))
        else:
            scales = [self.rng.uniform(1, 4) * 2**-13 for _ in range(count)]
            self.tensors[module + ".weight_scale_inv"] = ("F32", shape, struct.pack(f"<{count}f", *scales))

    def mlp(self, module, width):
        self.matrix(module + ".gate_proj", width, HIDDEN)
        self.matrix(module + ".up_proj", width, HIDDEN)
        self.matrix(module + ".down_proj", HIDDEN, width)

    def write(self, folder):
        self.floats("model.embed_tokens.weight", VOCAB, HIDDEN)
        self.floats("lm_head.weight", VOCAB, HIDDEN, scale=0.2)
        self.floats("model.norm.weight", HIDDEN, scale=0.2, offset=1)
        for layer in range(3):
            prefix = f"model.layers.{layer}."
            for name in ("input_layernorm", "post_attention_layernorm"):
                self.floats(f"{prefix}{name}.weight", HIDDEN, scale=0.2, offset=1)
            attention, heads = prefix + "self_attn.", 4
            self.matrix(attention + "q_a_proj", 72, HIDDEN)
            self.floats(attention + "q_a_layernorm.weight", 72, scale=0.2, offset=1)
            self.matrix(attention + "q_b_proj", heads * 32, 72)
            self.matrix(attention + "kv_a_proj_with_mqa", 32 + 16, HIDDEN)
            self.floats(attention + "kv_a_layernorm.weight", 32, scale=0.2, offset=1)
            self.matrix(attention + "kv_b_proj", heads * (16 + 24), 32)
            self.matrix(attention + "o_proj", HIDDEN, heads * 24)
            if layer == 0:
                self.mlp(prefix + "mlp", 150)
                continue
            self.floats(prefix + "mlp.gate.weight", EXPERTS, HIDDEN)
            self.floats(prefix + "mlp.gate.e_score_correction_bias", EXPERTS, scale=0.1)
            self.mlp(prefix + "mlp.shared_experts", INTERMEDIATE)
            for expert in range(EXPERTS):
                self.mlp(f"{prefix}mlp.experts.{expert}", INTERMEDIATE)
        header, data = {}, b""
        for name, (dtype, shape, values) in self.tensors.items():
            header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [len(data), len(data) + len(values)]}
            data += values
        text = json.dumps(header).encode()
        (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)
        (folder / "config.json").write_text(json.dumps(CONFIG))


@pytest.fixture(scope="module", params=("fp8", "fp4"))
def checkpoint(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    Writer(request.param).write(folder)
    rng = random.Random(7)
    with (folder / "prompts.jsonl").open("w") as file:
        for length in (1, 2, 3, 5, 8, 13, 21, 34):
            print(json.dumps({"prompt_ids": [rng.randrange(VOCAB) for _ in range(length)]}), file=file)
    return request.param, folder


def generate(folder, *flags, deterministic=True, level="warning"):
    command = [BINARY, "generate", "--model", str(folder), "--prompts-file", str(folder / "prompts.jsonl"), "--deterministic=" + str(deterministic).lower(),
               "--json", "--ignore-eos", "--max-tokens", "5", "--max-context-tokens", "64", "--log-level", level, *flags]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), done.stderr


PLACEMENTS = {
    "one": ("--ffn", "1"),
    "gate": ("--ffn", "1", "--compute-gate-on-attention"),
    "graph": ("--ffn", "1", "--execution", "graph"),
    "m2n": ("--ffn", "3", "--connector", "m2n", "--compute-gate-on-attention"),
    "exchange": ("--ffn", "2"),
    "slices": ("--ffn", "4", "--placement", "slice", "--connector", "m2n", "--compute-gate-on-attention"),
    "hybrid": ("--ffn", "4", "--placement", "hybrid", "--connector", "m2n", "--compute-gate-on-attention"),
}


def test_every_placement_has_the_bits_of_the_colocated_run(checkpoint):
    kind, folder = checkpoint
    colocated, log = generate(folder, level="info")
    formats = log[log.index("packed as ") :].splitlines()[0]
    assert "fp8_block " in formats and ("mxfp4 " in formats) == (kind == "fp4"), formats
    assert len({answer["logits_hash"] for answer in colocated["answers"]}) == 8, "the hash must depend on the prompt"
    for flags in (("--one-by-one",), ("--max-num-batched-tokens", "7", "--max-num-seqs", "3")):
        assert outcome(generate(folder, *flags)[0]) == outcome(colocated), flags
    for name, flags in PLACEMENTS.items():
        split, _ = generate(folder, *flags, "--transport", "shm")
        assert outcome(split) == outcome(colocated), name


def test_a_dequantised_copy_has_the_same_bits_where_scales_are_powers_of_two(checkpoint):
    kind, folder = checkpoint
    for deterministic in (True, False):
        stored, _ = generate(folder, deterministic=deterministic)
        copy, log = generate(folder, "--weights", "dequantized", deterministic=deterministic, level="info")
        assert "become bf16 (as asked)" in log
        assert (outcome(copy) == outcome(stored)) == (kind == "fp4")
        one_rank, _ = generate(folder, "--ffn", "1", "--weights", "dequantized", "--transport", "shm", deterministic=deterministic)
        assert outcome(one_rank) == outcome(copy)
