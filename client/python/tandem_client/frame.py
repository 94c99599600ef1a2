"""Frames (docs/protocol.md sections 1 and 2): header, descriptors, payloads; built and taken apart with every rule of the layout."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field, replace

import numpy as np

from .checksum import crc32c
from .errors import DataLoss, Unsupported

MAGIC, MAJOR, MINOR = b"TAFD", 1, 0
HEADER_BYTES, DESCRIPTOR_BYTES, ALIGNMENT, MAX_DESCRIPTORS, MAX_FRAME_BYTES = 64, 32, 64, 8, 1 << 30
TILE_ROWS = 64  # the unit of transfer

# Kinds
HELLO, HELLO_ACK, REFUSE, CANARY, CANARY_ECHO = 1, 2, 3, 4, 5
FFN_REQUEST, FFN_REPLY, CANCEL, DRAIN, GOODBYE = 16, 17, 18, 19, 20
_WITH_ROWS = (CANARY, CANARY_ECHO, FFN_REQUEST, FFN_REPLY)
# Roles of payloads
ACTIVATION, ACTIVATION_SCALE, TOKEN_IDS, EXPERT_IDS, EXPERT_WEIGHTS, OUTPUT = 1, 2, 3, 4, 5, 6
REPLY_TIMES, ERROR_CODE, ERROR_TEXT, SETTINGS, PIECES, SHARED_ROWS = 7, 8, 9, 10, 11, 12
_ROWS = (ACTIVATION, ACTIVATION_SCALE, TOKEN_IDS, EXPERT_IDS, EXPERT_WEIGHTS, SHARED_ROWS)
# What a frame of a kind may carry.
_ROLES = {HELLO: (SETTINGS,), HELLO_ACK: (SETTINGS, PIECES), REFUSE: (ERROR_CODE, ERROR_TEXT), CANARY: (*_ROWS, OUTPUT), CANARY_ECHO: (*_ROWS, OUTPUT),
          FFN_REQUEST: _ROWS, FFN_REPLY: (OUTPUT, REPLY_TIMES, ERROR_CODE, ERROR_TEXT), CANCEL: (), DRAIN: (), GOODBYE: ()}
# Header flags
PARTIAL, BY_MAP = 1, 2

ROW_CLASSES = {"decode": 0, "draft": 1, "prefill": 2, "profile": 3}

# name -> (number on the wire, numpy's type for its bits; bf16 and the 8-bit floats have none of their own)
DTYPES = {"f32": (1, np.dtype("<f4")), "bf16": (2, np.dtype("<u2")), "f16": (3, np.dtype("<f2")), "f64": (4, np.dtype("<f8")),
          "f8_e4m3": (5, np.dtype("u1")), "f8_e5m2": (6, np.dtype("u1")), "f8_e8m0": (7, np.dtype("u1")), "i8": (8, np.dtype("i1")),
          "u8": (9, np.dtype("u1")), "i16": (10, np.dtype("<i2")), "u16": (11, np.dtype("<u2")), "i32": (12, np.dtype("<i4")),
          "u32": (13, np.dtype("<u4")), "i64": (14, np.dtype("<i8")), "u64": (15, np.dtype("<u8")), "boolean": (16, np.dtype("u1"))}
_BY_NUMBER = {number: (name, bits) for name, (number, bits) in DTYPES.items()}

_HEADER = struct.Struct("<4sBBHHHIQIIHHHHIIIHBBI")  # bytes 0..59; the checksum follows
_DESCRIPTOR = struct.Struct("<HBBIIIIIII")


@dataclass(frozen=True)
class Header:
    kind: int
    flags: int = 0
    session: int = 0
    incarnation: int = 0
    step: int = 0
    layer: int = 0
    lane: int = 0
    tile: int = 0
    tiles: int = 0
    map_epoch: int = 0
    rows: int = 0
    capacity: int = 0
    attempt: int = 0
    row_class: int = 0
    program: int = 0

    def request_key(self) -> tuple[int, ...]:
        """What a reply repeats of its request, beside session and incarnation."""
        return (self.step, self.layer, self.lane, self.attempt, self.tile)


@dataclass
class Payload:
    """`data`: an array of the bits of `dtype`, [rows, cols] without gaps."""

    role: int
    dtype: str
    data: np.ndarray
    log2_block: int = 0


@dataclass
class Frame:
    header: Header
    payloads: dict[int, Payload] = field(default_factory=dict)  # by role

    def array(self, role: int, dtype: str, cols: int | None = None, rows: int | None = None) -> np.ndarray:
        """The payload's [rows, cols]; DataLoss where it is missing or something else. None: any number."""
        payload = self.payloads.get(role)
        if payload is None or payload.dtype != dtype or any(want not in (None, have) for want, have in zip((rows, cols), payload.data.shape, strict=True)):
            have = "none" if payload is None else f"{payload.dtype} {list(payload.data.shape)}"
            wanted = ", ".join("any" if want is None else str(want) for want in (rows, cols))
            raise DataLoss(f"frame of kind {self.header.kind}: payload {role} is {have}, expected {dtype} [{wanted}]")
        return payload.data

    def text(self, role: int) -> bytes:
        return self.array(role, "u8").tobytes()


