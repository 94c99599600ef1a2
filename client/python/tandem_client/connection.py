"""Connection: messages over tcp under credits, with heartbeats and a limit of silence (docs/protocol.md sections 3 and 6).

Two threads a connection: the *reader* receives, hands each message to `on_message` and gives its credit back; the *heart* says that
this process lives, whatever else it does. Any thread may send: it waits for a credit of its channel and for nothing else.
"""

from __future__ import annotations

import contextlib
import select
import socket
import struct
import threading
import time
from collections.abc import Callable

from . import greeting
from .errors import DataLoss, DeadlineExceeded, InvalidArgument, TandemError, Unavailable
from .security import TLS, Security, TlsStream

CONTROL, REQUEST, EXCHANGE = 0, 1, 2
_STAGING_BYTES = 64 << 10  # many heads in one read
# A peer that lives (else its silence shows first) and takes no byte for so long never will: a rank takes every message at once. Until then
# `send` may outlive its deadline.
_UNREAD_LIMIT_S = 5


def parse_address(address: str) -> tuple[str, int]:
    """ "tcp://host:port", "host:port", "[::1]:port" -> host, port."""
    scheme, found, rest = address.partition("://")
    if not found:
        scheme, rest = "tcp", address
    host, colon, port = rest.rpartition(":")
    if scheme != "tcp":
        raise InvalidArgument(f"{address}: this client speaks tcp:// only; let the FFN rank listen on tcp://host:port")
    if not colon or not host or not port.isdecimal() or not 0 < int(port) < 2**16:
        raise InvalidArgument(f"{address}: tcp://host:port would do")
    return host.removeprefix("[").removesuffix("]"), int(port)


