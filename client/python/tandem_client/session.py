"""Session: one connection to one FFN rank, from hello to goodbye. Requests of any number of rows travel as tiles of 64; replies are
matched, copied to their place and given back. A session that has ended stays ended: `Rank` opens the next one."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from . import canary, frame
from .connection import CONTROL, REQUEST, Connection
from .errors import Cancelled, DataLoss, DeadlineExceeded, InvalidArgument, TandemError, Unavailable, clean_text, from_wire
from .frame import Header, Payload
from .security import Security
from .settings import Identity, Settings, decode_hello, encode_hello


@dataclass
class Request:
    """What one rank gets. `payloads`: arrays over all rows, cut by tile when they leave."""

    layer: int
    rows: int
    payloads: list[Payload]
    row_class: int
    step: int
    lane: int = 0
    attempt: int = 0
    flags: int = 0
    map_epoch: int = 0


@dataclass
class Answer:
    """Of one request. `rows` [rows, hidden]: bits of the reply dtype; whole once `done` is set and there is no `error`."""

    request: Request
    rows: np.ndarray
    unanswered: set[int]  # tiles
    done: threading.Event = field(default_factory=threading.Event)
    error: TandemError | None = None
    times: np.ndarray = field(default_factory=lambda: np.zeros(4, np.uint32))  # of the slowest tile: queue, compute, exchange, residence; us


class Session:
    """Any thread may submit, wait and cancel. `expected`: settings that the caller insists on."""

    def __init__(self, rank: int | None, address: str, security: Security, identity: Identity, expected: Mapping[str, object], deadline: float):
        self.rank, self.address = rank, address
        self._inbox: queue.SimpleQueue[memoryview | TandemError] = queue.SimpleQueue()
        self._up = False
        self._draining = False
        self._lock = threading.Lock()
        self._waiting: dict[tuple[int, ...], Answer] = {}  # by request and tile
        self.connection = Connection(address, security, deadline, self._on_message, self._on_loss)
        try:
            self.connection.start()
            self._shake_hands(identity, expected, deadline)
        except BaseException as error:  # an interrupt too: nobody else knows this connection
            self.connection.close()
            if isinstance(error, TandemError):
                raise self._named(error) from None
            raise

    def _named(self, error: TandemError) -> TandemError:
        """The same, with rank and address."""
        return error if error.rank is not None else error.at(rank=self.rank, address=self.address)

    # ---- handshake ----

    def _shake_hands(self, identity: Identity, expected: Mapping[str, object], deadline: float) -> None:
        text = np.frombuffer(encode_hello(identity), np.uint8)[None]
        self.connection.send(CONTROL, frame.build(Header(frame.HELLO), [Payload(frame.SETTINGS, "u8", text)]), deadline)
        ack = frame.parse(self._next(frame.HELLO_ACK, deadline))
        self.peer, values = decode_hello(ack.text(frame.SETTINGS))
        self.id, self.incarnation = ack.header.session, ack.header.incarnation
        try:
            self.settings = Settings.of(values)
            self.settings.check(expected, identity.text(), self.peer.text())
            if self.settings.largest_frame() > self.connection.terms.slot_bytes:  # before anything of that size is made
                raise DataLoss(f"slots of {self.connection.terms.slot_bytes} bytes, a tile of hidden_size {self.settings.hidden_size} needs "
                               f"{self.settings.largest_frame()}")
            if self.rank is None:
                self.rank = self.peer.rank
            if self.peer.role != "ffn" or self.peer.rank != self.rank:
                raise InvalidArgument(f"it is {self.peer.text()}, not FFN rank {self.rank}: list addresses in order of rank")
        except TandemError as error:
            self._refuse(error)
            raise
        self.pieces = ack.array(frame.PIECES, "u32", 6)  # layer, expert begin, end, row begin, end, unit
        for index in range(canary.COUNT):
            sent = canary.build(self.settings, index, self.id, self.incarnation)
            self.connection.send(REQUEST, sent, deadline)
            if bytes(self._next(frame.CANARY_ECHO, deadline)) != frame.echo_of(sent):
                raise DataLoss(f"canary {index} of {len(sent)} bytes came back changed: the path damages data")
        with self._lock:
            self._up = True
        while not self._inbox.empty():  # what came behind the last echo: a drain, or the end
            message = self._inbox.get()
            if isinstance(message, TandemError):
                raise message
            self._on_message(CONTROL, message)

    def _next(self, wanted: int, deadline: float) -> memoryview:
        """The frame that is due, as its bytes."""
        try:
            message = self._inbox.get(timeout=max(deadline - time.monotonic(), 0))
        except queue.Empty:
            raise DeadlineExceeded(f"no frame of kind {wanted} in time: it answers, but its data path does not") from None
        if isinstance(message, TandemError):
            raise message
        got = frame.parse(message)
        if got.header.kind == frame.REFUSE:
            raise self._refusal(got)
        if got.header.kind in (frame.DRAIN, frame.GOODBYE):
            raise Unavailable("it is stopping")
        if got.header.kind != wanted:
            raise DataLoss(f"frame of kind {got.header.kind} where {wanted} was due")
        return message

    def _refusal(self, got: frame.Frame) -> TandemError:
        code, text = self._error_of(got)
        return from_wire(code, f"it refused: {text}")

    @staticmethod
    def _error_of(got: frame.Frame) -> tuple[int, str]:
        return int(got.array(frame.ERROR_CODE, "u32", 1, rows=1)[0, 0]), clean_text(got.text(frame.ERROR_TEXT))

    def _refuse(self, error: TandemError) -> None:
        text = np.frombuffer(error.message.encode()[:2048], np.uint8)[None]
        header = Header(frame.REFUSE, session=self.id, incarnation=self.incarnation)
        self.connection.try_send(CONTROL, frame.build(header, [Payload(frame.ERROR_CODE, "u32", np.array([[error.code]], np.uint32)),
                                                               Payload(frame.ERROR_TEXT, "u8", text)]))

    # ---- requests ----

    @property
    def usable(self) -> bool:
        return self._up and not self._draining and self.connection.lost is None

    def submit(self, request: Request, deadline: float) -> Answer:
        """Sends all tiles; waits for credits until the deadline. What goes wrong later is the answer's."""
        tiles = -(-request.rows // frame.TILE_ROWS)
        bits = frame.DTYPES[self.settings.reply_dtype][1]
        answer = Answer(request, np.empty((request.rows, self.settings.hidden_size), bits), set(range(tiles)))
        with self._lock:
            if not self.usable:
                raise Unavailable("it is stopping" if self._draining else "the session has ended", rank=self.rank, address=self.address)
            for tile in range(tiles):
                self._waiting[self._header(request, tile, tiles).request_key()] = answer
        try:
            for tile in range(tiles):
                if answer.done.is_set():
                    break  # an earlier tile was refused
                self._send_tile(request, tile, tiles, deadline)
        except TandemError as error:
            self.cancel(answer)
            raise self._named(error) from None
        return answer

    def _header(self, request: Request, tile: int, tiles: int) -> Header:
        rows = min(frame.TILE_ROWS, request.rows - tile * frame.TILE_ROWS)
        return Header(frame.FFN_REQUEST, flags=request.flags, session=self.id, incarnation=self.incarnation, step=request.step,
                      layer=request.layer, lane=request.lane, tile=tile, tiles=tiles, map_epoch=request.map_epoch, rows=rows, capacity=rows,
                      attempt=request.attempt, row_class=request.row_class)

    def _send_tile(self, request: Request, tile: int, tiles: int, deadline: float) -> None:
        header = self._header(request, tile, tiles)
        begin = tile * frame.TILE_ROWS
        payloads = [Payload(p.role, p.dtype, p.data[begin:begin + header.rows], p.log2_block) for p in request.payloads]
        urgent = request.row_class in (frame.ROW_CLASSES["decode"], frame.ROW_CLASSES["draft"])
        self.connection.send(REQUEST, frame.build(header, payloads), deadline, urgent=urgent)

    def wait(self, answer: Answer, deadline: float) -> np.ndarray:
        """The rows, or what went wrong; the deadline cancels."""
        answer.done.wait(max(deadline - time.monotonic(), 0))
        tiles, unanswered = -(-answer.request.rows // frame.TILE_ROWS), len(answer.unanswered)
        if not answer.done.is_set() and self.cancel(answer):
            raise DeadlineExceeded(f"no answer in time to {unanswered} of {tiles} tiles", rank=self.rank, address=self.address)
        if answer.error is not None:
            raise answer.error
        return answer.rows

    def cancel(self, answer: Answer) -> bool:
        """Nobody writes the answer's rows afterwards. False: it was done already. A cancel that is lost costs work and nothing else."""
        if not self._finish(answer, Cancelled("cancelled by the caller")):
            return False
        request = answer.request
        header = Header(frame.CANCEL, flags=request.flags, session=self.id, incarnation=self.incarnation, step=request.step, layer=request.layer,
                        lane=request.lane, attempt=request.attempt)
        try:
            self.connection.try_send(CONTROL, frame.build(header, []))
        except TandemError:
            pass
        return True

    def _finish(self, answer: Answer, error: TandemError | None) -> bool:
        tiles = -(-answer.request.rows // frame.TILE_ROWS)
        with self._lock:
            if answer.done.is_set():
                return False
            for tile in answer.unanswered:
                self._waiting.pop(self._header(answer.request, tile, tiles).request_key(), None)
            answer.unanswered.clear()
            answer.error = None if error is None else self._named(error)
            answer.done.set()
        self._leave_when_drained()
        return True

    # ---- the reader's thread ----

    def _on_message(self, channel: int, message: memoryview) -> None:
        with self._lock:  # over `put` as well: the handshake looks for what came before it was up
            if not self._up:
                self._inbox.put(message)
                return
        try:
            self._on_frame(channel, frame.parse(message))
        except DataLoss as error:
            self._refuse(error)
            raise

    def _on_frame(self, channel: int, got: frame.Frame) -> None:
        kind = got.header.kind
        if kind == frame.FFN_REPLY and channel == REQUEST:
            self._on_reply(got)
        elif kind == frame.DRAIN:
            with self._lock:
                self._draining = True
            self._leave_when_drained()
        elif kind == frame.REFUSE:
            raise self._refusal(got)
        elif kind == frame.GOODBYE:
            raise Unavailable("it said goodbye")
        else:
            raise DataLoss(f"frame of kind {kind} over channel {channel} in an open session")

    def _on_reply(self, got: frame.Frame) -> None:
        header = got.header
        with self._lock:
            answer = self._waiting.get(header.request_key())
            if answer is None or (header.session, header.incarnation) != (self.id, self.incarnation):
                return  # late, or of nobody
            sent = self._header(answer.request, header.tile, -(-answer.request.rows // frame.TILE_ROWS))
            if (header.tiles, header.rows) != (sent.tiles, sent.rows):
                return
            np.maximum(answer.times, got.array(frame.REPLY_TIMES, "u32", 4, rows=1)[0], out=answer.times)
            error = None
            if frame.OUTPUT in got.payloads:
                rows = got.array(frame.OUTPUT, self.settings.reply_dtype, self.settings.hidden_size, rows=header.rows)
                begin = header.tile * frame.TILE_ROWS
                answer.rows[begin:begin + header.rows] = rows
                answer.unanswered.discard(header.tile)
                del self._waiting[header.request_key()]
            else:
                error = from_wire(*self._error_of(got))
            done = error is not None or not answer.unanswered
        if done:
            self._finish(answer, error)

    def _leave_when_drained(self) -> None:
        with self._lock:
            leave = self._draining and not self._waiting and self.connection.lost is None
        if leave:
            self._say_goodbye()
            self.connection.end()

    def _say_goodbye(self) -> None:
        try:
            self.connection.try_send(CONTROL, frame.build(Header(frame.GOODBYE, session=self.id, incarnation=self.incarnation), []))
        except TandemError:
            pass

    def _on_loss(self, error: TandemError) -> None:
        self._inbox.put(error)
        with self._lock:
            answers = {id(answer): answer for answer in self._waiting.values()}
        for answer in answers.values():
            self._finish(answer, error if isinstance(error, Unavailable) else Unavailable(f"the session ended: {error.message}"))

    def close(self) -> None:
        if self._up and self.connection.lost is None:
            self._say_goodbye()
        self.connection.close()
