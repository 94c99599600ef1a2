"""`tandem eval matrix`: every placement, connector, transport and shape that the validator takes has the colocated logits' bits."""

import json
import subprocess

import pytest

from tests.conftest import ARITH, BINARY, ROOT

FAMILIES = ("deepseek_v2", "deepseek_v2_lite", "deepseek_v3", "deepseek_v4", "deepseek_v4_pro", "kimi_k2", "moonlight", "qwen3_moe", "mixtral", "granitemoe", "olmoe", "qwen2_moe", "glm4_moe", "glm4_moe_lite", "gpt_oss", "gpt_oss_bf16")


def matrix(model, *flags, status=0):
    done = subprocess.run([BINARY, "eval", "matrix", "--model", str(model), "--json", *flags], capture_output=True, text=True, timeout=3600)
    assert done.returncode == status, f"{done.stdout}\n{done.stderr}"
    return json.loads(done.stdout)


def check(report):
    assert report["different"] == report["failed"] == 0
    assert report["equal"] == len([cell for cell in report["ran"] if cell["state"] == "equal"]) > 0
    assert report["equal"] + report["refused"] + report["not_run"] == report["cells"]
    assert report["uncovered"] == []
    # Nothing is left out without a reason that says what would do.
    assert sum(refusal["cells"] for refusal in report["refusals"]) == report["refused"]
    assert all("use " in refusal["reason"] or "needs" in refusal["reason"] for refusal in report["refusals"]), report["refusals"]


def values(report, axis):
    return {cell[axis] for cell in report["ran"]}


def test_the_pruned_matrix_of_the_bundled_model_is_equal():
    report = matrix(ARITH)
    check(report)
    # A value that is refused in every cell would pass unseen.
    assert values(report, "transport") >= {"inproc", "shm", "tcp"}
    assert values(report, "connector") >= {"p2p", "m2n"}
    assert values(report, "gate") == values(report, "shared") == {"ffn", "attention"}
    assert values(report, "shape") >= {"1A1F", "1A4F"}
    assert report["prompts"] == 12, "eight of random ids, four questions of the folder"


@pytest.mark.parametrize("family", FAMILIES)
def test_each_family_is_equal_over_every_value(family):
    report = matrix(ROOT / "tests" / "fixtures" / family, "--cover", "values")
    check(report)
    assert report["prompts"] >= 6, "no tokenizer is needed"


def test_a_run_is_taken_up_again_from_its_file(tmp_path):
    model = ROOT / "tests" / "fixtures" / "mixtral"
    output = tmp_path / "matrix.jsonl"
    first = matrix(model, "--cover", "values", "--output", str(output))
    lines = output.read_text().splitlines()
    assert len(lines) == 1 + len(first["ran"])
    output.write_text("\n".join(lines[:-1]) + "\n")  # as if it had been killed before the last cell
    again = matrix(model, "--cover", "values", "--output", str(output))
    kept = [(cell["seconds"], cell["transport"], cell["shape"]) for cell in first["ran"]]
    same = [cell for cell in again["ran"] if (cell["seconds"], cell["transport"], cell["shape"]) in kept]
    assert len(again["ran"]) == len(first["ran"]) and len(same) == len(first["ran"]) - 1
    assert len(output.read_text().splitlines()) == len(lines)
    other = ROOT / "tests" / "fixtures" / "granitemoe"
    done = subprocess.run([BINARY, "eval", "matrix", "--model", str(other), "--output", str(output)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and "is of another run" in done.stderr, done.stderr


@pytest.mark.long
def test_every_triple_of_values_is_equal():
    check(matrix(ARITH, "--cover", "triples"))


@pytest.mark.long
@pytest.mark.parametrize("model", ("arith", "deepseek_v3"))
def test_the_full_matrix_is_equal(model):
    report = matrix(ARITH if model == "arith" else ROOT / "tests" / "fixtures" / model, "--full")
    check(report)
    assert report["not_run"] == 0
