"""Bytes: frames, checksums and numbers of the pure-Python client against the golden frames and plain formulas."""

import re

import numpy as np
import pytest

from tandem_client import DataLoss, TandemError, Unsupported, frame
from tandem_client.checksum import crc32c
from tandem_client.expert_map import epoch_of
from tandem_client.formats import activation, from_bf16, quantize, to_bf16, to_e4m3
from tandem_client.settings import Settings, decode_hello
from tests.conftest import ROOT
from tests.golden import wire

HEADER = frame.Header(frame.FFN_REQUEST, session=0x0123456789ABCDEF, incarnation=0x11223344, step=7, layer=3, lane=1, tile=2, tiles=5, map_epoch=9,
                      rows=2, capacity=8, attempt=0x0A0B, row_class=2)
ROWS = np.array([[1, 2, 3], [-1, -2, -3]], np.float32)


def example():
    return frame.build(HEADER, [*activation(ROWS, "bf16"), frame.Payload(frame.TOKEN_IDS, "i32", np.array([[5], [511]], np.int32))])


GOLDEN = {path.stem: path.read_text() for path in sorted((ROOT / "tests" / "golden").glob("*.txt")) if not path.stem.startswith("tcp_")}


def golden_bytes(name):
    lines = re.findall(r"^[0-9a-f]{3,}  ((?:[0-9a-f]{2} ?){1,16})", GOLDEN[name].split("bytes:\n")[1], re.M)
    return bytes.fromhex("".join(lines))


def test_a_documented_request_is_what_is_sent_and_read():
    """From values, not from bytes."""
    assert bytes(example()) == golden_bytes("request_token_ids")
    read = frame.parse(golden_bytes("request_token_ids"))
    assert read.header == HEADER
    assert from_bf16(read.array(frame.ACTIVATION, "bf16", 3)).tolist() == ROWS.tolist()
    assert read.array(frame.TOKEN_IDS, "i32", 1).ravel().tolist() == [5, 511]


@pytest.mark.parametrize("name", [name for name, text in GOLDEN.items() if "frame: accepted" in text])
def test_golden_frames_are_read_and_written(name):
    """Those of a later minor or with gaps between rows are read; all others this client would write byte for byte."""
    read = frame.parse(golden_bytes(name))
    fields = dict(re.findall(r"^header (\w+): (.*)$", GOLDEN[name], re.M))
    for field in ("step", "layer", "tile", "rows", "attempt"):
        assert str(getattr(read.header, field)) == fields[field].split()[0], field
    if "encoder: writes these bytes" in GOLDEN[name]:
        assert bytes(frame.build(read.header, list(read.payloads.values()))) == golden_bytes(name)


@pytest.mark.parametrize("name", [name for name in GOLDEN if name.startswith("bad_")])
def test_bad_golden_frames_are_refused(name):
    with pytest.raises((DataLoss, Unsupported)):
        frame.parse(golden_bytes(name))


@pytest.mark.parametrize("length", (0, 1, 3, 4, 5, 60, 319, 320, 321, 1000))
def test_checksum(length):
    data = np.random.default_rng(length).integers(0, 256, length, dtype=np.uint8).tobytes()
    assert crc32c(data) == wire.crc32c(data)
    assert crc32c(data[7:], crc32c(data[:7])) == wire.crc32c(data)


