"""Split equals colocated, bit for bit: the logits of 32 prompts hash to the same value in every placement, over every
transport, batched and one by one: in deterministic mode always, and with one FFN rank in the default mode too."""

import itertools
import json
import os
import pathlib
import random
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BINARY = os.environ.get("TANDEM_BINARY", str(ROOT / "build" / "tandem"))
MODELS = {
    "arith": ROOT / "models" / "arith",
    **{name: ROOT / "tests" / "fixtures" / name for name in ("deepseek_v2", "deepseek_v3", "deepseek_v4", "qwen3_moe", "mixtral", "granitemoe", "qwen2_moe", "gpt_oss", "gpt_oss_bf16")},
}
PLACEMENTS = list(itertools.product(("inproc", "shm", "tcp"), (False, True), (False, True)))


@pytest.fixture(scope="module")
def prompts(tmp_path_factory):
    """One file of 32 prompts of different lengths for each model."""
    files = {}
    for name, folder in MODELS.items():
        vocab = json.loads((folder / "config.json").read_text())["vocab_size"]
        rng = random.Random(7)
        path = tmp_path_factory.mktemp("prompts") / f"{name}.jsonl"
        with path.open("w") as file:
            lengths = list(range(1, 25)) + [31, 32, 33, 40, 47, 48, 49, 64]
            if name == "deepseek_v4":  # past its window, its chosen entries and its entries of 128 tokens
                lengths = list(range(1, 25)) + [63, 67, 68, 72, 127, 128, 129, 200]
            for length in lengths:
                print(json.dumps({"prompt_ids": [rng.randrange(vocab) for _ in range(length)]}), file=file)
        files[name] = path
    return files


def generate(model, prompts, *flags, deterministic=True):
    command = [BINARY, "generate", "--model", str(MODELS[model]), "--prompts-file", str(prompts[model]), "--deterministic=" + str(deterministic).lower(),
               "--json", "--ignore-eos", "--max-tokens", "6", "--max-context-tokens", "256", "--log-level", "warning", *flags]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def colocated(prompts):
    return {model: generate(model, prompts) for model in MODELS}


def outcome(document):
    return [(answer["tokens"], answer["logits_hash"]) for answer in document["answers"]]


@pytest.mark.parametrize("model", MODELS)
def test_colocated_is_independent_of_batching_and_threads(model, prompts, colocated):
    assert len(colocated[model]["answers"]) == 32
    assert len({answer["logits_hash"] for answer in colocated[model]["answers"]}) > 16, "the hash must depend on the prompt"
    for flags in (["--one-by-one"], ["--threads", "1"], ["--max-num-batched-tokens", "7", "--max-num-seqs", "3"]):
        assert outcome(generate(model, prompts, *flags)) == outcome(colocated[model]), flags


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("transport,gate,shared", PLACEMENTS)
def test_split_equals_colocated(model, transport, gate, shared, prompts, colocated):
    flags = ["--ffn", "1", "--transport", transport]
    flags += ["--compute-gate-on-attention=" + str(gate).lower(), "--compute-shared-experts-on-attention=" + str(shared).lower()]
    for batching in ([], ["--one-by-one"]):
        split = generate(model, prompts, *flags, *batching)
        assert [rank["role"] for rank in split["ranks"]] == ["attention", "ffn"]
        assert split["ranks"][1]["transport"] == transport
        assert outcome(split) == outcome(colocated[model])
        assert split["logits_hash"] == colocated[model]["logits_hash"]


