"""generate --prompts-file -: a process that holds the model and answers each line before it reads the next."""

import json
import subprocess

import pytest

from tests.conftest import ARITH, BINARY


@pytest.fixture
def lines():
    process = subprocess.Popen([BINARY, "generate", "--model", str(ARITH), "--prompts-file", "-", "--json", "--ignore-eos", "--max-tokens", "3",
                                "--log-level", "error"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    yield process
    process.kill()
    process.wait()


def ask(process, line):
    process.stdin.write((line if isinstance(line, str) else json.dumps(line)) + "\n")
    process.stdin.flush()
    return json.loads(process.stdout.readline())


def test_a_line_is_answered_before_the_next_one_is_written(lines):
    one = ask(lines, {"prompt": "2+2="})["answers"]
    assert [len(answer["tokens"]) for answer in one] == [3]
    batch = ask(lines, [{"prompt": "2+2=", "max_tokens": 5}, {"prompt_ids": [5, 6, 7]}])["answers"]
    assert [len(answer["tokens"]) for answer in batch] == [5, 3]
    assert batch[0]["tokens"][:3] == one[0]["tokens"]
    lines.stdin.close()
    assert lines.wait(timeout=60) == 0 and lines.stdout.read() == ""


def test_a_refused_line_is_named_and_the_next_one_answered(lines):
    for line, message in (("{", "standard input line 1: not an object with prompt or prompt_ids"),
                          ([], "standard input line 2: a list without prompts"),
                          ({"prompt_ids": [1.5]}, "standard input line 3: 1.5 is not a token id"),
                          ({"prompt": "x", "max_tokens": 0}, "standard input line 4: max_tokens 0 is not a positive whole number")):
        assert ask(lines, line)["error"].startswith(message)
    assert len(ask(lines, {"prompt": "2+2="})["answers"][0]["tokens"]) == 3
    lines.stdin.close()
    assert lines.wait(timeout=60) == 1
    assert "line 4: max_tokens 0" in lines.stderr.read()
