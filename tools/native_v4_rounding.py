"""The roundings that DeepSeek-V4 was trained with, in numpy: keys and entries to fp8, the indexer's vectors to fp4 after a Hadamard
rotation; and those of rows on their way to the experts. By tables of the formats' values, not by arithmetic on bits."""

import numpy as np

import native_v4

FP8_VALUES = native_v4.decode_e4m3(np.arange(127, dtype=np.uint8)).astype(np.float64)  # code 127 is NaN
FP4_VALUES = native_v4.E2M1[:8].astype(np.float64)
FP8_BLOCK, FP4_BLOCK = 64, 32
FP8_FLOOR, FP4_FLOOR = 1e-4, 6 * 2.0**-126  # the magnitude that a block is at least taken to have


def nearest(x, values):
    """The nearest of `values`, which ascend from 0, and their negatives; of two as near, the one with the even code."""
    middles = (values[1:] + values[:-1]) / 2
    size = np.abs(x)
    code = np.searchsorted(middles, size, side="left")  # a tie goes to the lower code
    tie = (code < len(middles)) & (size == middles[np.minimum(code, len(middles) - 1)])
    return np.copysign(values[code + (tie & (code % 2 == 1))], x)


def rounded(x, block, values, floor):
    """x [..., columns] in blocks of columns, each times the smallest power of two that brings the block within `values`."""
    out = np.empty_like(x)
    for begin in range(0, x.shape[-1], block):
        part = x[..., begin:begin + block]
        mantissa, exponent = np.frexp(np.maximum(np.abs(part).max(-1, keepdims=True), floor) / values[-1])
        scale = np.exp2(np.where(mantissa == 0.5, exponent - 1, exponent))
        out[..., begin:begin + block] = nearest(part / scale, values) * scale
    return out


def fp8(x):
    return rounded(x, FP8_BLOCK, FP8_VALUES, FP8_FLOOR)


def crossing(x, activation_dtype):
    """Rows as the experts get them with this afd.activation_dtype."""
    if activation_dtype == "int8":
        scale = np.abs(x).max(-1, keepdims=True) / 127
        return np.rint(x / scale) * scale
    return rounded(x, {"fp8": 128, "mxfp8": 32}[activation_dtype], FP8_VALUES, FP8_FLOOR)


def hadamard(size):
    """Sylvester's matrix, scaled to be orthogonal."""
    matrix = np.ones((1, 1))
    while len(matrix) < size:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    return matrix * size**-0.5


def hadamard_fp4(x):
    return rounded(x @ hadamard(x.shape[-1]), FP4_BLOCK, FP4_VALUES, FP4_FLOOR)
