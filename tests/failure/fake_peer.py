"""A peer of another release: as much of docs/protocol.md as a handshake over tcp needs, written from that page."""

import binascii
import socket
import struct

HELLO, HELLO_ACK, REFUSE = 1, 2, 3  # frame kinds
SETTINGS, PIECES, ERROR_TEXT = 10, 11, 9  # payload roles
U8, U32 = 9, 13  # dtypes
TCP_HELLO, TCP_DATA = 1, 2


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def align(offset):
    return (offset + 63) // 64 * 64


def frame(kind, payloads, major=1, session=0, incarnation=0):
    """`payloads`: [(role, dtype, element bytes, rows, columns, bytes)]."""
    table, body, offset = b"", b"", 64 + 32 * len(payloads)
    for role, dtype, element, rows, columns, data in payloads:
        start = align(offset)
        body += bytes(start - offset) + data
        offset = start + len(data)
        table += struct.pack("<HBBIIIIIII", role, dtype, 0, rows, columns, columns * element, start, len(data), 1, 0)
    header = struct.pack("<4sBBHHHIQIIHHHHIIIHBBI", b"TAFD", major, 0, 64, kind, 0, offset, session, incarnation, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
                         len(payloads), 0)
    assert len(header) == 60
    return header + struct.pack("<I", crc32c(header + table)) + table + body


def payload(message, wanted):
    for index in range(message[55]):
        role, _, _, _, _, _, offset, length, _, _ = struct.unpack_from("<HBBIIIIIII", message, 64 + 32 * index)
        if role == wanted:
            return message[offset:offset + length]
    return None


def settings_frame(kind, lines, major=1, **header):
    text = "".join(f"{key}={value}\n" for key, value in lines).encode()
    payloads = [(SETTINGS, U8, 1, 1, len(text), text)]
    if kind == HELLO_ACK:
        payloads.append((PIECES, U32, 4, 1, 6, bytes(24)))
    return frame(kind, payloads, major, **header)


def identity(role):
    return [("peer.role", role), ("peer.rank", 0), ("peer.name", "elsewhere:1"), ("peer.incarnation", 7)]


def stream_head(kind, value):
    head = struct.pack("<IBBHI", 0x54444E54, kind, 0, 0, value)
    return head + struct.pack("<I", binascii.crc32(head))


def carrier_hello(slot_bytes=262144, carrier=0):
    """What every carrier compares first: 8 slots of 256 KiB, heartbeats of 0.1 s, 0.8 s of silence. `carrier` 1: UCX follows."""
    return struct.pack("<IIIIQQQI", 0x48444E54, 1, 8, 0, slot_bytes, 100000, 800000, carrier) + bytes(20)


class Connection:
    """The tcp carrier under it: greets with the options of the other side, whatever they are."""

    def __init__(self, connected, greets_first):
        self.socket = connected
        self.socket.settimeout(60)
        if greets_first:
            self._head(TCP_HELLO, 64)
            self.socket.sendall(carrier_hello())
        greeting = self._read(16 + 64)[16:]
        if not greets_first:
            self._head(TCP_HELLO, 64)
            self.socket.sendall(greeting)

    def _head(self, kind, value):
        self.socket.sendall(stream_head(kind, value))

    def _read(self, count):
        data = b""
        while len(data) < count:
            more = self.socket.recv(count - len(data))
            if not more:
                raise EOFError("the peer closed the connection")
            data += more
        return data

    def send(self, message):
        self._head(TCP_DATA, len(message))
        self.socket.sendall(message)

    def receive(self):
        """The next frame; heartbeats and credits are skipped."""
        while True:
            _, kind, _, _, value, _ = struct.unpack("<IBBHII", self._read(16))
            if kind == TCP_DATA:
                return self._read(value)


def connect(address):
    host, port = address.removeprefix("tcp://").rsplit(":", 1)
    return Connection(socket.create_connection((host, int(port))), greets_first=True)
