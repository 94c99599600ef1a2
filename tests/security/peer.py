"""A peer over tcp that is nothing but a socket, written from docs/protocol.md, sections 12 and 13."""

import hashlib
import hmac
import os
import socket
import urllib.parse

from tests.golden import wire

HELLO, DATA, BYE, NONCE, PROOF = 1, 2, 5, 8, 9
HEAD_BYTES, HELLO_BYTES, VALUE_BYTES = 16, 64, 32
WAIT_LIMIT_S = 60


def head(kind, value):
    return wire.tcp_head(kind, value=value)


def frame(kind, value):
    return head(kind, len(value)) + value


def plain_hello():
    """A hello that differs from any rank's: it is answered all the same."""
    return wire.carrier_hello(slots=1, slot_bytes=64, security=1)


def proof_text(side, nonces, hellos):
    """`nonces`, `hellos`: of the connecting and of the listening side."""
    return b"tandem peer 1" + bytes([side]) + b"".join(nonces) + b"".join(hellos)


def proof_of(key, side, nonces, hellos):
    return hmac.new(key, proof_text(side, nonces, hellos), hashlib.sha256).digest()


class RawPeer:
    """`heard`: every byte that came."""

    def __init__(self, address):
        parts = urllib.parse.urlsplit(address)
        self.socket = socket.create_connection((parts.hostname, parts.port), timeout=WAIT_LIMIT_S)
        self.heard = b""

    def send(self, data):
        try:
            self.socket.sendall(data)
        except OSError:
            pass  # what the other side did not want to read any more

    def read(self, count):
        data = b""
        while len(data) < count:
            try:
                part = self.socket.recv(count - len(data))
            except ConnectionResetError:
                break
            if not part:
                break
            data += part
        self.heard += data
        return data

    def read_to_end(self):
        return self.read(1 << 20)

    def close(self):
        self.socket.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def hello_of(address):
    """The hello of the rank at `address`, which whoever asks for it gets."""
    with RawPeer(address) as peer:
        peer.send(frame(HELLO, plain_hello()))
        return peer.read(HEAD_BYTES + HELLO_BYTES)[HEAD_BYTES:]


class KeyedPeer(RawPeer):
    """Says the rank's own hello, so that nothing differs, and a nonce; then it has heard the rank's."""

    def __init__(self, address, hello):
        super().__init__(address)
        self.hello, self.nonce = hello, os.urandom(VALUE_BYTES)
        self.send(frame(HELLO, hello) + frame(NONCE, self.nonce))
        answer = self.read(2 * HEAD_BYTES + HELLO_BYTES + VALUE_BYTES)
        assert answer[:HEAD_BYTES + HELLO_BYTES] == frame(HELLO, hello)
        assert answer[HEAD_BYTES + HELLO_BYTES:][:HEAD_BYTES] == head(NONCE, VALUE_BYTES)
        self.peer_nonce = answer[-VALUE_BYTES:]

    def proof(self, key, side=1):
        return frame(PROOF, proof_of(key, side, (self.nonce, self.peer_nonce), (self.hello, self.hello)))