class Connection:
    """`on_message(channel, bytes)` and `on_loss(error)` run on the reader; after on_loss nothing else is called. `start` it once."""

    def __init__(self, address: str, security: Security, deadline: float, on_message: Callable[[int, memoryview], None],
                 on_loss: Callable[[TandemError], None]):
        self.address = address
        host, port = parse_address(address)
        try:
            self._socket = socket.create_connection((host, port), timeout=max(deadline - time.monotonic(), 0.001))
        except TimeoutError:
            raise DeadlineExceeded("no connection in time", address=address) from None
        except OSError as error:
            raise Unavailable(f"{error.strerror or error}; start the peer first", address=address) from None
        try:
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("@ll", _UNREAD_LIMIT_S, 0))
            if security.mode == TLS:
                self._socket = TlsStream(self._socket, security, deadline)
            self.terms = greeting.greet(self._socket, security, deadline)
        except TandemError as error:
            self._socket.close()
            raise error.at(address=address) from None
        except OSError as error:
            self._socket.close()
            raise Unavailable(f"the connection was lost in its greeting ({error})", address=address) from None
        self._socket.settimeout(None)
        self._on_message, self._on_loss = on_message, on_loss
        self._sending = threading.Lock()
        self._state = threading.Condition()
        self._credits = [self.terms.slots] * 3
        self._urgent = [0, 0, 0]  # senders of decode rows that wait for a credit
        self._lost: TandemError | None = None  # nothing more will come
        self._mute: TandemError | None = None  # nothing more can be sent; what the peer sent before it went is still read
        self._closing = threading.Event()
        self._staged = memoryview(b"")
        self._reader = threading.Thread(target=self._read_all, name=f"tandem reader {address}", daemon=True)
        self._heart = threading.Thread(target=self._beat, name=f"tandem heart {address}", daemon=True)

    def start(self) -> None:
        self._heart.start()
        self._reader.start()

    @property
    def lost(self) -> TandemError | None:
        """Why no more can be sent."""
        return self._lost or self._mute

    # ---- sending, any thread ----

    def send(self, channel: int, message, deadline: float, *, urgent: bool = True) -> None:
        """Takes a credit and sends. `urgent` False (prefill): behind those who are, and never the last credit of several."""
        if len(message) > self.terms.slot_bytes:
            raise InvalidArgument(f"message of {len(message)} bytes, slots have {self.terms.slot_bytes}", address=self.address)
        kept = 1 if not urgent and self.terms.slots > 1 else 0
        with self._state:
            self._urgent[channel] += urgent
            try:
                while self.lost is None and (self._credits[channel] <= kept or (not urgent and self._urgent[channel])):
                    left = deadline - time.monotonic()
                    if left <= 0 or not self._state.wait(left):
                        raise DeadlineExceeded("no credit came back in time", address=self.address)
                if self.lost is not None:
                    raise self._loss()
                self._credits[channel] -= 1
            finally:
                self._urgent[channel] -= urgent
                self._state.notify_all()
        self._write(greeting.head(greeting.DATA, channel, len(message)), message)

    def try_send(self, channel: int, message) -> bool:
        """As `send`, where a credit is there now."""
        with self._state:
            if self.lost is not None or self._credits[channel] == 0:
                return False
            self._credits[channel] -= 1
        self._write(greeting.head(greeting.DATA, channel, len(message)), message)
        return True

    def _write(self, head: bytes, message=b"") -> None:
        try:
            with self._sending:
                if len(message) < 1 << 16:
                    self._socket.sendall(head + message)
                else:
                    self._socket.sendall(head)
                    self._socket.sendall(message)
        except BlockingIOError:
            self._reset_when_closed()  # nobody takes what is still to be sent
            self._lose(Unavailable(f"it has taken no byte for {_UNREAD_LIMIT_S} s", address=self.address))
            raise self._loss() from None
        except OSError as error:
            with self._state:
                self._mute = self._mute or Unavailable(f"the connection was lost ({error})", address=self.address)
                self._state.notify_all()
            self._closing.set()
            raise self._loss() from None

    def _beat(self) -> None:
        while not self._closing.wait(self.terms.heartbeat_s / 2):  # twice: a thread that wakes late must not skip one
            try:
                self._write(greeting.head(greeting.HEARTBEAT))
            except TandemError:
                return

    # ---- receiving, the reader ----

    def _read_all(self) -> None:
        try:
            while True:
                kind, channel, value = greeting.read_head(self._take(greeting.HEAD.size))
                if kind == greeting.DATA:
                    if not 0 < value <= self.terms.slot_bytes:
                        raise DataLoss(f"tcp frame: message of {value} bytes, slots have {self.terms.slot_bytes}")
                    self._on_message(channel, self._take(value))
                    self._give_back(channel)
                elif kind == greeting.CREDIT:
                    self._add_credits(channel, value)
                elif kind not in (greeting.BYE, greeting.HEARTBEAT) or channel or value:
                    raise DataLoss(f"tcp frame: kind {kind}, channel {channel}, value {value}")
                elif kind == greeting.BYE:
                    raise Unavailable("it ended the connection")
        except TandemError as error:
            self._lose(error if error.address else error.at(address=self.address))
        except Exception as error:  # a defect of on_message ends the connection, not the wait of everybody else
            self._lose(DataLoss(f"{type(error).__name__}: {error}", address=self.address))
        self._on_loss(self._lost)
        with self._sending:
            self._socket.close()

    def _give_back(self, channel: int) -> None:
        try:
            self._write(greeting.head(greeting.CREDIT, channel, 1))
        except TandemError:
            pass  # the peer went, and is read to its end

    def _add_credits(self, channel: int, count: int) -> None:
        with self._state:
            self._credits[channel] += count
            if count == 0 or self._credits[channel] > self.terms.slots:
                raise DataLoss(f"tcp frame: {count} credits for channel {channel} that were never taken")
            self._state.notify_all()

    def _take(self, count: int) -> memoryview:
        """The next bytes, their own memory. Notices silence."""
        if count <= len(self._staged):
            taken, self._staged = self._staged[:count], self._staged[count:]
            return taken
        data = bytearray(count)
        have = len(self._staged)
        data[:have] = self._staged
        self._staged = memoryview(b"")
        view = memoryview(data)
        while have < count:
            self._await_bytes()
            try:
                if count - have >= _STAGING_BYTES:
                    got = self._socket.recv_into(view[have:])
                    have += got
                else:
                    more = self._socket.recv(_STAGING_BYTES)
                    got, used = len(more), min(len(more), count - have)
                    view[have:have + used] = more[:used]
                    have += used
                    self._staged = memoryview(more)[used:]
            except TimeoutError:
                continue  # no whole record of TLS yet
            except OSError as error:
                raise Unavailable(f"the connection was lost ({error})") from None
            if got == 0:
                raise Unavailable("the connection was closed")
        return view

    def _await_bytes(self) -> None:
        if getattr(self._socket, "buffered", False):
            return
        poller = select.poll()
        poller.register(self._socket.fileno(), select.POLLIN)
        heard = before = time.monotonic()
        while not poller.poll(self.terms.heartbeat_s * 1000):
            now = time.monotonic()
            if now - before > self.terms.silence_s / 2:  # this process stood still: the other side's fault is not known
                heard = now
            before = now
            if now - heard > self.terms.silence_s:
                self._reset_when_closed()  # so that a peer whose packets alone are lost learns of it at once
                raise Unavailable(f"silent for {self.terms.silence_s:g} s")

    # ---- the end ----

    def _loss(self) -> TandemError:
        """Why it ended, as an exception of the caller's own."""
        return self.lost.at(address=self.address)

    def _reset_when_closed(self) -> None:
        with contextlib.suppress(OSError):  # the reader has closed it already
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    def _lose(self, error: TandemError) -> None:
        with self._state:
            if self._lost is None:
                self._lost = error
            self._state.notify_all()
        self._closing.set()
        try:
            self._socket.shutdown(socket.SHUT_RDWR)  # wakes the reader and whoever is inside sendall
        except OSError:
            pass

    def end(self) -> None:
        """Says bye and ends, from any thread, the reader too."""
        try:
            self._write(greeting.head(greeting.BYE))
        except TandemError:
            pass
        self._lose(Unavailable("this side closed the connection", address=self.address))

    def close(self) -> None:
        """`end`, and both threads are gone afterwards."""
        self.end()
        for thread in (self._reader, self._heart):
            if thread.is_alive() and thread is not threading.current_thread():
                thread.join()
        self._socket.close()