def _aligned(offset: int) -> int:
    return (offset + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT


def build(header: Header, payloads: list[Payload]) -> bytearray:
    """The frame's bytes. Every payload must be understood."""
    end = HEADER_BYTES + DESCRIPTOR_BYTES * len(payloads)
    places, table = [], b""
    for payload in payloads:
        number, bits = DTYPES[payload.dtype]
        rows, cols = payload.data.shape
        start = _aligned(end)
        end = start + payload.data.nbytes
        places.append((start, end))
        table += _DESCRIPTOR.pack(payload.role, number, payload.log2_block, rows, cols, cols * bits.itemsize, start, end - start, 1, 0)
    head = _HEADER.pack(MAGIC, MAJOR, MINOR, HEADER_BYTES, header.kind, header.flags, end, header.session, header.incarnation, header.step,
                        header.layer, header.lane, header.tile, header.tiles, header.map_epoch, header.rows, header.capacity, header.attempt,
                        header.row_class, len(payloads), header.program)
    frame = bytearray(end)
    frame[:60] = head
    frame[60:64] = crc32c(head + table).to_bytes(4, "little")
    frame[64:64 + len(table)] = table
    target = np.frombuffer(frame, np.uint8)
    for (start, stop), payload in zip(places, payloads, strict=True):
        target[start:stop] = np.ascontiguousarray(payload.data, DTYPES[payload.dtype][1]).reshape(-1).view(np.uint8)
    return frame


def parse(message) -> Frame:
    """The inverse, for frames of any peer. Views of `message`, not copies. DataLoss or Unsupported say which rule is broken."""
    view = memoryview(message)
    if len(view) < HEADER_BYTES or bytes(view[:4]) != MAGIC:
        raise DataLoss(f"frame: {len(view)} bytes that do not begin with TAFD")
    (_, major, _, header_bytes, kind, flags, total, session, incarnation, step, layer, lane, tile, tiles, epoch, rows, capacity, attempt,
     row_class, count, program) = _HEADER.unpack(view[:60])
    if major != MAJOR:
        raise Unsupported(f"frame: protocol {major} there, {MAJOR} here: run the same release on both sides")
    table_end = HEADER_BYTES + DESCRIPTOR_BYTES * count
    if header_bytes != HEADER_BYTES or total != len(view) or count > MAX_DESCRIPTORS or table_end > total:
        raise DataLoss(f"frame: header of {header_bytes} bytes, {count} descriptors, {total} bytes in a message of {len(view)}")
    if int.from_bytes(view[60:64], "little") != crc32c(bytes(view[:60]) + bytes(view[64:table_end])):
        raise DataLoss("frame: wrong checksum of header and descriptors")
    frame = Frame(Header(kind, flags, session, incarnation, step, layer, lane, tile, tiles, epoch, rows, capacity, attempt, row_class, program))
    _check_header(frame.header)
    end = table_end
    for index in range(count):
        end = _take_payload(view, frame, index, end)
    if end != total:
        raise DataLoss(f"frame: {total - end} bytes behind the last payload")
    return frame


def _check_header(header: Header) -> None:
    with_rows = header.kind in _WITH_ROWS
    if header.kind not in _ROLES:
        raise Unsupported(f"frame: kind {header.kind} is unknown to protocol {MAJOR}.{MINOR}")
    if header.flags not in (0, PARTIAL, PARTIAL | BY_MAP) or (header.flags and not with_rows and header.kind != CANCEL):
        raise DataLoss(f"frame: flags {header.flags} in a frame of kind {header.kind}")
    if not header.rows <= header.capacity <= TILE_ROWS or header.row_class > max(ROW_CLASSES.values()):
        raise DataLoss(f"frame: {header.rows} rows, capacity {header.capacity}, row class {header.row_class}")
    if with_rows and header.tile >= header.tiles:
        raise DataLoss(f"frame: tile {header.tile} of {header.tiles}")


def _take_payload(view: memoryview, frame: Frame, index: int, end: int) -> int:
    fields = _DESCRIPTOR.unpack_from(view, HEADER_BYTES + DESCRIPTOR_BYTES * index)
    role, number, log2_block, rows, cols, stride, offset, size, flags, reserved = fields
    known = _BY_NUMBER.get(number)
    if known is None and ACTIVATION <= role <= SHARED_ROWS:
        raise DataLoss(f"frame: descriptor {index}: dtype {number} is unknown")
    element = known[1].itemsize if known else 1
    if (known and (stride < cols * element or stride % element)) or rows * stride != size or offset != _aligned(end) \
            or offset + size > len(view) or flags & ~1 or reserved or (log2_block and role != ACTIVATION_SCALE):
        raise DataLoss(f"frame: descriptor {index}: {rows} x {cols} with {stride} bytes a row, {size} bytes at {offset}, flags {flags}")
    if not ACTIVATION <= role <= SHARED_ROWS:
        if flags & 1:
            raise Unsupported(f"frame: payload role {role} must be understood and is unknown to protocol {MAJOR}.{MINOR}")
        return offset + size
    if role in frame.payloads or role not in _ROLES[frame.header.kind]:
        raise DataLoss(f"frame: payload {role} appears twice, or does not belong into a frame of kind {frame.header.kind}")
    block = np.frombuffer(view[offset:offset + size], np.uint8)
    data = block.reshape(rows, stride)[:, :cols * element] if size else np.empty((rows, cols * element), np.uint8)
    if stride != cols * element:
        data = np.ascontiguousarray(data)
    frame.payloads[role] = Payload(role, known[0], data.view(known[1]) if cols else np.empty((rows, 0), known[1]), log2_block)
    return offset + size


def echo_of(canary) -> bytearray:
    """What must come back: the same bytes, kind canary_echo, a checksum of its own."""
    frame = bytearray(canary)
    table_end = HEADER_BYTES + DESCRIPTOR_BYTES * frame[55]
    frame[8:10] = CANARY_ECHO.to_bytes(2, "little")
    frame[60:64] = crc32c(bytes(frame[:60]) + bytes(frame[64:table_end])).to_bytes(4, "little")
    return frame


__all__ = ["Frame", "Header", "Payload", "build", "parse", "echo_of", "replace"]