@pytest.fixture(scope="module")
def colocated_by_default(prompts):
    return {model: generate(model, prompts, deterministic=False) for model in MODELS}


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("transport,gate,shared", PLACEMENTS)
def test_one_ffn_rank_equals_colocated_in_the_default_mode_too(model, transport, gate, shared, prompts, colocated_by_default):
    split = generate(model, prompts, "--ffn", "1", "--transport", transport, f"--compute-gate-on-attention={str(gate).lower()}",
                     f"--compute-shared-experts-on-attention={str(shared).lower()}", deterministic=False)
    assert outcome(split) == outcome(colocated_by_default[model])
    if gate and shared:
        direct = generate(model, prompts, "--ffn", "1", "--transport", transport, "--connector", "m2n", "--compute-gate-on-attention",
                          deterministic=False)
        assert outcome(direct) == outcome(colocated_by_default[model])


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("transport,ranks", list(itertools.product(("shm", "tcp"), (2, 3))))
def test_several_ffn_ranks_equal_colocated(model, transport, ranks, prompts, colocated):
    """Connector m2n: every rank holds its share of the experts; most models' experts do not divide by 3."""
    flags = ["--connector", "m2n", "--compute-gate-on-attention", "--transport", transport]
    for batching in ([], ["--one-by-one"]):
        split = generate(model, prompts, "--ffn", str(ranks), *flags, *batching)
        assert [(rank["role"], rank["rank"]) for rank in split["ranks"]] == [("attention", 0)] + [("ffn", i) for i in range(ranks)]
        assert {rank["transport"] for rank in split["ranks"]} == {transport}
        assert outcome(split) == outcome(colocated[model])
    shared = generate(model, prompts, "--ffn", str(ranks), *flags, "--compute-shared-experts-on-attention=false")
    assert outcome(shared) == outcome(colocated[model])
    whole = generate(model, prompts, "--ffn", "1", *flags)
    assert outcome(whole) == outcome(colocated[model])
    shares = [rank["bytes_held"] for rank in split["ranks"][1:]]
    assert sum(shares) == whole["ranks"][1]["bytes_held"], "together the ranks hold every expert once"
    assert max(shares) < whole["ranks"][1]["bytes_held"]


@pytest.mark.parametrize("model", ("arith", "deepseek_v3"))
@pytest.mark.parametrize("gate", (False, True))
def test_ucx_equals_colocated(model, gate, prompts, colocated):
    """The carrier is below all that the other tests vary; two models and one variation show that it is wired up."""
    split = generate(model, prompts, "--ffn", "1", "--transport", "ucx", f"--compute-gate-on-attention={str(gate).lower()}")
    assert split["ranks"][1]["transport"] == "ucx"
    assert outcome(split) == outcome(colocated[model])


@pytest.fixture(scope="module")
def colocated_quantized(prompts):
    """Answers of a colocated run by model, dtype and place of the shared experts, computed when first asked for."""
    known = {}

    def ask(model, dtype, shared):
        key = model, dtype, shared
        if key not in known:
            known[key] = generate(model, prompts, "--compute-gate-on-attention", f"--compute-shared-experts-on-attention={shared}",
                                  "--activation-dtype", dtype)
        return known[key]

    return ask


@pytest.mark.parametrize("dtype", ("fp8", "mxfp8", "int8"))
@pytest.mark.parametrize("transport", ("shm", "tcp"))
@pytest.mark.parametrize("model", ("arith", "deepseek_v3", "qwen3_moe", "qwen2_moe"))
def test_quantized_rows_equal_colocated(model, transport, dtype, prompts, colocated, colocated_quantized):
    """The row that crosses the wire is the row that colocated experts are given, scales included."""
    flags = ["--compute-gate-on-attention", "--transport", transport, "--activation-dtype", dtype]
    expected = colocated_quantized(model, dtype, "true")
    assert outcome(expected) != outcome(colocated[model]), "nothing was rounded"
    for batching in ([], ["--one-by-one"]):
        split = generate(model, prompts, "--ffn", "1", *flags, *batching)
        assert outcome(split) == outcome(expected)
    for spread in (["--connector", "m2n"], ["--exchange", "alltoall"], ["--exchange", "allgather"]):  # the last two: from rank to rank
        several = generate(model, prompts, "--ffn", "2", *spread, *flags)
        assert outcome(several) == outcome(expected), spread
    # Shared experts on FFN are given the quantised row, split and colocated alike.
    behind = colocated_quantized(model, dtype, "false")
    for ranks in (["--ffn", "1"], ["--ffn", "2", "--connector", "m2n"]):
        assert outcome(generate(model, prompts, *ranks, "--compute-shared-experts-on-attention=false", *flags)) == outcome(behind)


