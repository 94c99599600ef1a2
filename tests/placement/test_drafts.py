"""Drafts of the model's own drafter change no token and no bit, greedy and sampled, wherever its experts are."""

import json
import pathlib
import random
import shutil
import subprocess

import pytest

from tests.placement.test_bit_equality import BINARY, ROOT, outcome

MODEL = ROOT / "tests" / "fixtures" / "deepseek_v3_mtp"
ON = ["--speculative", "on"]
THREE = [*ON, "--num-speculative-tokens", "3"]
GRAPH = ["--execution", "graph", "--capture-sizes", "4,8,16"]
GATE = "--compute-gate-on-attention"
PLACEMENTS = {
    "colocated": [],
    "lanes": ["--micro-batches", "3", "--micro-batch-split", "token"],
    "small pool": ["--kv-cache-tokens", "320", "--max-num-batched-tokens", "20"],
    "graph": GRAPH,
    "shm": ["--ffn", "1", "--transport", "shm"],
    "tcp, gate and shared experts on attention": ["--ffn", "1", "--transport", "tcp", GATE],
    "p2p": ["--ffn", "2", "--transport", "shm"],
    "m2n, graph, lanes": ["--ffn", "2", "--transport", "shm", "--connector", "m2n", GATE, *GRAPH, "--micro-batches", "2"],
    "auto, slices": ["--ffn", "2", "--transport", "tcp", "--connector", "auto", GATE, "--placement", "slice"],
    "fp8": [GATE, "--activation-dtype", "fp8"],
}
# fp8 rounds what experts see: other bits than bf16, so it has its own run without drafts.
OWN_REFERENCE = {"fp8"}


@pytest.fixture(scope="module")
def prompts(tmp_path_factory):
    rng = random.Random(5)
    path = tmp_path_factory.mktemp("drafts") / "prompts.jsonl"
    with path.open("w") as file:
        for length in [1, 2, 15, 16, 17, 31, 33, 48, 5, 9]:
            print(json.dumps({"prompt_ids": [rng.randrange(96) for _ in range(length)]}), file=file)
    return path


def run(prompts, *flags, model=MODEL):
    command = [BINARY, "generate", "--model", str(model), "--prompts-file", str(prompts), "--json", "--ignore-eos", "--max-tokens", "24",
               "--max-context-tokens", "96", "--log-level", "warning", "--seed", "3", "--deterministic=true", *flags]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def without(prompts):
    known = {}

    def at(temperature, flags=()):
        key = (temperature, *flags)
        if key not in known:
            known[key] = run(prompts, "--speculative", "off", "--temperature", temperature, *flags)
            assert known[key]["execution"]["drafted"] == 0
        return known[key]

    return at


@pytest.mark.parametrize("temperature", ("0", "0.9"))
@pytest.mark.parametrize("placement", PLACEMENTS)
def test_drafts_change_no_bit(placement, temperature, prompts, without):
    flags = PLACEMENTS[placement]
    expected = outcome(without(temperature, flags if placement in OWN_REFERENCE else ()))
    for drafts in (ON, THREE, ["--speculative", "auto"]):
        drafted = run(prompts, *drafts, "--temperature", temperature, *flags)
        assert outcome(drafted) == expected, drafts
        counts = drafted["execution"]
        assert counts["drafted"] > counts["accepted"] > counts["drafted"] / 10, "right and wrong drafts"
        assert sum(counts["accepted_at"]) == counts["accepted"]
        assert (counts["accepted_at"][1] > 0) == (drafts == THREE)
        if "graph" in placement:
            assert counts["graph_replays"] > 0


@pytest.mark.parametrize("placement", ("colocated", "tcp, gate and shared experts on attention", "m2n, graph, lanes"))
def test_drafts_of_glm_change_no_bit(placement, prompts):
    """Another attention in the drafter's layer; what is around it is what the other tests vary."""
    model = ROOT / "tests" / "fixtures" / "glm4_moe_mtp"
    expected = outcome(run(prompts, "--speculative", "off", "--temperature", "0.9", model=model))
    for drafts in (ON, THREE):
        drafted = run(prompts, *drafts, "--temperature", "0.9", *PLACEMENTS[placement], model=model)
        assert outcome(drafted) == expected, drafts
        assert drafted["execution"]["drafted"] > drafted["execution"]["accepted"] > drafted["execution"]["drafted"] / 10


def test_drafts_save_steps(prompts, without):
    drafted = run(prompts, *ON, "--temperature", "0", "--one-by-one")
    plain = run(prompts, "--speculative", "off", "--temperature", "0", "--one-by-one")
    saved = plain["execution"]["eager_steps"] - drafted["execution"]["eager_steps"]
    assert saved == drafted["execution"]["accepted"] > 40


def test_what_cannot_draft_is_refused_by_name_or_done_without(prompts, tmp_path):
    def refusal(model):
        done = subprocess.run([BINARY, "generate", "--model", str(model), "--prompts-file", str(prompts), "--speculative", "on"], capture_output=True,
                              text=True, timeout=60)
        assert done.returncode != 0
        return done.stderr

    assert "engine.speculative: on: qwen3_moe brings no drafter" in refusal(ROOT / "tests" / "fixtures" / "qwen3_moe")
    # The config speaks of drafts and the files have none: as some repacks are.
    folder = tmp_path / "without"
    shutil.copytree(ROOT / "tests" / "fixtures" / "deepseek_v3", folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "num_nextn_predict_layers": 1}))
    assert "has no tensors model.layers.3.*" in refusal(folder)
    assert run(prompts, model=folder)["execution"]["drafted"] == 0
