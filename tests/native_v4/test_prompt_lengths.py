"""Prompts around the window of 128 tokens and one in chunks: eager and in graph mode, with and without drafts of either drafter,
colocated and split, greedy and sampled, the answers are those of one colocated eager run, token for token and bit for bit."""

import itertools
import json
import random

import pytest

from tests.native_v4.test_native_files import run

LENGTHS = (1, 127, 128, 129, 513)
SHAPE = "tiny-128"  # the window that released models have
CHUNK = 100  # rows of a prefill step: divides none of the lengths, and no block of tokens
DRAFTERS = ("mtp", "dspark")
EXECUTIONS = {"eager": [], "graph": ["--execution", "graph", "--capture-sizes", "4,16,32"]}
PLACEMENTS = {
    "colocated": [],
    "1A1F, shm": ["--ffn", "1", "--transport", "shm"],
    "1A2F, shm": ["--ffn", "2", "--transport", "shm"],
}
EXACT = ["--deterministic=true"]
# Two FFN ranks add their sums up in another order than one does.
DEFAULT_SUMS = {"colocated", "1A1F, shm"}
TEMPERATURES = ("0", "0.7")


@pytest.fixture(scope="module")
def prompts(tmp_path_factory):
    rng = random.Random(7)
    path = tmp_path_factory.mktemp("prompts") / "prompts.jsonl"
    with path.open("w") as file:
        for length in LENGTHS:
            print(json.dumps({"prompt_ids": [rng.randrange(2, 320) for _ in range(length)]}), file=file)
    return path


def generate(folder, prompts, *flags):
    document = json.loads(run("generate", "--model", folder, "--prompts-file", prompts, "--json", "--ignore-eos", "--max-tokens", "16",
                              "--max-context-tokens", "576", "--log-level", "error", "--seed", "3", *flags).stdout)
    return [(answer["tokens"], answer["logits_hash"]) for answer in document["answers"]], document["execution"]


@pytest.fixture(scope="module")
def reference(with_drafter, prompts):
    """Colocated, eager, no drafts, every prompt by itself and in one piece."""
    known = {}

    def of(drafter, *flags):
        if (drafter, *flags) not in known:
            known[drafter, *flags], ran = generate(with_drafter(drafter, SHAPE), prompts, "--speculative", "off", "--one-by-one", "--max-num-batched-tokens", "1024",
                                                   *flags)
            assert ran["drafted"] == ran["graph_replays"] == 0
        return known[drafter, *flags]

    return of


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_logits_and_drafts_of_these_lengths_equal_those_of_an_independent_reading(drafter, with_reference):
    folder = with_reference(drafter, SHAPE, prompt_lengths=(*LENGTHS[:-1], 300), greedy_steps=2)
    report = json.loads(run("eval", "parity", folder, "--json").stdout)
    assert report["passed"] is True and len(report["prompts"]) == len(LENGTHS), report


@pytest.mark.parametrize("execution", EXECUTIONS)
@pytest.mark.parametrize("placement", PLACEMENTS)
@pytest.mark.parametrize("drafter", DRAFTERS)
def test_answers_are_equal_however_they_are_computed(drafter, placement, execution, with_drafter, prompts, reference):
    sums = [EXACT, []] if placement in DEFAULT_SUMS else [EXACT]
    for temperature, kind, drafts in itertools.product(TEMPERATURES, sums, ("off", "on")):
        flags = ["--temperature", temperature, *kind]
        expected = reference(drafter, *flags)
        assert len({logits_hash for _, logits_hash in expected}) == len(LENGTHS)
        got, ran = generate(with_drafter(drafter, SHAPE), prompts, "--speculative", drafts, "--max-num-batched-tokens", CHUNK, *flags, *PLACEMENTS[placement],
                            *EXECUTIONS[execution])
        assert got == expected, (flags, drafts)
        assert (ran["graph_replays"] > 0) == (execution == "graph")
        if drafts == "on":
            assert ran["drafted"] > ran["accepted"] > 0, "right and wrong drafts"
        else:
            assert ran["drafted"] == 0
