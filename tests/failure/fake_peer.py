"""A peer of another release: as much of docs/protocol.md as a handshake over tcp needs. Its bytes are those of tests/golden/wire.py."""

import socket
import struct

from tests.golden import wire

HELLO, HELLO_ACK, REFUSE = (wire.KINDS[name] for name in ("hello", "hello_ack", "refuse"))
SETTINGS, ERROR_TEXT = wire.ROLES["settings"], wire.ROLES["error_text"]
TCP_HELLO, TCP_DATA = 1, 2


def payload(message, wanted):
    for index in range(message[55]):
        role, _, _, _, _, _, offset, length, _, _ = struct.unpack_from("<HBBIIIIIII", message, 64 + 32 * index)
        if role == wanted:
            return message[offset:offset + length]
    return None


def settings_frame(kind, lines, major=1, **header):
    text = "".join(f"{key}={value}\n" for key, value in lines)
    payloads = [wire.Payload("settings", "u8", 1, len(text), text)]
    if kind == HELLO_ACK:
        payloads.append(wire.Payload("pieces", "u32", 1, 6, [0] * 6))
    return wire.Frame(kind, payloads, major=major, **header).bytes


def identity(role):
    return [("peer.role", role), ("peer.rank", 0), ("peer.name", "elsewhere:1"), ("peer.incarnation", 7)]


def stream_hello(**terms):
    """What a peer over tcp says first."""
    hello = wire.carrier_hello(**terms)
    return wire.tcp_head(TCP_HELLO, value=len(hello)) + hello


class Connection:
    """The tcp carrier under it: greets with the options of the other side, whatever they are."""

    def __init__(self, connected, greets_first):
        self.socket = connected
        self.socket.settimeout(60)
        if greets_first:
            self.socket.sendall(stream_hello())
        greeting = self._read(16 + 64)
        if not greets_first:
            self.socket.sendall(greeting)

    def _read(self, count):
        data = b""
        while len(data) < count:
            more = self.socket.recv(count - len(data))
            if not more:
                raise EOFError("the peer closed the connection")
            data += more
        return data

    def send(self, message):
        self.socket.sendall(wire.tcp_head(TCP_DATA, value=len(message)) + message)

    def receive(self):
        """The next frame; heartbeats and credits are skipped."""
        while True:
            _, kind, _, _, value, _ = struct.unpack("<IBBHII", self._read(16))
            if kind == TCP_DATA:
                return self._read(value)


def connect(address):
    host, port = address.removeprefix("tcp://").rsplit(":", 1)
    return Connection(socket.create_connection((host, int(port))), greets_first=True)
