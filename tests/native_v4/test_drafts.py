"""Multi-token prediction of DeepSeek-V4's released layout: its logits as an independent reading of the files has them, and
answers that it does not change."""

import json
import random

import pytest

from tests.native_v4 import files
from tests.native_v4.test_native_files import run

DRAFTERS = ("mtp", "dspark")
PLACEMENTS = {
    "colocated": [],
    "small pool": ["--kv-cache-tokens", "640", "--max-num-batched-tokens", "48"],
    "graph": ["--execution", "graph", "--capture-sizes", "4,16"],
    "shm": ["--ffn", "1", "--transport", "shm"],
    "m2n, lanes": ["--ffn", "2", "--transport", "shm", "--connector", "m2n", "--compute-gate-on-attention", "--micro-batches", "2",
                   "--micro-batch-split", "token"],
}


@pytest.fixture(scope="module")
def prompts(tmp_path_factory):
    rng = random.Random(2)
    path = tmp_path_factory.mktemp("drafts") / "prompts.jsonl"
    with path.open("w") as file:
        for length in (1, 15, 16, 17, 127, 128, 129, 150):
            print(json.dumps({"prompt_ids": [rng.randrange(96) for _ in range(length)]}), file=file)
    return path


def generate(model, prompts, *flags, statuses=(0,)):
    return run("generate", "--model", model, "--prompts-file", prompts, "--json", "--ignore-eos", "--max-tokens", "24", "--max-context-tokens",
               "192", "--log-level", "warning", "--seed", "3", "--temperature", "0.7", "--deterministic=true", *flags, statuses=statuses)


# Of each drafter, tensors without which its rows are others.
SEEN = {
    None: ("mtp.0.hnorm.weight",),
    "dspark": ("mtp.0.main_norm.weight", "mtp.1.attn.kv_norm.weight", "mtp.2.ffn.gate.bias", "mtp.2.norm.weight",
               "mtp.2.markov_head.markov_w1.weight", "mtp.2.confidence_head.proj.weight"),
}


@pytest.mark.parametrize("drafter", SEEN)
def test_the_drafters_logits_equal_those_of_an_independent_reading(drafter, with_reference, tmp_path):
    native = with_reference(drafter)
    tensors = (native / "parity.safetensors").read_bytes()[:20000]
    assert (b"dspark_logits" if drafter == "dspark" else b"draft_logits") in tensors
    assert json.loads(run("eval", "parity", native, "--json").stdout)["passed"] is True
    # The comparison sees the drafter: of a file whose drafter is another it fails, and nothing else has changed.
    for name in SEEN[drafter]:
        checkpoint = files.Files(native)
        dtype, shape, data = checkpoint.tensors[name]
        size = files.ELEMENT_BYTES[dtype]
        checkpoint.tensors[name] = (dtype, shape, b"".join(data[at:at + size] for at in range(len(data) - size, -1, -size)))
        folder = tmp_path / name
        checkpoint.write(folder)
        for copied in ("parity.safetensors", "parity.json"):
            (folder / copied).write_bytes((native / copied).read_bytes())
        report = json.loads(run("eval", "parity", folder, "--json", statuses=(1,)).stdout)
        assert report["passed"] is False and report["differing_router_rows"] == 0, name


@pytest.mark.parametrize("placement", PLACEMENTS)
@pytest.mark.parametrize("drafter", DRAFTERS)
def test_drafts_change_no_bit(drafter, placement, with_drafter, prompts):
    def outcome(*flags):
        document = json.loads(generate(with_drafter(drafter), prompts, *PLACEMENTS[placement], *flags).stdout)
        return [(answer["tokens"], answer["logits_hash"]) for answer in document["answers"]], document["execution"]

    expected, plain = outcome("--speculative", "off")
    assert plain["drafted"] == 0
    for flags in (["--speculative", "on"], ["--speculative", "on", "--num-speculative-tokens", "3"]):
        got, ran = outcome(*flags)
        assert got == expected
        assert ran["drafted"] > 100
        assert ran["drafted"] > ran["accepted"] > 10, "right and wrong drafts"


def test_a_missing_tensor_is_named_with_the_setting_that_does_without(native, prompts, tmp_path):
    checkpoint = files.Files(native)
    del checkpoint.tensors["mtp.0.enorm.weight"]
    checkpoint.write(tmp_path / "less")
    refused = generate(tmp_path / "less", prompts, statuses=(1, 2)).stderr
    assert "tensor 'mtp.0.enorm.weight'" in refused and "speculative: off does without" in refused
    generate(tmp_path / "less", prompts, "--speculative", "off")
