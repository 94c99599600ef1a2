"""A rank with one thing wrong: a proxy in front of a right one, which changes what passes. To whoever connects it is another program
that nearly keeps to docs/protocol.md."""

import socket
import struct
import threading
import time

from tests.golden.wire import KINDS, ROLES, TCP_MAGIC, crc32c, tcp_head

HELLO, DATA, CREDIT, HEARTBEAT, NONCE, PROOF = 1, 2, 3, 4, 8, 9
WITH_BODY = (HELLO, DATA, NONCE, PROOF)
CONTROL, REQUEST, EXCHANGE = 0, 1, 2
MOST_BYTES = 1 << 20  # of a message of these tests; a head that says more is passed on as it is
NAMES = {number: name for name, number in KINDS.items()}


class Message:
    """A frame of the protocol inside a carrier's data frame."""

    # Header fields that mutations change: offset and struct letter.
    FIELDS = {"kind": (8, "H"), "flags": (10, "H"), "session": (16, "Q"), "incarnation": (24, "I"), "step": (28, "I"), "layer": (32, "H"),
              "tile": (36, "H"), "rows": (44, "I"), "attempt": (52, "H"), "crc": (60, "I")}

    def __init__(self, data):
        self.data = bytearray(data)
        self.is_frame = len(data) >= 64 and data[:4] == b"TAFD" and len(data) >= 64 + 32 * data[55]

    @property
    def kind(self):
        return NAMES.get(self["kind"]) if self.is_frame else None

    def __getitem__(self, name):
        offset, letter = self.FIELDS[name]
        return struct.unpack_from("<" + letter, self.data, offset)[0]

    def __setitem__(self, name, value):
        offset, letter = self.FIELDS[name]
        struct.pack_into("<" + letter, self.data, offset, value)

    def checksum(self):
        return crc32c(self.data[:60] + self.data[64:64 + 32 * self.data[55]])

    def is_sound(self):
        return self.is_frame and self["crc"] == self.checksum()

    def seal(self):
        self["crc"] = self.checksum()
        return self

    def payload(self, role):
        """(offset, length, rows, columns) of a payload, or None."""
        for index in range(self.data[55]):
            number, _, _, rows, columns, _, offset, length = struct.unpack_from("<HBBIIIII", self.data, 64 + 32 * index)
            if number == ROLES[role]:
                return offset, length, rows, columns
        return None

    def values(self, role, letter):
        found = self.payload(role)
        if found is None:
            return []
        return list(struct.unpack_from(f"<{found[1] // struct.calcsize(letter)}{letter}", self.data, found[0]))

    def set_values(self, role, letter, values):
        found = self.payload(role)
        if found is not None:
            struct.pack_into(f"<{len(values)}{letter}", self.data, found[0], *values)


class Mutation:
    """Passes everything on. One object a connection; `up` is what the client sends, `down` what the rank answers; each gives the frames
    that go on: (kind, channel, value or message)."""

    def up(self, kind, channel, value):
        return [(kind, channel, value)]

    def down(self, kind, channel, value):
        return [(kind, channel, value)]

    def connected(self, to_rank):
        pass


def encode(kind, channel, value):
    if kind not in WITH_BODY:
        return tcp_head(kind, channel, value)
    body = bytes(value.data) if isinstance(value, Message) else value
    return tcp_head(kind, channel, len(body)) + body


class Passage:
    """One direction of a connection."""

    def __init__(self, source, target, change):
        self.source, self.target, self.change = source, target, change
        self.raw, self.held = False, b""

    def run(self):
        try:
            while data := self.source.recv(1 << 16):
                for out in self.take(self.held + data):
                    self.target.sendall(out)
            self.target.sendall(self.held)
            self.target.shutdown(socket.SHUT_WR)
        except OSError:
            for end in (self.source, self.target):
                try:
                    end.shutdown(socket.SHUT_RDWR)
                except OSError:
                    pass

    def take(self, data):
        """What goes on, frame by frame: a mutation that waits holds back what it waits with, and nothing before it."""
        while not self.raw and len(data) >= 16:
            magic, kind, channel, _, value, _ = struct.unpack_from("<IBBHII", data)
            if magic != TCP_MAGIC or data[:16] != tcp_head(kind, channel, value) or value > MOST_BYTES:
                self.raw = True  # the client breaks its stream: the rank's to judge
                break
            end = 16 + (value if kind in WITH_BODY else 0)
            if len(data) < end:
                break
            content = Message(data[16:end]) if kind == DATA else data[16:end] if kind in WITH_BODY else value
            yield b"".join(encode(*frame) for frame in self.change(kind, channel, content))
            data = data[end:]
        self.held = b"" if self.raw else data
        if self.raw:
            yield data


class MutatedRank:
    """Listens at `address` until it is closed."""

    def __init__(self, rank_address, make_mutation=Mutation):
        host, port = rank_address.removeprefix("tcp://").rsplit(":", 1)
        self.rank, self.make_mutation = (host, int(port)), make_mutation
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"tcp://127.0.0.1:{self.listener.getsockname()[1]}"
        self.open = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            try:
                client, _ = self.listener.accept()
                rank = socket.create_connection(self.rank)
            except OSError:
                return
            for end in (client, rank):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self.open.append(end)
            mutation = self.make_mutation()
            mutation.connected(rank)
            for passage in (Passage(client, rank, mutation.up), Passage(rank, client, mutation.down)):
                threading.Thread(target=passage.run, daemon=True).start()

    def close(self):
        self.listener.close()
        for end in self.open:
            end.close()


def beat_for(rank, seconds):
    """Heartbeats to the rank in the client's name."""
    deadline = time.monotonic() + seconds
    try:
        while time.monotonic() < deadline:
            rank.sendall(tcp_head(HEARTBEAT))
            time.sleep(0.05)
    except OSError:
        pass
