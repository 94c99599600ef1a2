"""What the FFN rank would refuse is not sent: the values of a request against the settings of the session (docs/protocol.md sections 1, 5)."""

from __future__ import annotations

import numpy as np

from . import frame
from .errors import InvalidArgument, OutOfRange
from .settings import Settings

_MAX_ROWS = 0xFFFF * frame.TILE_ROWS  # tiles are numbered in 16 bits


def checked(s: Settings, layer: int, rows, expert_ids, expert_weights, token_ids, row_class: str):
    """(rows [rows, hidden], ids int32 [rows, top_k] or None, weights float32 [rows, top_k] or None, tokens int32 [rows] or None)."""
    rows = np.asarray(rows)
    if layer not in s.moe_layers:
        raise OutOfRange(f"layer {layer} has no experts; layers with experts: {s.raw['moe_layers']}")
    if row_class not in frame.ROW_CLASSES:
        raise InvalidArgument(f"row_class {row_class!r}: {', '.join(frame.ROW_CLASSES)} would do")
    if rows.ndim != 2 or rows.shape[1] != s.hidden_size or len(rows) > _MAX_ROWS:
        raise InvalidArgument(f"rows {list(rows.shape)}, expected [rows, {s.hidden_size}] with at most {_MAX_ROWS} rows")
    if (expert_ids is None) == s.gate_on_client or (expert_weights is None) != (expert_ids is None):
        raise InvalidArgument("the gate is on this side: expert_ids and expert_weights must be given" if s.gate_on_client
                              else "the gate is on the FFN ranks: neither expert_ids nor expert_weights may be given")
    if (token_ids is None) == s.token_ids:
        raise InvalidArgument(f"token_ids must {'' if s.token_ids else 'not '}be given: the FFN ranks say token_ids={s.raw['token_ids']}")
    ids = weights = tokens = None
    if expert_ids is not None:
        ids, weights = _routing(s, len(rows), expert_ids, expert_weights)
    if token_ids is not None:
        tokens = np.asarray(token_ids)
        if tokens.shape != (len(rows),):
            raise InvalidArgument(f"token_ids {list(tokens.shape)}, expected [{len(rows)}]")
        _check_range("token id", tokens, s.vocab_size)
        tokens = np.ascontiguousarray(tokens, np.int32)
    return rows, ids, weights, tokens


def _routing(s: Settings, rows: int, expert_ids, expert_weights) -> tuple[np.ndarray, np.ndarray]:
    ids, weights = np.asarray(expert_ids), np.ascontiguousarray(expert_weights, np.float32)
    if ids.shape != (rows, s.top_k) or weights.shape != ids.shape:
        raise InvalidArgument(f"expert_ids {list(ids.shape)}, expert_weights {list(weights.shape)}, expected [{rows}, {s.top_k}]")
    _check_range("expert id", ids, s.num_experts)
    if not np.isfinite(weights).all() or not (weights != 0).any(axis=1).all():
        raise InvalidArgument("expert_weights: a weight that is not finite, or a row whose weights are all 0")
    return np.ascontiguousarray(ids, np.int32), weights


def _check_range(what: str, values: np.ndarray, limit: int) -> None:
    if values.dtype.kind not in "iu":
        raise InvalidArgument(f"{what}s of {values.dtype}: integers would do")
    bad = (values < 0) | (values >= limit)
    if bad.any():
        row = int(np.flatnonzero(bad.reshape(len(values), -1).any(axis=1))[0])
        raise OutOfRange(f"row {row}: {what} {values[bad].flat[0]} outside 0..{limit - 1}")
