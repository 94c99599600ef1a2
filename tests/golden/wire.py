"""The bytes of docs/protocol.md, written from that page and from nothing else: no line here comes from the C++ encoder or from the Python
client, so that they can disagree. A frame is built as asked, right or wrong. For all tests that speak to a rank as a stranger does."""

import binascii
import struct

KINDS = {"hello": 1, "hello_ack": 2, "refuse": 3, "canary": 4, "canary_echo": 5, "ffn_request": 16, "ffn_reply": 17, "cancel": 18,
         "drain": 19, "goodbye": 20}
ROLES = {"activation": 1, "activation_scale": 2, "token_ids": 3, "expert_ids": 4, "expert_weights": 5, "output": 6, "reply_times": 7,
         "error_code": 8, "error_text": 9, "settings": 10, "pieces": 11, "shared_rows": 12}
# Name: (number, struct letter); bf16 has none.
DTYPES = {"f32": (1, "f"), "bf16": (2, None), "f16": (3, "e"), "f64": (4, "d"), "f8_e4m3": (5, "B"), "f8_e5m2": (6, "B"),
          "f8_e8m0": (7, "B"), "i8": (8, "b"), "u8": (9, "B"), "i16": (10, "h"), "u16": (11, "H"), "i32": (12, "i"), "u32": (13, "I"),
          "i64": (14, "q"), "u64": (15, "Q"), "boolean": (16, "B")}
# Header fields in order of their offsets: name, struct letter.
HEADER = [("magic", "I"), ("major", "B"), ("minor", "B"), ("header_bytes", "H"), ("kind", "H"), ("flags", "H"), ("total_bytes", "I"),
          ("session", "Q"), ("incarnation", "I"), ("step", "I"), ("layer", "H"), ("lane", "H"), ("tile", "H"), ("tiles", "H"),
          ("map_epoch", "I"), ("rows", "I"), ("capacity", "I"), ("attempt", "H"), ("row_class", "B"), ("descriptors", "B"),
          ("program", "I")]
DESCRIPTOR = [("role", "H"), ("dtype", "B"), ("block", "B"), ("rows", "I"), ("cols", "I"), ("stride", "I"), ("offset", "I"),
              ("bytes", "I"), ("flags", "I"), ("reserved", "I")]
HEX_FIELDS = ("session", "incarnation", "magic", "header_crc")
MAGIC = 0x44464154
TCP_MAGIC = 0x54444E54


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def align(offset):
    return (offset + 63) // 64 * 64


def pack_values(dtype, values):
    if isinstance(values, str):
        return values.encode()
    if dtype == "bf16":  # only values that bf16 holds exactly are written here
        return b"".join(struct.pack("<f", value)[2:] for value in values)
    return struct.pack(f"<{len(values)}{DTYPES[dtype][1]}", *values)


def element_bytes(dtype):
    return 2 if dtype == "bf16" else struct.calcsize("<" + DTYPES[dtype][1])


class Payload:
    """`values`: row after row, or text. `pad`: bytes behind every row. `lies`: descriptor fields that are to say something else."""

    def __init__(self, role, dtype, rows, cols, values, block=0, pad=0, optional=False, lies=None):
        self.role, self.dtype, self.rows, self.cols, self.values, self.block = role, dtype, rows, cols, values, block
        self.pad, self.optional, self.lies = pad, optional, lies or {}

    def data(self):
        data = pack_values(self.dtype, self.values)
        if not self.pad:
            return data
        row = self.cols * element_bytes(self.dtype)
        return b"".join(data[at:at + row] + bytes(self.pad) for at in range(0, len(data), row))


def pack(fields, values):
    return b"".join(struct.pack("<" + letter, values[name]) for name, letter in fields)


class Frame:
    """`changes`: header fields that are to say something else than what belongs there; `damage`: {offset: byte} after the checksum."""

    def __init__(self, kind, payloads=(), damage=None, cut=None, tail=0, **changes):
        self.kind, self.payloads, self.damage, self.cut, self.tail = kind, list(payloads), damage or {}, cut, tail
        self.changes = changes
        self.lay_out()

    def lay_out(self):
        table_end = end = 64 + 32 * len(self.payloads)
        self.table, body = [], b""
        for payload in self.payloads:
            data = payload.data()
            start = align(end)
            body += bytes(start - end) + data
            end = start + len(data)
            row = payload.cols * element_bytes(payload.dtype)
            fields = {"role": ROLES.get(payload.role, payload.role), "dtype": DTYPES[payload.dtype][0], "block": payload.block,
                      "rows": payload.rows, "cols": payload.cols, "stride": row + payload.pad, "offset": start, "bytes": len(data),
                      "flags": 0 if payload.optional else 1, "reserved": 0}
            fields.update(payload.lies)
            self.table.append(fields)
        header = {name: 0 for name, _ in HEADER}
        header.update(magic=MAGIC, major=1, header_bytes=64, kind=KINDS.get(self.kind, self.kind), total_bytes=end + self.tail,
                      descriptors=len(self.payloads))
        header.update(self.changes)
        self.header = header
        head, table = pack(HEADER, header), b"".join(pack(DESCRIPTOR, fields) for fields in self.table)
        counted = (table + body)[:32 * header["descriptors"]]
        header["header_crc"] = crc32c(head + counted)
        assert table_end == 64 + len(table)
        data = bytearray(head + struct.pack("<I", header["header_crc"]) + table + body + bytes(self.tail))
        for offset, byte in self.damage.items():
            data[offset] = byte
        self.bytes = bytes(data[:self.cut] if self.cut is not None else data)


def tcp_head(kind, channel=0, value=0, zero=0):
    head = struct.pack("<IBBHI", TCP_MAGIC, kind, channel, zero, value)
    return head + struct.pack("<I", binascii.crc32(head))


def carrier_hello(slots=8, slot_bytes=262144, heartbeat_us=100000, silence_us=800000, version=1, carrier=0, security=0):
    return struct.pack("<IIIIQQQII", 0x48444E54, version, slots, 0, slot_bytes, heartbeat_us, silence_us, carrier, security) + bytes(16)
