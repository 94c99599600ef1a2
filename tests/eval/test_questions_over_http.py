"""`tandem eval gsm8k` against a server, taken up again, and `tandem eval compare` of what it wrote."""

import json
import subprocess

import pytest

from tests.conftest import ARITH, BINARY

HELDOUT = ARITH / "heldout.jsonl"
COUNT = 60


@pytest.fixture(scope="module")
def server(tandem_server):
    return tandem_server("serve")


def evaluate(*flags, status=0, command="gsm8k"):
    done = subprocess.run([BINARY, "eval", command, *map(str, flags)], capture_output=True, text=True, timeout=120)
    assert done.returncode == status, (done.returncode, done.stdout, done.stderr)
    return done


def answers(path):
    return {line["index"]: line for line in map(json.loads, path.read_text().splitlines())}


@pytest.fixture(scope="module")
def outputs(server, tmp_path_factory):
    folder = tmp_path_factory.mktemp("answers")
    common = ("--data", HELDOUT, "--limit", COUNT, "--json")
    remote = json.loads(evaluate(*common, "--base-url", server.url, "--concurrency", 16, "--output", folder / "remote.jsonl").stdout)
    local = json.loads(evaluate(*common, "--model", ARITH, "--output", folder / "local.jsonl").stdout)
    return folder, remote, local


def test_a_server_answers_as_ranks_of_this_host_do(outputs, server):
    folder, remote, local = outputs
    assert remote["failed_requests"] == 0 and remote["url"] == server.url and remote["model"] == "arith"
    assert remote["correct"] == local["correct"] >= 0.9 * COUNT
    assert remote["generated_tokens"] == local["generated_tokens"] > 0
    there, here = answers(folder / "remote.jsonl"), answers(folder / "local.jsonl")
    assert there.keys() == here.keys() == set(range(COUNT))
    assert all(there[index]["answer"] == here[index]["answer"] for index in here)


def test_a_run_that_was_broken_off_goes_on(outputs, server, tmp_path):
    whole = (outputs[0] / "remote.jsonl").read_text().splitlines(keepends=True)
    failed = json.loads(whole[1])
    failed["error"] = "status 503: a peer is lost"
    part = tmp_path / "part.jsonl"
    part.write_text("".join(whole[:30]) + json.dumps(failed) + "\n" + whole[31][:40])
    kept = [json.loads(line)["index"] for line in whole[:30]]
    done = json.loads(evaluate("--data", HELDOUT, "--limit", COUNT, "--json", "--base-url", server.url, "--output", part, "--resume").stdout)
    assert done["resumed"] == len(set(kept)) == 30
    assert done["questions"] == COUNT and done["correct"] == outputs[1]["correct"]
    assert {index: line["answer"] for index, line in answers(part).items()} == {
        index: line["answer"] for index, line in answers(outputs[0] / "remote.jsonl").items()}
    assert [line["error"] for line in answers(part).values()] == [""] * COUNT
    wrong = evaluate("--data", HELDOUT, "--limit", 3, "--base-url", server.url, "--output", part, "--resume", status=1)
    assert "part.jsonl line" in wrong.stderr and "not a question of this data" in wrong.stderr
    assert len(answers(part)) == COUNT  # a file that is refused stays as it was


def test_examples_stand_before_the_question(server):
    def prompt_tokens():
        return server.metrics()["tandem_prompt_tokens_total"]

    def asked(*flags):
        before = prompt_tokens()
        evaluate("--data", HELDOUT, "--limit", 4, "--base-url", server.url, *flags)
        return prompt_tokens() - before

    alone = asked()
    assert asked("--num-fewshot", 3, "--fewshot-data", HELDOUT) > 3 * alone


def test_compare(outputs):
    folder = outputs[0]
    same = json.loads(evaluate(folder / "remote.jsonl", folder / "local.jsonl", "--json", command="compare").stdout)
    assert (same["questions"], same["same_text"], same["agreement"], same["mcnemar_p"]) == (COUNT, COUNT, 1.0, 1.0)
    text = evaluate(folder / "remote.jsonl", folder / "local.jsonl", command="compare").stdout
    assert f"{COUNT} questions of both" in text and "McNemar's exact test: p = 1 of 0" in text


@pytest.mark.parametrize("flags,command,expected", [
    (["--base-url", "http://127.0.0.1:9", "--data", HELDOUT], "gsm8k", "no connection"),
    (["--base-url", "nowhere", "--data", HELDOUT], "gsm8k", "'nowhere': not a URL of http or https"),
    (["--model", ARITH, "--data", HELDOUT, "--num-fewshot", 2], "gsm8k", "eval.fewshot_data: no file for 2 examples"),
    (["--model", ARITH, "--data", HELDOUT, "--resume"], "gsm8k", "eval.resume: no file to go on from"),
    ([HELDOUT], "compare", "eval.files: 1 files; name two outputs of tandem eval gsm8k"),
    ([HELDOUT, HELDOUT], "compare", "heldout.jsonl line 1: not an answer of tandem eval gsm8k --output"),
])
def test_refused_by_name(flags, command, expected):
    status = 1 if expected == "no connection" else 2
    assert expected in evaluate(*flags, status=status, command=command).stderr
