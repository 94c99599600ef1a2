"""engine.qat_simulation against a reference of the whole model that rounds keys, entries and the indexer's vectors by tables."""

import json

import pytest

from tests.native_v4 import files
from tests.native_v4.test_native_files import run

LENGTHS = (17, 40, 60, 130)  # beyond the window; the indexer chooses; an entry of 128 tokens


@pytest.fixture(scope="module")
def rounding(tmp_path_factory):
    folder = files.make(tmp_path_factory.mktemp("native_v4") / "model", drafter="none")
    files.native_v4_parity.write(folder, LENGTHS, greedy_steps=2, qat_simulation=True)
    return folder


def test_logits_equal_those_of_a_reference_that_rounds_as_training_did(rounding):
    report = json.loads(run("eval", "parity", rounding, "--qat-simulation", "--json").stdout)
    assert report["passed"] is True and report["max_logit_difference_allowed"] == 0.05, report
    # Where no value lies on the edge between two codes nothing but the order of sums differs.
    assert min(prompt["prefill_difference"] for prompt in report["prompts"]) < 1e-3, report


def test_without_the_rounding_they_are_far_away(rounding):
    report = json.loads(run("eval", "parity", rounding, "--json", statuses=(1,)).stdout)
    assert min(prompt["prefill_difference"] for prompt in report["prompts"]) > 0.3, report
