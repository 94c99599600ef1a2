"""Prompts that go on from what earlier ones computed have the bits of prompts that are computed whole."""

import json
import random
import subprocess

import pytest

from tests.placement.test_bit_equality import BINARY, ROOT, outcome

GATE = "--compute-gate-on-attention"
FIXTURES = ROOT / "tests" / "fixtures"
CASES = {
    "colocated": ("qwen3_moe", []),
    "small pool, small chunks": ("qwen3_moe", ["--kv-cache-tokens", "160", "--max-num-batched-tokens", "13"]),
    "shm": ("qwen3_moe", ["--ffn", "1", "--transport", "shm"]),
    "m2n, graph, lanes": ("qwen3_moe", ["--ffn", "2", "--connector", "m2n", GATE, "--execution", "graph", "--capture-sizes", "4,8", "--micro-batches", "2"]),
    "drafts": ("deepseek_v3_mtp", ["--speculative", "on"]),
    "drafts of auto, two experts ranks": ("deepseek_v3_mtp", ["--speculative", "auto", "--ffn", "2", "--connector", "auto", GATE]),
    "window and compressed states": ("deepseek_v4", []),
    "window and compressed states, p2p": ("deepseek_v4", ["--ffn", "2"]),
    "windows given back": ("gpt_oss", ["--ffn", "1", "--transport", "shm"]),
    "front of two": ("qwen3_moe", ["--attention", "2", "--ffn", "1"]),
}


def prompts_of(path, model):
    rng = random.Random(3)
    vocabulary = json.loads((FIXTURES / model / "config.json").read_text())["vocab_size"]
    unit = 128 if model == "deepseek_v4" else 16
    common = [rng.randrange(vocabulary) for _ in range(3 * unit)]
    with path.open("w") as file:
        for kept in [0, 0, 1, 1, 1, 2, 3, 3]:
            own = [rng.randrange(vocabulary) for _ in range(rng.randrange(1, 20))]
            print(json.dumps({"prompt_ids": common[: kept * unit] + own}), file=file)
        for _ in range(2):
            print(json.dumps({"prompt_ids": common}), file=file)
    return path


def process(prompts, model, *flags):
    command = [BINARY, "generate", "--model", str(FIXTURES / model), "--prompts-file", str(prompts), "--json", "--ignore-eos", "--max-tokens", "12",
               "--log-level", "warning", "--seed", "3", "--temperature", "0.7", "--deterministic=true", "--one-by-one", *flags]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), done.stderr


def run(prompts, model, *flags):
    return process(prompts, model, *flags)[0]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    known = {}

    def of(model):
        if model not in known:
            prompts = prompts_of(tmp_path_factory.mktemp("prefix") / f"{model}.jsonl", model)
            computed = run(prompts, model, "--no-enable-prefix-caching", "--speculative", "off")
            assert all(answer["cached_tokens"] == 0 for answer in computed["answers"])
            known[model] = prompts, outcome(computed)
        return known[model]

    return of


@pytest.mark.parametrize("case", CASES)
def test_a_cached_prefix_changes_no_bit(case, whole):
    model, flags = CASES[case]
    prompts, expected = whole(model)
    cached = run(prompts, model, *flags)
    assert outcome(cached) == expected
    tokens = [answer["cached_tokens"] for answer in cached["answers"]]
    assert sum(tokens) > 0, tokens
    if case == "colocated":
        # Beginnings of 16, 32 and 48 tokens; of a prompt that is cached whole the last token is computed.
        assert tokens == [0, 0, 0, 16, 16, 16, 32, 48, 32, 32]
    if case == "window and compressed states":
        # Where texts part is known after the second one, and is found by the third.
        assert tokens[-1] == 256


@pytest.mark.parametrize("model, flags", [("qwen3_moe", []), ("deepseek_v3_mtp", ["--speculative", "on", "--ffn", "1"]), ("deepseek_v4", []), ("gpt_oss", [])])
def test_a_cache_outlives_its_server(model, flags, whole, tmp_path):
    prompts, expected = whole(model)
    kept = [*flags, "--prefix-cache-dir", str(tmp_path / "kept")]
    first = run(prompts, model, *kept)
    (file,) = (tmp_path / "kept").iterdir()
    assert file.suffix == ".prefixes" and model in file.name
    again = run(prompts, model, *kept)
    assert outcome(first) == outcome(again) == expected
    tokens = [[answer["cached_tokens"] for answer in answers["answers"]] for answers in (first, again)]
    assert all(later >= before for before, later in zip(*tokens)) and sum(tokens[1]) > sum(tokens[0]), tokens

    # Other numbers: named, not used, and written anew.
    other, log = process(prompts, model, *kept, "--compute-dtype", "float32")
    assert f"{file}: made with other settings" in log and "float32" in log or "f32" in log, log
    assert other["answers"][0]["cached_tokens"] == 0
    run(prompts, model, *kept)
    damaged = bytearray(file.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    file.write_bytes(damaged)
    computed, log = process(prompts, model, *kept)
    assert f"{file}: unit " in log and "its checksum is wrong" in log, log
    assert outcome(computed) == expected
    assert [answer["cached_tokens"] for answer in computed["answers"]] == tokens[0]


@pytest.mark.parametrize("model, flags", [("mixtral", []), ("moonlight", []), ("mixtral", ["--ffn", "2", "--connector", "m2n", GATE])])
def test_a_prompt_of_8k_twice(model, flags, tmp_path):
    """All of it but the last token's block comes from the cache the second time, under chunks, placements and both kinds of attention."""
    rng, path = random.Random(8), tmp_path / "prompts.jsonl"
    vocabulary, length = json.loads((FIXTURES / model / "config.json").read_text())["vocab_size"], 8 * 1024 - 64
    prompt = [rng.randrange(vocabulary) for _ in range(length)]
    other = prompt[: length // 2] + [rng.randrange(vocabulary) for _ in range(100)]
    path.write_text("".join(json.dumps({"prompt_ids": ids}) + "\n" for ids in (prompt, prompt, other)))
    limits = ["--kv-cache-tokens", "16384", "--max-context-tokens", "8192"]
    whole = run(path, model, "--no-enable-prefix-caching", *limits)
    cached = run(path, model, *limits, *flags)
    assert outcome(cached) == outcome(whole)
    assert [answer["cached_tokens"] for answer in cached["answers"]] == [0, length - 16, length // 2]
    assert outcome(cached)[0] == outcome(cached)[1]