def test_every_bit_of_header_and_descriptors_counts():
    good = example()
    for bit in range(8 * (64 + 2 * 32)):
        bad = bytearray(good)
        bad[bit // 8] ^= 1 << bit % 8
        with pytest.raises((DataLoss, Unsupported)):
            frame.parse(bad)


def test_the_number_of_a_map():
    """CRC-32C of each rank and its pieces as hello_ack carries them."""
    pieces = [np.array([[3, 0, 4, 0, 128, 0], [4, 0, 4, 0, 128, 0]], np.uint32), np.array([[3, 4, 8, 0, 128, 0]], np.uint32)]
    said = np.array([0, *pieces[0].ravel(), 1, *pieces[1].ravel()], "<u4").tobytes()
    assert epoch_of(pieces) == wire.crc32c(said) and epoch_of(pieces[::-1]) != epoch_of(pieces)


def with_checksum(data):
    end = 64 + 32 * data[55]
    data[60:64] = crc32c(bytes(data[:60]) + bytes(data[64:end])).to_bytes(4, "little")
    return data


def spoil(offset, value, size=4):
    data = example()
    data[offset:offset + size] = value.to_bytes(size, "little")
    return with_checksum(data)


@pytest.mark.parametrize("what,data", (
    ("gap", spoil(64 + 16, 192)), ("overlap", spoil(64 + 16, 64)), ("bytes", spoil(64 + 20, 13)), ("stride below a row", spoil(64 + 12, 4)),
    ("stride of half an element", spoil(64 + 12, 7)), ("flags", spoil(64 + 24, 3)), ("dtype", spoil(64 + 2, 200, 1)), ("twice", spoil(96, 1, 2)),
    ("header bytes", spoil(6, 96, 2)), ("total", spoil(12, 201)), ("a descriptor more", spoil(55, 3, 1)), ("nine", spoil(55, 9, 1)),
    ("a tail", with_checksum(example() + b"\0")), ("cut", with_checksum(example()[:-1])), ("short", example()[:40])))
def test_other_layouts_are_refused(what, data):
    with pytest.raises(DataLoss):
        frame.parse(data)


def test_whatever_comes_is_read_or_refused():
    """Golden frames with some bytes changed, most of them under a right checksum: no other exception than this client's own."""
    random, outcomes = np.random.default_rng(0), {True: 0, False: 0}
    seeds = [golden_bytes(name) for name, text in GOLDEN.items() if "frame: accepted" in text]
    for _ in range(4000):
        data = bytearray(seeds[random.integers(len(seeds))])
        told = 64 + 32 * data[55]  # header and descriptors: what the rest is read by
        for _ in range(random.integers(1, 5)):
            at = random.integers(64, told) if told > 64 and random.random() < 0.8 else random.integers(len(data))
            data[at] = random.choice((0, 1, 2, 4, 8, 128, 255, random.integers(256)))
        data[12:16] = len(data).to_bytes(4, "little")
        if 64 + 32 * data[55] <= len(data) and random.random() < 0.8:
            with_checksum(data)
        try:
            read = frame.parse(bytes(data))
            for role, payload in read.payloads.items():
                assert read.array(role, payload.dtype).nbytes <= len(data)
            if frame.SETTINGS in read.payloads:
                Settings.of(decode_hello(read.text(frame.SETTINGS))[1])
            outcomes[True] += 1
        except TandemError:
            outcomes[False] += 1
    assert min(outcomes.values()) > 400, outcomes


def test_an_unknown_role_is_skipped_unless_it_must_be_understood():
    for flags in (0, 1):
        data = example()
        data[96:98] = (77).to_bytes(2, "little")
        data[96 + 24] = flags
        if flags:
            with pytest.raises(Unsupported, match="role 77 must be understood"):
                frame.parse(with_checksum(data))
        else:
            assert list(frame.parse(with_checksum(data)).payloads) == [frame.ACTIVATION]


def test_another_major_is_named():
    with pytest.raises(Unsupported, match="protocol 9 there, 1 here"):
        frame.parse(with_checksum(spoil(4, 9, 1)))


def test_bf16_rounds_to_nearest_even():
    values = np.array([1.0, 1 + 2**-8, 1 + 3 * 2**-8, -1 - 2**-8 - 2**-12, 3.4e38, np.inf, -0.0], np.float32)
    assert from_bf16(to_bf16(values)).tolist() == [1.0, 1.0, 1 + 2**-6, -1 - 2**-7, np.inf, np.inf, -0.0]
    assert np.isnan(from_bf16(to_bf16(np.array([np.nan], np.float32))))[0]


def e4m3(code):
    exponent, mantissa = code >> 3 & 15, code & 7
    return (-1 if code & 128 else 1) * (mantissa * 2.0**-9 if exponent == 0 else (8 + mantissa) * 2.0**(exponent - 10))


E4M3 = np.array([e4m3(code) for code in range(256)])
FINITE = np.array([code for code in range(256) if code & 127 != 127])


def test_e4m3_codes():
    assert to_e4m3(E4M3[FINITE]).tolist() == FINITE.tolist()
    values = np.random.default_rng(0).uniform(-448, 448, 4096) * 2.0 ** np.random.default_rng(1).integers(-16, 1, 4096)
    distance = np.abs(E4M3[FINITE][None] - values[:, None])
    assert (np.abs(E4M3[to_e4m3(values)] - values) == distance.min(axis=1)).all()
    assert to_e4m3(np.array([17.0, 19.0, 2.0**-10, 3 * 2.0**-10])).tolist() == [0x58, 0x5A, 0, 2], "ties go to even codes"


@pytest.mark.parametrize("dtype,block", (("fp8", 128), ("mxfp8", 32), ("int8", None)))
def test_quantised_rows(dtype, block):
    rows = (np.random.default_rng(3).standard_normal((5, 200)) * 2.0 ** np.random.default_rng(4).integers(-12, 12, (5, 200))).astype(np.float32)
    rows[1, 40] = np.nan
    rows[2] = 0
    values, scale = quantize(rows, dtype)
    block = block or 200
    assert values.data.shape == (5, 200) and scale.data.shape == (5, -(-200 // block))
    factors = np.where(scale.data == 255, np.nan, 2.0 ** (scale.data.astype(float) - 127)) if dtype == "mxfp8" else scale.data.astype(float)
    numbers = values.data.astype(float) if dtype == "int8" else E4M3[values.data]
    restored = numbers * np.repeat(factors, block, axis=1)[:, :200]
    finite = np.isfinite(np.repeat(factors, block, axis=1)[:, :200])
    assert not finite[1, 40] and finite[0].all() and finite[1].sum() == 200 - (block if block < 200 else 200)
    # Half a step: of e4m3, 2^-4 of the value or 2^-10 of the scale; of int8, half the scale.
    factor = np.repeat(factors, block, axis=1)[:, :200]
    allowed = factor * 0.5001 if dtype == "int8" else np.maximum(np.abs(rows) / 16, factor * 2.0**-10)
    assert (np.abs(restored - rows)[finite] <= allowed[finite] * 1.0001).all()
    if dtype == "int8":
        assert np.allclose(factors[[0, 2, 3, 4], 0], np.maximum(np.abs(rows[[0, 2, 3, 4]]).max(axis=1), 1e-4) / 127)
        assert values.data.min() >= -127
    else:  # the smallest power of two that will do, at least 2^-22
        for row in (0, 3, 4):
            for index in range(factors.shape[1]):
                largest = np.abs(rows[row, index * block:(index + 1) * block]).max()
                assert largest <= 448 * factors[row, index] and (largest > 224 * factors[row, index] or factors[row, index] == 2.0**-22)
