"""An FFN rank in Python whose every move a test decides: for what a real one never does. One connection."""

import contextlib
import hashlib
import hmac
import os
import socket
import struct
import threading

import numpy as np

from tandem_client import canary, frame
from tandem_client.settings import KEYS
from tests.golden import wire

HELLO, DATA, CREDIT, HEARTBEAT, BYE, NONCE, PROOF = 1, 2, 3, 4, 5, 8, 9
CONTROL, REQUEST = 0, 1

SETTINGS = dict(protocol="1.0", model_fingerprint="00000000000000ab", hidden_size=16, num_layers=2, draft_layers=0, moe_layers="0-1", hash_layers=0,
                num_experts=4, top_k=2, moe_intermediate_size=8, shared_intermediate_size=0, vocab_size=50, gate="ffn", shared_experts="ffn",
                num_ffn_ranks=1, connector="any", routing="model", token_ids="no", compute_dtype="f32", weights="as stored", activation_dtype="f32",
                reply_dtype="f32", deterministic="no", execution="eager", capture_sizes="none", tile_rows=64, numerics_id="0" * 16)
assert tuple(SETTINGS) == KEYS
PIECES = np.array([[layer, 0, 4, 0, 8, 0] for layer in (0, 1)], np.uint32)
SESSION, INCARNATION = 0x5E55, 9

head = wire.tcp_head