def test_quantized_rows_need_the_gate_on_attention(prompts):
    for flags in ([], ["--ffn", "1"]):
        done = subprocess.run([BINARY, "generate", "--model", str(MODELS["arith"]), "--prompt", "1 + 1", "--activation-dtype", "fp8", *flags],
                              capture_output=True, text=True, timeout=60)
        assert done.returncode == 2
        assert "afd.activation_dtype: fp8 with the gate on FFN is not supported; use it with afd.compute_gate_on_attention: true" in done.stderr


SLICED = ((2, "slice"), (3, "slice"), (4, "slice"), (3, "hybrid"), (4, "hybrid"), (4, "hybrid", "--expert-replicas", "2"),
          (3, "expert", "--expert-replicas", "2"), (4, "hybrid", "--expert-replicas", "2", "--replica-choice", "row"))


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("case", SLICED, ids=lambda case: "-".join(map(str, case)).replace("---", "-"))
def test_slices_and_replicas_equal_colocated(model, case, prompts, colocated):
    """Slices of experts, groups of ranks that slice their share, and replicas of both: the same bits, and no rank holds it all."""
    ranks, placement, *more = case
    flags = ["--connector", "m2n", "--compute-gate-on-attention", "--transport", "tcp" if ranks == 3 else "shm", "--threads", "1"]
    split = generate(model, prompts, "--ffn", str(ranks), "--placement", placement, *more, *flags)
    assert outcome(split) == outcome(colocated[model])
    held = [rank["bytes_held"] for rank in split["ranks"][1:]]
    assert len(held) == ranks
    if model == "arith":  # granules of 16 rows fill whole panels: no padding
        whole = generate(model, prompts, "--ffn", "1", *flags)["ranks"][1]["bytes_held"]
        assert sum(held) == whole * (2 if more else 1)


@pytest.mark.parametrize("gate", (False, True))
def test_balanced_routing_is_the_same_on_either_side_and_not_the_models(gate, prompts, colocated):
    """One row after another, so that rows reach the gate in the same order wherever it stands."""
    flags = ["--balanced-routing", "--one-by-one"]
    balanced = generate("deepseek_v3", prompts, *flags)
    assert outcome(balanced) != outcome(colocated["deepseek_v3"])
    split = generate("deepseek_v3", prompts, *flags, "--ffn", "1", f"--compute-gate-on-attention={str(gate).lower()}")
    assert outcome(split) == outcome(balanced)


@pytest.mark.parametrize("transport", ("shm", "tcp"))
def test_token_ids_as_payload_change_nothing(transport, prompts, colocated):
    split = generate("deepseek_v3", prompts, "--ffn", "1", "--transport", transport, "--send-token-ids")
    assert outcome(split) == outcome(colocated["deepseek_v3"])


@pytest.mark.parametrize("model", ("deepseek_v4", "deepseek_v4_pro"))
def test_compressed_entries_over_long_prompts(model, tmp_path):
    """Around an entry of 128 tokens and past several: eager and graph, in chunks, split, over lanes, and after preemption."""
    folder = ROOT / "tests" / "fixtures" / model
    rng = random.Random(11)
    path = tmp_path / "prompts.jsonl"
    path.write_text("".join(json.dumps({"prompt_ids": [rng.randrange(64) for _ in range(length)]}) + "\n" for length in (1, 127, 128, 129, 513)))

    def run(*flags):
        done = subprocess.run([BINARY, "generate", "--model", str(folder), "--prompts-file", str(path), "--deterministic", "--json", "--ignore-eos",
                               "--max-tokens", "12", "--max-context-tokens", "640", "--log-level", "error", *flags],
                              capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        return outcome(json.loads(done.stdout))

    expected = run("--one-by-one")
    assert len({tokens_and_hash[1] for tokens_and_hash in expected}) == 5
    for flags in (["--max-num-batched-tokens", "100"], ["--execution", "graph"], ["--ffn", "1", "--execution", "graph", "--max-num-batched-tokens", "65"],
                  ["--ffn", "2", "--connector", "m2n", "--compute-gate-on-attention"],
                  ["--ffn", "2", "--micro-batches", "2", "--micro-batch-split", "token"],
                  ["--kv-cache-tokens", "640"]):
        assert run(*flags) == expected, flags
