"""Decode at a context whose keys and values nobody computed: of each prompt one row is, in every kind of cache and placement."""

import json

import pytest

from tests.cli.test_usage import run
from tests.conftest import ARITH, ROOT

FIXTURES = ROOT / "tests" / "fixtures"


def decode(*flags):
    done = run("bench", "decode", "--synthetic-kv", "--threads", "1", "--runs", "1", "--json", *flags)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


# Latents; heads in bf16 and in codes; windows and compressed entries of two ratios; a rank of experts.
@pytest.mark.parametrize("flags", [
    ("--model", str(ARITH), "--batch", "1,12", "--context", "1024"),
    ("--model", str(ARITH), "--batch", "3", "--context", "1024", "--ffn", "1", "--transport", "shm"),
    ("--model", str(ARITH), "--batch", "4", "--context", "700", "--attention", "2", "--ffn", "1", "--transport", "shm"),
    ("--model", str(FIXTURES / "mixtral"), "--batch", "2", "--context", "90"),
    ("--model", str(FIXTURES / "mixtral"), "--batch", "2", "--context", "90", "--kv-cache-dtype", "fp8"),
    ("--model", str(FIXTURES / "deepseek_v4"), "--batch", "2", "--context", "200"),
], ids=lambda flags: " ".join(flags[1:])[-60:])
def test_every_kind_of_cache_decodes(flags):
    done = decode(*flags)
    assert done["synthetic_kv"] and done["decoded_tokens"] == 8
    assert [case["batch"] for case in done["cases"]] == [int(count) for count in flags[3].split(",")]
    assert all(case["tokens_per_second"] > 0 and case["milliseconds"] > 0 for case in done["cases"])


def test_one_row_of_a_prompt_is_computed(tmp_path):
    prompt = tmp_path / "prompts.jsonl"
    prompt.write_text(json.dumps({"prompt_ids": [7] * 900}) + "\n")

    def steps(*flags):
        done = run("generate", "--model", str(ARITH), "--prompts-file", str(prompt), "--max-tokens", "3", "--ignore-eos", "--json",
                   "--max-num-batched-tokens", "100", *flags)
        assert done.returncode == 0, done.stderr
        document = json.loads(done.stdout)
        assert document["answers"][0]["prompt_tokens"] == 900 and len(document["answers"][0]["tokens"]) == 3
        return document["execution"]["eager_steps"]

    # The prompt's last token, and two tokens that were decoded; or nine chunks of the prompt before them.
    assert steps("--synthetic-kv") == 1 + 2
    assert steps() == 9 + 2


def test_text_says_which_it_was():
    done = run("bench", "decode", "--model", str(ARITH), "--context", "64", "--runs", "1", "--log-level", "info")
    assert done.returncode == 0 and "computed prompts; 8 decoded tokens" in done.stdout, done.stderr
    assert "benchmarks" not in done.stderr
    made_up = run("bench", "decode", "--model", str(ARITH), "--context", "64", "--runs", "1", "--synthetic-kv", "--log-level", "info")
    assert "synthetic keys and values" in made_up.stdout and "no answer means anything" in made_up.stderr
