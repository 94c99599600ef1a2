"""The numpy reading of DSpark's draft step (tools/native_v4_dspark.py) has the properties that the formulas give it, so that a
comparison with it means something."""

import numpy as np
import pytest

from tests.native_v4 import files

native_v4_dspark = files.native_v4_parity.native_v4_dspark
LENGTH, WINDOW = 40, 16


@pytest.fixture(scope="module")
def drafter(with_drafter):
    return native_v4_dspark.Dspark(files.native_v4_parity.native_v4_reference.Reference(with_drafter("dspark")))


@pytest.fixture(scope="module")
def prompt(drafter):
    """Token ids and the taps of their rows."""
    ids = np.random.default_rng(3).integers(2, drafter.model.config["vocab_size"], LENGTH)
    drafter.model.logits(ids)
    assert drafter.model.taps.shape == (LENGTH, 3, drafter.model.config["hidden_size"])
    return ids, drafter.model.taps


def close(a, b):
    return np.abs(a - b).max() < 1e-9


def test_a_context_made_in_parts_drafts_as_one_made_at_once(drafter, prompt):
    ids, taps = prompt
    whole = drafter.context(taps)
    parts = np.concatenate([drafter.context(taps[begin:begin + 7], begin) for begin in range(0, LENGTH, 7)], axis=1)
    assert close(parts, whole)
    for position in (0, 3, WINDOW - 1, WINDOW, LENGTH - 2):
        want = drafter.draft(whole[:, :position + 1], position, ids[position + 1])
        # What comes behind a position changes none of its taps.
        drafter.model.logits(ids[:position + 1])
        shorter = drafter.draft(drafter.context(drafter.model.taps), position, ids[position + 1])
        # Keys that the window has left are not needed.
        ring = drafter.draft(parts[:, :position + 1][:, -WINDOW:], position, ids[position + 1])
        for other in (shorter, ring):
            assert np.array_equal(want.ids, other.ids)
            assert close(want.logits, other.logits) and close(want.confidence, other.confidence)


def test_every_row_reads_the_last_tokens_of_the_window_and_no_other(drafter, prompt):
    ids, taps = prompt
    position = LENGTH - 2
    want = drafter.draft(drafter.context(taps[:position + 1]), position, ids[-1]).base

    def changed(at):
        other = taps.copy()
        other[at] = other[at][:, ::-1]
        return np.abs(drafter.draft(drafter.context(other[:position + 1]), position, ids[-1]).base - want).max(axis=-1)

    assert changed(position - WINDOW).max() == 0
    assert changed(position - WINDOW + 1).min() > 1e-6, "all rows see the same context, the last one too"
    assert changed(position).min() > 1e-6
    assert changed(position + 1).max() == 0, "the taps of the token that begins the block are not there yet"


def test_rows_of_a_block_see_each_other_in_both_directions(drafter, prompt):
    ids, taps = prompt
    context = drafter.context(taps[:20])
    want = drafter.draft(context, 19, ids[20]).base
    noise = drafter.noise
    try:
        drafter.noise = 5
        later = drafter.draft(context, 19, ids[20]).base
    finally:
        drafter.noise = noise
    assert np.abs(later[0] - want[0]).max() > 1e-6, "the first row sees the noise behind it"
    other = drafter.draft(context, 19, (ids[20] + 1) % 300).base
    assert (np.abs(other - want).max(axis=-1) > 1e-6).all(), "the noise sees the first row"
    assert len(np.unique(want.round(6), axis=0)) == len(want), "equal tokens at different positions have different rows"


def test_drafts_depend_on_distances_alone(drafter, prompt):
    ids, taps = prompt
    want = drafter.draft(drafter.context(taps[:20]), 19, ids[20])
    moved = drafter.draft(drafter.context(taps[:20], 1000), 1019, ids[20])
    assert np.abs(moved.logits - want.logits).max() < 1e-6
    apart = drafter.draft(drafter.context(taps[:20], 1000), 1020, ids[20])
    assert np.abs(apart.base - want.base).max() > 1e-6


def test_the_markov_head_adds_what_follows_the_token_before(drafter, prompt):
    ids, taps = prompt
    w = drafter.model.weights
    draft = drafter.draft(drafter.context(taps[:20]), 19, ids[20])
    before = [ids[20], *draft.ids[:-1]]
    added = w["mtp.2.markov_head.markov_w1.weight"][before] @ w["mtp.2.markov_head.markov_w2.weight"].T
    assert close(draft.logits - draft.base, added)
    assert np.array_equal(draft.logits.argmax(axis=-1), draft.ids)
    assert ((0 < draft.confidence) & (draft.confidence < 1)).all() and draft.confidence.std() > 1e-3


def test_roundings_are_those_of_tables():
    rounding = files.native_v4_parity.native_v4_reference.native_v4_rounding
    x = np.array([[0.0, 447.9, -448.0, 17.0, 19.0, -0.001, 0.0009765625, 0.0029296875, *[1.0] * 56]])
    assert np.array_equal(rounding.fp8(x)[0, :8], [0, 448, -448, 16, 20, -0.001953125, 0, 0.00390625])
    assert np.array_equal(rounding.fp8(x * 2.0**7), rounding.fp8(x) * 2.0**7), "the scale is a power of two"
    assert rounding.fp8(np.full((1, 64), 449.0))[0, 0] == 448, "448 / 2 is no longer enough: 449 / 2 = 224.5 goes to 224"
    y = np.array([[6.0, -5.0, 2.5, 3.5, 0.25, 0.75, 1.75, -0.26, *[0.0] * 24]])
    assert np.array_equal(rounding.rounded(y, 32, rounding.FP4_VALUES, rounding.FP4_FLOOR)[0, :8], [6, -4, 2, 4, 0, 1, 2, -0.5])
    h = rounding.hadamard(32)
    assert close(h @ h.T, np.eye(32)) and close(h[1] * 32**0.5, np.tile([1, -1], 16)) and close(h[2] * 32**0.5, np.tile([1, 1, -1, -1], 8))
