"""The committed fixtures are complete and agree with their configs. Needs the standard library only."""

import json
import struct
from pathlib import Path

import pytest

from fixture_families import FAMILIES, SHARDED, dense_layers

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
    assert ("lm_head.weight" in tensors) != config["tie_word_embeddings"]
    for name, (entry, _) in tensors.items():
        wide = "e_score_correction_bias" in name and family != "moonlight"
        assert entry["dtype"] == ("F32" if wide else "BF16"), name
    for layer in range(config["num_hidden_layers"]):
        has_experts = any(name.startswith(f"model.layers.{layer}.") and (".experts." in name or ".input_linear." in name)
                          for name in tensors)
        assert has_experts == (layer not in dense_layers(config)), layer


@pytest.mark.parametrize("family", FAMILIES)
def test_parity_shapes(family):
    folder, config = FIXTURES / family, FAMILIES[family][1]
    parity, tensors = json.loads((folder / "parity.json").read_text()), header(folder / "parity.safetensors")
    vocab, steps, top_k = config["vocab_size"], parity["greedy_steps"], config["num_experts_per_tok"]
    assert [prompt["length"] for prompt in parity["prompts"]] == [1, 7, 33, 70]
    assert parity["moe_layers"] == sorted(set(range(config["num_hidden_layers"])) - set(dense_layers(config)))
    want = {}
    for number, length in enumerate(prompt["length"] for prompt in parity["prompts"]):
        want.update({f"prompt.{number}.ids": ("I32", [length]), f"prompt.{number}.logits": ("F32", [length, vocab]),
                     f"prompt.{number}.greedy_ids": ("I32", [steps]), f"prompt.{number}.greedy_logits": ("F32", [steps, vocab])})
        for layer in parity["moe_layers"]:
            want[f"prompt.{number}.layer.{layer}.router_ids"] = ("I32", [length, top_k])
            want[f"prompt.{number}.layer.{layer}.router_weights"] = ("F32", [length, top_k])
    assert {name: (entry["dtype"], entry["shape"]) for name, entry in tensors.items()} == want
