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
