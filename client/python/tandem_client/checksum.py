"""CRC-32C (Castagnoli) with numpy tables. A frame's checksum covers at most 60 + 8 x 32 bytes, so one lookup a byte position does."""

from __future__ import annotations

import numpy as np

_POLYNOMIAL = 0x82F63B78  # reflected
_CHUNK = 320  # header and all descriptors that a frame can have


def _position_tables() -> np.ndarray:
    """uint32 [_CHUNK, 256]: what a byte adds to the checksum when so many bytes follow it. The checksum is linear in its bytes."""
    first = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        first = np.where(first & 1, (first >> 1) ^ np.uint32(_POLYNOMIAL), first >> 1)
    tables = np.empty((_CHUNK, 256), np.uint32)
    tables[0] = first
    for position in range(1, _CHUNK):
        before = tables[position - 1]
        tables[position] = (before >> 8) ^ first[before & 0xFF]
    return tables


_TABLES = _position_tables()


def crc32c(data, crc: int = 0) -> int:
    """CRC-32C of bytes; `crc` continues an earlier result, 0 starts."""
    data = np.frombuffer(data, np.uint8)
    state = ~crc & 0xFFFFFFFF
    for begin in range(0, len(data), _CHUNK):
        chunk = data[begin:begin + _CHUNK]
        # The state goes in front: it meets the first four bytes, and what is longer than the chunk stays.
        head = np.frombuffer(state.to_bytes(4, "little"), np.uint8)
        mixed = chunk.copy()
        met = min(4, len(chunk))
        mixed[:met] ^= head[:met]
        positions = np.arange(len(chunk) - 1, -1, -1)
        rest = state >> (8 * met) if met < 4 else 0
        state = int(np.bitwise_xor.reduce(_TABLES[positions, mixed])) ^ rest
    return ~state & 0xFFFFFFFF
