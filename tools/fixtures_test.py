"""The committed fixtures are complete and agree with their configs. Needs the standard library only."""

import json
import struct
from pathlib import Path

import pytest

from fixture_families import FAMILIES, PROMPTS, SHARDED, TRANSFORMERS_NAMES, dense_layers

FIXTURES = Path(__file__).resolve().parent.parent / "tests" / "fixtures"


def header(path):
    with open(path, "rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        return {k: v for k, v in json.loads(file.read(length)).items() if k != "__metadata__"}


@pytest.mark.parametrize("family", FAMILIES)
def test_config_and_weights(family):
    folder, config = FIXTURES / family, FAMILIES[family][1]
    assert json.loads((folder / "config.json").read_text()) == config
    files = sorted(folder.glob("model*.safetensors"))
    assert len(files) == SHARDED.get(family, 1)
    tensors = {name: (entry, file.name) for file in files for name, entry in header(file).items()}
    if len(files) > 1:
        index = json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"]
        assert index == {name: file for name, (_, file) in tensors.items()}
    if family.startswith("deepseek_v4"):
        return check_deepseek_v4(family, config, {name: entry for name, (entry, _) in tensors.items()})
    assert ("lm_head.weight" in tensors) != config["tie_word_embeddings"]
    for name, (entry, _) in tensors.items():
        wide = "e_score_correction_bias" in name and family != "moonlight"
        codes = name.endswith(("_blocks", "_scales"))  # gpt-oss: mxfp4
        assert entry["dtype"] == ("U8" if codes else "F32" if wide else "BF16"), name
        assert not codes or family == "gpt_oss", name
    for layer in range(config["num_hidden_layers"]):
        has_experts = any(name.startswith(f"model.layers.{layer}.") and (".experts." in name or ".input_linear." in name)
                          for name in tensors)
        assert has_experts == (layer not in dense_layers(config)), layer


def check_deepseek_v4(family, config, tensors):
    """Kinds of layers and dtypes as in the released files."""
    prefix = "model.layers" if family in TRANSFORMERS_NAMES else "layers"
    for name, entry in tensors.items():
        part = name.split(".")[-1]
        wide = part in ("ape", "attn_sink") or name.endswith("gate.bias") or part.startswith("hc_")
        assert entry["dtype"] == ("I64" if part == "tid2eid" else "F32" if wide else "BF16"), name
    for layer, ratio in enumerate(config["compress_ratios"][:config["num_hidden_layers"]]):
        name = f"{prefix}.{layer}"
        assert (f"{name}.attn.compressor.ape" in tensors) == (ratio != 0)
        assert (f"{name}.attn.indexer.wq_b.weight" in tensors) == (ratio == 4)
        assert (f"{name}.ffn.gate.tid2eid" in tensors) == (layer < config["num_hash_layers"])
        assert (f"{name}.ffn.gate.bias" in tensors) == (layer >= config["num_hash_layers"])
        assert tensors[f"{name}.hc_attn_fn"]["shape"] == [24, 4 * config["hidden_size"]]


@pytest.mark.parametrize("family", FAMILIES)
def test_parity_shapes(family):
    folder, config = FIXTURES / family, FAMILIES[family][1]
    parity, tensors = json.loads((folder / "parity.json").read_text()), header(folder / "parity.safetensors")
    vocab, steps, top_k = config["vocab_size"], parity["greedy_steps"], config["num_experts_per_tok"]
    lengths = [prompt["length"] for prompt in parity["prompts"]]
    assert (tuple(lengths), steps) == PROMPTS.get(family, ((1, 7, 33, 70), 32))
    assert parity["moe_layers"] == sorted(set(range(config["num_hidden_layers"])) - set(dense_layers(config)))
    want = {}
    for number, length in enumerate(lengths):
        want.update({f"prompt.{number}.ids": ("I32", [length]), f"prompt.{number}.logits": ("F32", [length, vocab]),
                     f"prompt.{number}.greedy_ids": ("I32", [steps]), f"prompt.{number}.greedy_logits": ("F32", [steps, vocab])})
        for layer in parity["moe_layers"]:
            want[f"prompt.{number}.layer.{layer}.router_ids"] = ("I32", [length, top_k])
            want[f"prompt.{number}.layer.{layer}.router_weights"] = ("F32", [length, top_k])
    assert {name: (entry["dtype"], entry["shape"]) for name, entry in tensors.items()} == want
