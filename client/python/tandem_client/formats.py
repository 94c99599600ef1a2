"""Numbers of activations on the wire: bf16 as bits, and rows of eight bits with their scales (docs/protocol.md, quantised rows)."""

from __future__ import annotations

import numpy as np

from .errors import InvalidArgument
from .frame import ACTIVATION, ACTIVATION_SCALE, Payload

# activation_dtype of the settings -> (dtype of the values, dtype of the scales, log2 of a scale's block; int8: the row)
QUANTIZED = {"fp8": ("f8_e4m3", "f32", 7), "mxfp8": ("f8_e4m3", "f8_e8m0", 5), "int8": ("i8", "f32", 0)}

_E4M3_MAX = 448.0
_SMALLEST_EXPONENT = -22  # of an e4m3 scale: what the models were trained with


def to_bf16(values: np.ndarray) -> np.ndarray:
    """Floats -> uint16 bits, rounded to nearest even; NaN stays NaN."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    rounded = ((bits + (0x7FFF + ((bits >> 16) & 1))) >> 16).astype(np.uint16)
    return np.where(np.isnan(values), np.uint16(0x7FC0), rounded)


def from_bf16(bits: np.ndarray) -> np.ndarray:
    """uint16 bits -> float32, exact."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def to_e4m3(values: np.ndarray) -> np.ndarray:
    """Floats of at most 448 -> uint8 codes, rounded to nearest even."""
    magnitude = np.abs(values.astype(np.float64))
    exponent = np.maximum(np.frexp(magnitude)[1] - 1, -6)  # below 2^-6 numbers are subnormal
    rounded = np.rint(np.ldexp(magnitude, 3 - exponent)).astype(np.int64)  # 8..16, or 0..8 when subnormal
    # Normal: (exponent + 7) << 3 | rounded - 8; a carry to 16 and a subnormal come out right by the same sum.
    codes = np.where(magnitude == 0, 0, ((exponent + 6) << 3) + rounded)
    return (codes | np.where(np.signbit(values), 0x80, 0)).astype(np.uint8)


def _quantize_blocks(rows: np.ndarray, block: int) -> tuple[np.ndarray, np.ndarray]:
    """[rows, hidden] -> codes [rows, hidden], exponents [rows, blocks] (NaN for a block that is not finite)."""
    count, hidden = rows.shape
    blocks = -(-hidden // block)
    padded = np.zeros((count, blocks * block), np.float32)
    padded[:, :hidden] = rows
    padded = padded.reshape(count, blocks, block)
    largest = np.abs(padded).max(axis=2)
    finite = np.isfinite(largest)
    mantissa, exponent = np.frexp(np.where(finite, largest, 1.0).astype(np.float64) / _E4M3_MAX)
    exponent = np.where(mantissa == 0.5, exponent - 1, np.where(mantissa == 0, _SMALLEST_EXPONENT, exponent))  # 0 has the exponent 0
    exponent = np.maximum(exponent, _SMALLEST_EXPONENT)
    scaled = np.where(finite[:, :, None], padded, 0.0) * np.ldexp(1.0, -exponent)[:, :, None]
    codes = to_e4m3(scaled).reshape(count, -1)[:, :hidden]
    return codes, np.where(finite, exponent.astype(np.float64), np.nan)


def quantize(rows: np.ndarray, dtype: str) -> list[Payload]:
    """float32 [rows, hidden] -> activation and activation_scale of `dtype` (fp8, mxfp8 or int8)."""
    values, scales, log2_block = QUANTIZED[dtype]
    rows = np.ascontiguousarray(rows, np.float32)
    if dtype == "int8":
        largest = np.abs(rows).max(axis=1, keepdims=True, initial=0)
        finite = np.isfinite(largest)
        # All in float32: the same bits as the other side's own ranks send.
        largest = np.maximum(np.where(finite, largest, 1), np.float32(1e-4)).astype(np.float32)
        codes = np.rint(np.where(finite, rows, np.float32(0)) * (np.float32(127) / largest)).astype(np.int8)
        scale = np.where(finite, largest / np.float32(127), np.float32(np.nan))
    else:
        codes, exponent = _quantize_blocks(rows, 1 << log2_block)
        whole = np.nan_to_num(exponent).astype(np.int32)
        if dtype == "fp8":
            scale = np.where(np.isnan(exponent), np.float32(np.nan), np.ldexp(np.float32(1), whole))
        else:
            scale = np.where(np.isnan(exponent), 255, whole + 127).astype(np.uint8)
    return [Payload(ACTIVATION, values, codes), Payload(ACTIVATION_SCALE, scales, scale, log2_block)]


def activation(rows: np.ndarray, dtype: str) -> list[Payload]:
    """Rows as `dtype` of the settings. `rows` [rows, hidden]: floats, or uint16 that are bf16 bits already."""
    is_bits = rows.dtype == np.uint16
    if not is_bits and rows.dtype.kind != "f":
        raise InvalidArgument(f"rows of {rows.dtype}: floats, or the bits of bf16 as uint16, would do")
    if dtype == "bf16":
        return [Payload(ACTIVATION, "bf16", rows if is_bits else to_bf16(rows))]
    plain = from_bf16(rows) if is_bits else rows
    if dtype == "f32":
        return [Payload(ACTIVATION, "f32", np.ascontiguousarray(plain, np.float32))]
    return quantize(plain, dtype)
