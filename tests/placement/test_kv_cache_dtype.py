"""engine.kv_cache_dtype: keys and values as e4m3 codes take half of the memory and give the same bits in every placement."""

import json
import random
import subprocess

import pytest

from tests.conftest import ARITH, BINARY, M2N
from tests.placement.test_bit_equality import ROOT, outcome

MODELS = {"arith": ARITH, **{name: ROOT / "tests" / "fixtures" / name for name in ("qwen3_moe", "mixtral", "granitemoe", "deepseek_v2", "deepseek_v3")}}


def run(model, prompts, *flags):
    if "--kv-cache-tokens" not in flags:
        flags = (*flags, "--kv-cache-tokens", "2048")
    done = subprocess.run([BINARY, "generate", "--model", str(MODELS[model]), "--prompts-file", str(prompts), "--json", "--ignore-eos",
                           "--max-tokens", "6", "--max-context-tokens", "256", "--log-level", "info", *flags],
                          capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), done.stderr


@pytest.fixture
def prompts(tmp_path, request):
    vocab = json.loads((MODELS[request.node.callspec.params["model"]] / "config.json").read_text())["vocab_size"]
    rng = random.Random(3)
    path = tmp_path / "prompts.jsonl"
    lengths = [1, 2, 15, 16, 17, 31, 32, 33, 64, 130]
    path.write_text("".join(json.dumps({"prompt_ids": [rng.randrange(vocab) for _ in range(length)]}) + "\n" for length in lengths))
    return path


@pytest.mark.parametrize("model", MODELS)
def test_every_placement_has_the_bits_of_the_colocated_run(model, prompts):
    fp8 = ["--kv-cache-dtype", "fp8"]
    expected = outcome(run(model, prompts, "--deterministic", "--one-by-one", *fp8)[0])
    assert len({tokens_and_hash[1] for tokens_and_hash in expected}) == 10
    assert expected != outcome(run(model, prompts, "--deterministic", "--one-by-one")[0]), "nothing was rounded"
    for flags in ([], ["--threads", "1"], ["--max-num-batched-tokens", "7", "--max-num-seqs", "3"], ["--execution", "graph"],
                  ["--kv-cache-tokens", "272"],  # preempts
                  ["--ffn", "1", "--transport", "shm"], ["--ffn", "2", "--transport", "tcp", *M2N],
                  ["--attention", "2", "--ffn", "1", "--transport", "shm"], ["--ffn", "2", "--micro-batches", "2", "--micro-batch-split", "token"]):
        assert outcome(run(model, prompts, "--deterministic", *fp8, *flags)[0]) == expected, flags
    assert outcome(run(model, prompts, "--deterministic", "--kv-cache-dtype", "fp8_e4m3")[0]) == expected


def test_the_pool_takes_half_the_memory(tmp_path):
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text(json.dumps({"prompt": "2+2"}) + "\n")
    pools = {}
    for dtype in ("bf16", "fp8"):
        log = run("arith", prompts, "--kv-cache-dtype", dtype)[1]
        pools[dtype] = next(line for line in log.splitlines() if "KV pool:" in line)
    document = {}
    for dtype in pools:
        done = subprocess.run([BINARY, "inspect", str(ARITH), "--kv-cache-dtype", dtype, "--json"], capture_output=True, text=True, timeout=60)
        document[dtype] = json.loads(done.stdout)
    assert (document["bf16"]["kv_dtype"], document["fp8"]["kv_dtype"]) == ("bf16", "f8_e4m3")
    # Of 64 + 16 values the 16 of the rotated part stay bf16, and blocks are whole cache lines.
    assert 0.5 < document["fp8"]["kv_bytes_per_token"] / document["bf16"]["kv_bytes_per_token"] < 0.65
    assert "of bf16" in pools["bf16"] and "of f8_e4m3" in pools["fp8"], pools
