"""Canaries: a request and a reply's output of the largest size that frames of the session have (docs/protocol.md section 4)."""

from __future__ import annotations

import numpy as np

from . import frame
from .formats import activation
from .frame import Header, Payload
from .settings import Settings

COUNT = 2


def build(settings: Settings, index: int, session: int, incarnation: int) -> bytearray:
    """Canary `index`: 0 a request that would be served, 1 an output of 64 rows."""
    header = Header(frame.CANARY, session=session, incarnation=incarnation, layer=settings.moe_layers[0], tile=index, tiles=COUNT,
                    rows=frame.TILE_ROWS, capacity=frame.TILE_ROWS)
    return frame.build(header, _request(settings) if index == 0 else _output(settings))


def _request(settings: Settings) -> list[Payload]:
    rows, random = frame.TILE_ROWS, np.random.default_rng(0)
    payloads = activation(random.uniform(-127, 127, (rows, settings.hidden_size)).astype(np.float32), settings.activation_dtype)
    if settings.gate_on_client:
        ids = random.integers(0, settings.num_experts, (rows, settings.top_k), dtype=np.int32)
        weights = random.uniform(0.1, 1, ids.shape).astype(np.float32)
        payloads += [Payload(frame.EXPERT_IDS, "i32", ids), Payload(frame.EXPERT_WEIGHTS, "f32", weights)]
    elif settings.token_ids:
        payloads.append(Payload(frame.TOKEN_IDS, "i32", random.integers(0, settings.vocab_size, (rows, 1), dtype=np.int32)))
    return payloads


def _output(settings: Settings) -> list[Payload]:
    bits = frame.DTYPES[settings.reply_dtype][1]
    size = frame.TILE_ROWS * settings.hidden_size * bits.itemsize
    values = np.random.default_rng(1).integers(0, 256, size, dtype=np.uint8)  # every byte takes many values
    return [Payload(frame.OUTPUT, settings.reply_dtype, values.view(bits).reshape(frame.TILE_ROWS, settings.hidden_size))]
