"""A model whose first layers take their experts by token id (DeepSeek-V4) gives the same bits wherever the look-up happens and however
rows travel: on attention it becomes a routing, on FFN token ids come with the rows, and a home rank routes by them."""

import json
import random
import subprocess

import pytest

from .test_bit_equality import BINARY, ROOT, outcome

MODEL = ROOT / "tests" / "fixtures" / "deepseek_v4"
GRAPH = ["--execution", "graph", "--capture-sizes", "2,8"]
EITHER_GATE = {
    "shm": ["--ffn", "1", "--transport", "shm"],
    "tcp": ["--ffn", "1", "--transport", "tcp"],
    "two attention ranks": ["--attention", "2", "--ffn", "1", "--transport", "inproc"],
    "alltoall": ["--ffn", "2", "--connector", "p2p", "--exchange", "alltoall", "--transport", "shm"],
    "allgather": ["--ffn", "3", "--connector", "p2p", "--exchange", "allgather", "--transport", "tcp"],
    "slices": ["--ffn", "2", "--connector", "p2p", "--placement", "slice", "--transport", "inproc"],
    "graph": ["--ffn", "1", "--transport", "shm", *GRAPH],
    "graph alltoall": ["--ffn", "2", "--connector", "p2p", "--exchange", "alltoall", "--transport", "inproc", *GRAPH],
}
GATE_ON_ATTENTION = {
    "m2n": ["--ffn", "2", "--connector", "m2n", "--transport", "shm"],
    "m2n hybrid": ["--ffn", "3", "--connector", "m2n", "--placement", "hybrid", "--transport", "inproc"],
    "m2n graph": ["--ffn", "2", "--connector", "m2n", "--transport", "tcp", *GRAPH],
}
CELLS = [(name, flags, gate) for name, flags in EITHER_GATE.items() for gate in (False, True)]
CELLS += [(name, flags, True) for name, flags in GATE_ON_ATTENTION.items()]


@pytest.fixture(scope="module")
def prompts(tmp_path_factory):
    vocab = json.loads((MODEL / "config.json").read_text())["vocab_size"]
    rng = random.Random(23)
    path = tmp_path_factory.mktemp("prompts") / "prompts.jsonl"
    lines = [json.dumps({"prompt_ids": [rng.randrange(vocab) for _ in range(length)]}) for length in (1, 2, 7, 17, 33, 64, 130)]
    path.write_text("\n".join(lines) + "\n")
    return path


def generate(prompts, *flags):
    command = [BINARY, "generate", "--model", str(MODEL), "--prompts-file", str(prompts), "--deterministic", "--json", "--ignore-eos",
               "--max-tokens", "5", "--max-context-tokens", "160", "--threads", "1", "--log-level", "error", *flags]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def colocated(prompts):
    return generate(prompts)


def test_the_model_hashes_and_scores():
    config = json.loads((MODEL / "config.json").read_text())
    assert 0 < config["num_hash_layers"] < config["num_hidden_layers"]


@pytest.mark.parametrize("name,flags,gate", CELLS, ids=[f"{name}, gate on {'attention' if gate else 'ffn'}" for name, _, gate in CELLS])
def test_split_equals_colocated(name, flags, gate, prompts, colocated):
    for shared in (False, True):
        split = generate(prompts, *flags, f"--compute-gate-on-attention={str(gate).lower()}",
                         f"--compute-shared-experts-on-attention={str(shared).lower()}")
        assert outcome(split) == outcome(colocated)
        if GRAPH[0] in flags:
            assert split["execution"]["graph_replays"] > 0 and split["execution"]["graph_misses"] == 0


@pytest.mark.parametrize("gate", (False, True))
def test_colocated_is_independent_of_the_gates_side_and_of_batching(gate, prompts, colocated):
    for flags in ([], ["--one-by-one"], ["--max-num-batched-tokens", "7", "--max-num-seqs", "3"]):
        assert outcome(generate(prompts, f"--compute-gate-on-attention={str(gate).lower()}", *flags)) == outcome(colocated)


def test_only_the_rank_that_routes_holds_the_tables(prompts):
    """Both FFN ranks hold the same experts; the gate's weights and tables come on top where it runs."""
    held = [generate(prompts, "--ffn", "1", "--compute-shared-experts-on-attention=true", f"--compute-gate-on-attention={gate}")["ranks"][1]
            ["bytes_held"] for gate in ("false", "true")]
    config = json.loads((MODEL / "config.json").read_text())
    assert held[0] - held[1] >= config["num_hash_layers"] * config["vocab_size"] * config["num_experts_per_tok"] * 4
