"""Any number of decode lanes, prefill on one lane or split by token over as many, replays of captured programs: the logits of the
plain colocated run, bit for bit."""

import pytest

from tests.placement.test_bit_equality import MODELS, colocated, colocated_by_default, generate, outcome, prompts  # noqa: F401

LANES = [(lanes, split) for lanes in ("2", "3", "8", "auto") for split in ("request", "token")]


@pytest.mark.parametrize("model", ("arith", "deepseek_v3", "granitemoe"))
@pytest.mark.parametrize("lanes,split", LANES)
def test_lanes_change_no_bit(model, lanes, split, prompts, colocated, colocated_by_default):  # noqa: F811
    flags = ["--micro-batches", lanes, "--micro-batch-split", split]
    assert outcome(generate(model, prompts, *flags)) == outcome(colocated[model])
    for transport in ("shm", "tcp"):
        one = generate(model, prompts, *flags, "--ffn", "1", "--transport", transport, deterministic=False)
        assert outcome(one) == outcome(colocated_by_default[model])
    several = generate(model, prompts, *flags, "--ffn", "2", "--connector", "m2n", "--compute-gate-on-attention",
                       "--max-num-batched-tokens", "50")
    assert outcome(several) == outcome(colocated[model])


def test_a_number_of_lanes_that_is_none_is_refused(prompts):  # noqa: F811
    with pytest.raises(AssertionError, match="micro.batches"):
        generate("arith", prompts, "--micro-batches", "9")


GRAPH = ["--execution", "graph", "--capture-sizes", "4,8,16"]


@pytest.mark.parametrize("model", ("arith", "deepseek_v3", "granitemoe"))
@pytest.mark.parametrize("flags", ([], ["--ffn", "1", "--transport", "inproc"], ["--ffn", "1", "--transport", "shm"], ["--ffn", "1", "--transport", "tcp"],
                                   ["--ffn", "1", "--transport", "shm", "--connector", "m2n", "--compute-gate-on-attention"]),
                         ids=("colocated", "inproc", "shm", "tcp", "m2n"))
def test_replays_equal_eager_bit_for_bit(model, flags, prompts, colocated, colocated_by_default):  # noqa: F811
    for deterministic, expected in ((True, colocated), (False, colocated_by_default)):
        replayed = generate(model, prompts, *flags, *GRAPH, deterministic=deterministic)
        assert outcome(replayed) == outcome(expected[model])
        ran = replayed["execution"]
        assert ran["graph_replays"] > 0
        assert ran["graph_warmups"] == 6 and ran["eager_steps"] > ran["graph_misses"], "3 programs, 2 lanes that auto may use"
    assert colocated[model]["execution"]["graph_replays"] == 0
    both = generate(model, prompts, *flags, *GRAPH, "--micro-batches", "3", "--micro-batch-split", "token")
    assert outcome(both) == outcome(colocated[model])
    assert both["execution"]["decode_lanes"] == 3 and both["execution"]["graph_replays"] > 0


def test_rows_below_a_size_are_padded_and_rows_above_all_sizes_are_misses(prompts, colocated):  # noqa: F811
    for sizes, key in (("64", "graph_padded_replays"), ("1", "graph_misses")):
        ran = generate("arith", prompts, "--ffn", "1", "--transport", "inproc", "--execution", "graph", "--capture-sizes", sizes, "--micro-batches", "1")
        assert outcome(ran) == outcome(colocated["arith"])
        assert ran["execution"][key] > 0, ran["execution"]
        assert ran["execution"]["graph_padded_replays"] == (ran["execution"]["graph_replays"] if sizes == "64" else 0)


def test_several_ranks_replay(prompts, colocated):  # noqa: F811
    for transport in ("shm", "tcp"):
        replayed = generate("deepseek_v3", prompts, "--ffn", "2", "--transport", transport, "--connector", "m2n", "--compute-gate-on-attention", *GRAPH)
        assert outcome(replayed) == outcome(colocated["deepseek_v3"])


def test_capture_sizes_that_are_none_are_refused(prompts):  # noqa: F811
    for sizes in ("8,8", "16,8", "0,8", "eight", "5000"):
        with pytest.raises(AssertionError, match="afd.capture_sizes: '" + sizes + "' is not an ascending list"):
            generate("arith", prompts, "--execution", "graph", "--capture-sizes", sizes)