class FakeRank:
    """`script(rank)` runs in a thread of its own when somebody has connected. `close` waits for it and passes on what it raised."""

    def __init__(self, script, *, slots=8, security=0, settings=None, pieces=PIECES, tls=None, number=0):
        self.slots, self.security, self.pieces, self.tls, self.number = slots, security, pieces, tls, number
        self.silence_us = 60_000_000  # a starved machine is not silence
        self.settings = {**SETTINGS, **(settings or {})}
        self.server = socket.create_server(("127.0.0.1", 0))
        self.address = f"tcp://127.0.0.1:{self.server.getsockname()[1]}"
        self.sending, self.ended, self.error = threading.Lock(), threading.Event(), None
        self.thread = threading.Thread(target=self._run, args=(script,))
        self.thread.start()

    def _run(self, script):
        try:
            self.connected, _ = self.server.accept()
            self.connected.settimeout(60)
            self.connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self.tls is not None:
                self.connected = self.tls.wrap_socket(self.connected, server_side=True)
            with self.connected:
                script(self)
                with contextlib.suppress(OSError):  # an end, not a reset that eats what was sent
                    self.connected.shutdown(socket.SHUT_WR)
                    while self.connected.recv(1 << 16):
                        pass
        except Exception as error:  # noqa: BLE001 - the test's thread raises it again
            self.error = error
        finally:
            self.ended.set()

    def close(self):
        with socket.create_connection(self.server.getsockname()):  # in case nobody came
            self.server.close()
            self.thread.join(60)
        if self.error is not None:
            raise self.error

    # ---- the carrier ----

    def read(self, count):
        data = b""
        while len(data) < count:
            more = self.connected.recv(count - len(data))
            if not more:
                raise EOFError("the client closed the connection")
            data += more
        return data

    def put(self, kind, channel=0, value=0, data=b""):
        with self.sending:
            self.connected.sendall(head(kind, channel, value) + data)

    def greet(self, key=None, beat=True):
        self.their_hello = self.read(16 + 64)[16:]
        assert self.their_hello[8:12] + self.their_hello[16:40] == bytes(28), "the client leaves all sizes to this side"
        self.hello = wire.carrier_hello(slots=self.slots, silence_us=self.silence_us, security=self.security)
        self.put(HELLO, value=64, data=self.hello)
        if key is not None:
            self.prove(key)
        if beat and self.tls is None:  # Python's TLS sockets are for one thread at a time
            threading.Thread(target=self.beat, daemon=True).start()

    def prove(self, key, right=True):
        nonce = os.urandom(32)
        self.put(NONCE, value=32, data=nonce)
        theirs = self.take_word(NONCE)
        said = theirs + nonce + self.their_hello + self.hello
        proof = self.take_word(PROOF)
        self.proved = proof == hmac.new(key, b"tandem peer 1\x01" + said, hashlib.sha256).digest()
        if not self.proved:
            self.put(BYE)
            raise EOFError("wrong proof")
        self.put(PROOF, value=32, data=hmac.new(key if right else b"?" * 32, b"tandem peer 1\x02" + said, hashlib.sha256).digest())

    def take_word(self, wanted):
        _, kind, _, _, value, _ = struct.unpack("<IBBHII", self.read(16))
        assert (kind, value) == (wanted, 32)
        return self.read(32)

    def beat(self):
        while not self.ended.wait(0.1):
            try:
                self.put(HEARTBEAT)
            except OSError:
                return

    def receive(self, give_back=True):
        """The next (channel, frame's bytes)."""
        while True:
            _, kind, channel, _, value, _ = struct.unpack("<IBBHII", self.read(16))
            if kind == BYE:
                raise EOFError("bye")
            if kind == DATA:
                data = self.read(value)
                if give_back:
                    with contextlib.suppress(OSError):  # it may be gone by now
                        self.put(CREDIT, channel, 1)
                return channel, data

    def send(self, channel, data):
        self.put(DATA, channel, len(data), bytes(data))

    # ---- frames ----

    def acknowledge(self):
        channel, data = self.receive()
        assert channel == CONTROL and frame.parse(data).header.kind == frame.HELLO
        self.lines = frame.parse(data).text(frame.SETTINGS).decode().splitlines()
        text = f"peer.role=ffn\npeer.rank={self.number}\npeer.name=fake:1\npeer.incarnation=9\n" + "".join(f"{k}={v}\n" for k, v in self.settings.items())
        header = frame.Header(frame.HELLO_ACK, session=SESSION, incarnation=INCARNATION)
        self.send(CONTROL, frame.build(header, [frame.Payload(frame.SETTINGS, "u8", np.frombuffer(text.encode(), np.uint8)[None]),
                                                frame.Payload(frame.PIECES, "u32", self.pieces)]))

    def open(self, key=None):
        """The whole handshake."""
        self.greet(key)
        self.acknowledge()
        for _ in range(canary.COUNT):
            channel, data = self.receive()
            assert channel == REQUEST
            self.send(REQUEST, frame.echo_of(data))

    def request(self, give_back=True):
        channel, data = self.receive(give_back)
        assert channel == REQUEST, frame.parse(data).header
        return frame.parse(data)

    def reply(self, request, **changed):
        """Twice the rows."""
        header = frame.replace(request.header, kind=frame.FFN_REPLY, **changed)
        rows = request.array(frame.ACTIVATION, "f32")[:header.rows] * 2
        self.send(REQUEST, frame.build(header, [frame.Payload(frame.OUTPUT, "f32", rows),
                                                frame.Payload(frame.REPLY_TIMES, "u32", np.array([[1, 2, 3, 4]], np.uint32))]))

    def reply_error(self, request, code, text):
        header = frame.replace(request.header, kind=frame.FFN_REPLY)
        self.send(REQUEST, frame.build(header, [frame.Payload(frame.REPLY_TIMES, "u32", np.zeros((1, 4), np.uint32)),
                                                frame.Payload(frame.ERROR_CODE, "u32", np.array([[code]], np.uint32)),
                                                frame.Payload(frame.ERROR_TEXT, "u8", np.frombuffer(text, np.uint8)[None])]))

    def plain(self, kind):
        self.send(CONTROL, frame.build(frame.Header(kind, session=SESSION, incarnation=INCARNATION), []))


@contextlib.contextmanager
def fake(script, **options):
    rank = FakeRank(script, **options)
    try:
        yield rank
    finally:
        rank.close()
