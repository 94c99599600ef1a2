"""Parts: every slot of a row goes, for each slice of its expert, to exactly one rank that holds it."""

import dataclasses

import numpy as np
import pytest

from tandem_client.expert_map import ExpertMap, add_up
from tandem_client.formats import from_bf16, to_bf16
from tandem_client.settings import Settings
from tests.client.fake_rank import SETTINGS

EXPERTS, ROWS = 8, 16
BASE = dataclasses.replace(Settings.of({key: str(value) for key, value in SETTINGS.items()}), num_experts=EXPERTS, top_k=3,
                           moe_intermediate_size=ROWS, moe_layers=(5,))


def pieces_of(ranks):
    """[(expert begin, end, row begin, row end)] of each rank, layer 5."""
    return [np.array([[5, *piece, 0] for piece in rank], np.uint32) for rank in ranks]


MAPS = {
    "whole": [[(0, 3, 0, 16)], [(3, 8, 0, 16)]],
    "slices": [[(0, 8, 0, 8)], [(0, 8, 8, 12)], [(0, 8, 12, 16)]],
    "hybrid": [[(0, 4, 0, 8)], [(0, 4, 8, 16)], [(4, 8, 0, 8)], [(4, 8, 8, 16)]],
    "replicas": [[(0, 8, 0, 16)], [(0, 8, 0, 16)], [(0, 8, 0, 16)]],
    "one expert twice": [[(0, 5, 0, 16)], [(4, 8, 0, 16)]],
    "replicas of groups": [[(0, 8, 0, 8)], [(0, 8, 8, 16)], [(0, 8, 0, 8)], [(0, 8, 8, 16)]],
}


def routing(count, seed=0):
    random = np.random.default_rng(seed)
    ids = np.argsort(random.random((count, EXPERTS)), axis=1)[:, :3].astype(np.int32)
    weights = random.uniform(0.1, 1, ids.shape).astype(np.float32)
    weights[random.random(ids.shape) < 0.3] = 0
    weights[(weights == 0).all(axis=1), 2] = 0.5
    return ids, weights


@pytest.mark.parametrize("name", MAPS)
def test_each_slot_goes_once_to_each_slice(name):
    ranks = MAPS[name]
    ids, weights = routing(300)
    parts = ExpertMap(BASE, pieces_of(ranks)).parts(5, ids, weights)
    covered = np.zeros((300, 3, ROWS), int)
    shared = np.zeros(300, int)
    for part in parts:
        assert (np.diff(part.index) > 0).all() and (part.weights != 0).any(axis=1).all()
        shared[part.index] += part.shared_rows[:, 0]
        first = (weights[part.index] != 0).argmax(axis=1)
        adds = part.shared_rows[:, 0] == 1
        assert (part.weights[adds, first[adds]] != 0).all(), "who adds the shared experts has the row's first slot"
        for row, mine in zip(part.index, part.weights, strict=True):
            for slot in np.flatnonzero(mine):
                assert mine[slot] == weights[row, slot]
                held = [piece for piece in ranks[part.rank] if piece[0] <= ids[row, slot] < piece[1]]
                assert len(held) == 1
                covered[row, slot, held[0][2]:held[0][3]] += 1
    assert (covered == (weights != 0)[:, :, None]).all()
    assert (shared == 1).all()


@pytest.mark.parametrize("name", ("replicas", "replicas of groups"))
def test_rows_are_spread_over_replicas_whatever_they_travel_with(name):
    one = ExpertMap(BASE, pieces_of(MAPS[name]))
    ids, weights = routing(600)
    together = {part.rank: set(part.index.tolist()) for part in one.parts(5, ids, weights)}
    share = 600 / len(MAPS[name]) * (2 if "groups" in name else 1)
    assert set(together) == set(range(len(MAPS[name]))) and all(0.7 * share < len(rows) < 1.3 * share for rows in together.values())
    for row in range(0, 600, 37):
        alone = {part.rank for part in one.parts(5, ids[row:row + 1], weights[row:row + 1])}
        assert alone == {rank for rank, rows in together.items() if row in rows}


def test_sums_are_added_in_float32_and_rounded_once():
    one = ExpertMap(BASE, pieces_of(MAPS["slices"]))
    ids, weights = routing(20)
    parts = one.parts(5, ids, weights)
    answers = [np.random.default_rng(part.rank).standard_normal((len(part.index), 6)).astype(np.float32) for part in parts]
    wanted = np.zeros((20, 6), np.float32)
    for part, answer in zip(parts, answers, strict=True):
        wanted[part.index] += from_bf16(to_bf16(answer))
    assert (from_bf16(add_up(parts, [to_bf16(answer) for answer in answers], 20, "bf16")) == from_bf16(to_bf16(wanted))).all()
    exact = add_up(parts, [answer.astype(np.float64) for answer in answers], 20, "f64")
    assert exact.dtype == np.float64 and np.abs(exact - wanted).max() < 0.1
