"""ExpertMap: which FFN rank computes what, from the pieces that ranks state; and parts: what each rank gets of a request, and back
(docs/protocol.md sections 4 and 5)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .checksum import crc32c
from .errors import InvalidArgument, Unavailable, Unsupported
from .formats import from_bf16, to_bf16
from .settings import Settings


@dataclass
class Part:
    """Of one rank. `index` [rows]: which rows of the request, ascending; `weights` [rows, top_k]: 0 in slots of other ranks;
    `shared_rows` uint8 [rows, 1]: where this rank adds the shared experts."""

    rank: int
    index: np.ndarray
    weights: np.ndarray
    shared_rows: np.ndarray


def epoch_of(pieces: Sequence[np.ndarray]) -> int:
    """The map's number. `pieces`: uint32 [count, 6] of each rank, in order of rank."""
    crc = 0
    for rank, words in enumerate(pieces):
        crc = crc32c(np.uint32(rank).tobytes(), crc)
        crc = crc32c(np.ascontiguousarray(words, "<u4").tobytes(), crc)
    return max(crc, 1)


class ExpertMap:
    """`pieces`: uint32 [count, 6] of each rank: layer, expert begin, end, row begin, end, unit. Refused, by name: a piece that the model
    does not have, and pieces that no rank holds."""

    def __init__(self, settings: Settings, pieces: Sequence[np.ndarray]):
        self.ranks = len(pieces)
        self.epoch = epoch_of(pieces)
        # layer -> expert -> slice (row begin, end) -> ranks that hold it
        held: dict[int, list[dict[tuple[int, int], list[int]]]] = {
            layer: [{} for _ in range(settings.num_experts)] for layer in settings.moe_layers}
        for rank, words in enumerate(pieces):
            for layer, begin, end, row_begin, row_end, _ in words.tolist():
                if layer not in held or not begin < end <= settings.num_experts or not row_begin < row_end <= settings.moe_intermediate_size:
                    raise InvalidArgument(f"it states layer {layer}, experts {begin}..{end}, rows {row_begin}..{row_end}, which this model "
                                          "does not have", rank=rank)
                for expert in range(begin, end):
                    owners = held[layer][expert].setdefault((row_begin, row_end), [])
                    if rank not in owners:  # two units of one rank are one place to send to
                        owners.append(rank)
        self._check_cover(settings, held)
        # [choices, experts, ranks] of each layer: whether a rank computes for an expert, for rows that choose so among replicas.
        self._owns = {layer: self._choices(experts) for layer, experts in held.items()}

    @staticmethod
    def _check_cover(settings: Settings, held) -> None:
        missing = []
        for layer, experts in held.items():
            for expert, slices in enumerate(experts):
                end = 0
                for row_begin, row_end in sorted(slices):
                    if row_begin < end:
                        raise InvalidArgument(f"layer {layer}, expert {expert}: slices of several ranks overlap at row {row_begin}")
                    if row_begin > end:
                        break
                    end = row_end
                if end < settings.moe_intermediate_size:
                    missing.append(f"layer {layer}, expert {expert}, rows {end}..{settings.moe_intermediate_size}")
        if missing:
            raise Unavailable(f"no FFN rank holds {'; '.join(missing[:3])}" + (f" and {len(missing) - 3} more" if len(missing) > 3 else ""))

    def _choices(self, experts) -> np.ndarray:
        count = math.lcm(*(len(owners) for slices in experts for owners in slices.values()))
        owns = np.zeros((count, len(experts), self.ranks), bool)
        for choice in range(count):
            for expert, slices in enumerate(experts):
                for owners in slices.values():
                    rank = owners[choice % len(owners)]
                    if owns[choice, expert, rank]:
                        raise Unsupported(f"several slices of expert {expert} on one rank; one slice of an expert for each rank would do", rank=rank)
                    owns[choice, expert, rank] = True
        return owns

    def parts(self, layer: int, ids: np.ndarray, weights: np.ndarray) -> list[Part]:
        """`ids`, `weights` [rows, top_k] -> a part for each rank that has work. Of replicas a row's own ids choose, so that a row goes to
        the same rank whatever it is computed with."""
        owns = self._owns[layer]
        choice = (ids.astype(np.int64) * 0x9E3779B1).sum(axis=1) % 65521 % len(owns)  # spread over rows, equal for equal rows
        mine = owns[choice[:, None], ids] & (weights != 0)[:, :, None]  # [rows, top_k, ranks]
        first_slot = (weights != 0).argmax(axis=1)
        adds_shared = mine[np.arange(len(ids)), first_slot].argmax(axis=1)  # [rows]: the lowest rank that has the row's first slot
        parts = []
        for rank in range(self.ranks):
            index = np.flatnonzero(mine[:, :, rank].any(axis=1))
            if len(index):
                part = np.where(mine[index, :, rank], weights[index], np.float32(0))
                parts.append(Part(rank, index, part, (adds_shared[index] == rank).astype(np.uint8)[:, None]))
        return parts


def add_up(parts: Sequence[Part], answers: Sequence[np.ndarray], rows: int, dtype: str) -> np.ndarray:
    """The rows [rows, hidden] from the partial sums, in order of rank, as bits of `dtype`: f64 exactly, others added in float32 and rounded
    once."""
    hidden = answers[0].shape[1]
    total = np.zeros((rows, hidden), np.float64 if dtype == "f64" else np.float32)
    for part, answer in zip(parts, answers, strict=True):
        total[part.index] += from_bf16(answer) if dtype == "bf16" else answer
    return to_bf16(total) if dtype == "bf16" else total
