"""The bundled model solves its held-out problems, equally many in every placement, and both commands of the README run."""

import json
import subprocess

import pytest

from tests.conftest import ARITH, BINARY, ROOT


def evaluate(*flags):
    done = subprocess.run([BINARY, "eval", "gsm8k", "--model", str(ARITH), "--data", str(ARITH / "heldout.jsonl"), "--json", *flags],
                          capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def colocated(tmp_path_factory):
    output = tmp_path_factory.mktemp("eval") / "answers.jsonl"
    result = evaluate("--output", str(output))
    answers = [json.loads(line) for line in output.read_text().splitlines()]
    assert len(answers) == result["questions"] == 500
    assert sum(answer["correct"] for answer in answers) == result["correct"]
    return result


def test_nine_of_ten_held_out_problems_are_solved(colocated):
    assert colocated["failed_requests"] == 0
    assert colocated["accuracy"] >= 0.9


@pytest.mark.parametrize("transport", ("inproc", "shm", "tcp"))
@pytest.mark.parametrize("gate", ("false", "true"))
@pytest.mark.parametrize("shared", ("false", "true"))
def test_every_placement_solves_as_many(transport, gate, shared, colocated):
    split = evaluate("--ffn", "1", "--transport", transport, f"--compute-gate-on-attention={gate}",
                     f"--compute-shared-experts-on-attention={shared}")
    assert split["failed_requests"] == 0
    assert split["correct"] == colocated["correct"]


def test_up_answers_one_question_and_ends():
    done = subprocess.run([BINARY, "up", "--model", str(ARITH), "--once"], capture_output=True, text=True, timeout=120, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert "attention" in done.stdout and "ffn" in done.stdout and "tokens/s" in done.stdout
    assert "#### " in done.stdout


def test_up_says_the_same_as_json():
    done = subprocess.run([BINARY, "up", "--model", str(ARITH), "--once", "--json"], capture_output=True, text=True, timeout=120, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    ranks, sample = (json.loads(line) for line in done.stdout.splitlines())
    assert [rank["role"] for rank in ranks["ranks"]] == ["attention", "ffn"]
    assert "#### " in sample["answer"] and sample["tokens_per_second"] > 0
