"""Client: the attention side. Rows of a layer go to the experts of one FFN rank or several, and come back as their weighted sum."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Mapping, Sequence

import numpy as np

from . import frame
from .checks import checked
from .errors import InvalidArgument, TandemError, Unavailable
from .expert_map import ExpertMap, Part, add_up
from .formats import activation, from_bf16
from .frame import Payload
from .rank import Rank
from .security import Security
from .session import Answer, Request, Session
from .settings import Settings, own_identity

_CONNECT_S = 30.0  # a rank that loads its weights, or waits for others, is waited for
_REQUEST_S = 60.0  # far above any tile; a lost rank is noticed within a second


class Ticket:
    """A request on its way. `result` once, by any thread."""

    def __init__(self, client: Client, rows: int, deadline: float):
        self._client, self._rows, self.deadline = client, rows, deadline
        self.sent: list[tuple[Session, Answer]] = []
        self.parts: list[Part] | None = None  # sums to be added; None: rows, one behind the other

    def result(self, *, raw: bool = False) -> np.ndarray:
        """[rows, hidden]: float32 (float64 when deterministic). `raw`: the reply dtype, bf16 as uint16 bits."""
        try:
            answers = [session.wait(answer, self.deadline) for session, answer in self.sent]
        except TandemError:
            self.cancel()
            raise
        dtype = self._client.settings.reply_dtype
        if self.parts is not None and len(self.parts) > 1:
            rows = add_up(self.parts, answers, self._rows, dtype)
        else:
            rows = answers[0] if len(answers) == 1 else np.concatenate(answers)
        return from_bf16(rows) if dtype == "bf16" and not raw else rows

    @property
    def times(self) -> np.ndarray:
        """uint32 [4], microseconds in the FFN ranks, of the slowest tile each: queue, compute, exchange, residence."""
        return np.maximum.reduce([answer.times for _, answer in self.sent])

    def cancel(self) -> None:
        for session, answer in self.sent:
            session.cancel(answer)


class Client:
    """Connects to every FFN rank of a deployment, in order of rank. Any thread may submit; `close` ends it (or use `with`).

    `addresses`: "tcp://host:port" of each rank, a list or separated by commas. `expect`: settings that must be so, as
    docs/protocol.md section 4 names them (hidden_size=4096, gate="attention", ...). `key_file`: a pre-shared key. `tls_files`: certificate
    and key of this side, and the CA of the FFN ranks', as PEM.
    `rank`: number of this attention side, for the FFN ranks' logs. `timeout`: seconds in which ranks must be reached, now and by a request that
    finds one lost.
    """

    def __init__(self, addresses: str | Sequence[str], *, expect: Mapping[str, object] | None = None, key_file: str | None = None,
                 tls_files: tuple[str, str, str] | None = None, rank: int = 0, timeout: float = _CONNECT_S):
        self._reach_s = timeout
        deadline = time.monotonic() + timeout
        if isinstance(addresses, str):
            addresses = [address.strip() for address in addresses.split(",")]
        if not addresses:
            raise InvalidArgument("no address: give those of all FFN ranks, in order of rank")
        security = Security.of(key_file, tls_files)
        identity = own_identity(rank)
        self._ranks = [Rank(number, address, security, identity, dict(expect or {})) for number, address in enumerate(addresses)]
        self._steps = itertools.count(1)
        self._turn = rank  # homes take turns, beginning at another one for each attention rank
        self._lock = threading.Lock()
        try:
            for entry in self._ranks:
                entry.open(deadline)
            self.settings: Settings = self._ranks[0].settings
            self._check_ranks()
            self.map = ExpertMap(self.settings, [entry.pieces for entry in self._ranks])
        except BaseException:
            self.close()
            raise

    def _check_ranks(self) -> None:
        if self.settings.num_ffn_ranks != len(self._ranks):
            raise InvalidArgument(f"{len(self._ranks)} addresses, and num_ffn_ranks is {self.settings.num_ffn_ranks}: name the addresses of all "
                                  "FFN ranks, in order of rank")
        for entry in self._ranks[1:]:
            for key in entry.settings.differing(self.settings):
                raise InvalidArgument(f"{key} is {entry.settings.raw[key]} here and {self.settings.raw[key]} on FFN rank 0: start all ranks alike",
                                      rank=entry.number, address=entry.address)
        if self.settings.connector == "m2n" and not self.settings.gate_on_client:
            raise InvalidArgument("connector m2n with the gate on FFN: start the ranks with --compute-gate-on-attention")

    # ---- requests ----

    def compute(self, layer: int, rows: np.ndarray, **request) -> np.ndarray:
        """`submit`, and wait for the result. `attempts` (1): how often a request whose rank was lost is sent; nothing remembers it, so a
        second time does no harm. `raw`: as for Ticket.result."""
        raw, attempts = request.pop("raw", False), request.pop("attempts", 1)
        deadline = time.monotonic() + request.pop("timeout", _REQUEST_S)
        for left in reversed(range(attempts)):
            try:
                return self.submit(layer, rows, timeout=deadline - time.monotonic(), **request).result(raw=raw)
            except Unavailable:
                if left == 0:
                    raise
        raise InvalidArgument(f"attempts is {attempts}: 1 or more would do")

    def submit(self, layer: int, rows: np.ndarray, *, expert_ids: np.ndarray | None = None, expert_weights: np.ndarray | None = None,
               token_ids: np.ndarray | None = None, row_class: str = "prefill", timeout: float = _REQUEST_S) -> Ticket:
        """Sends rows of one layer.

        rows            [rows, hidden] floats, or uint16: the bits of bf16
        expert_ids      int [rows, top_k], with the gate on this side: final routing, renormalised and scaled
        expert_weights  float32 [rows, top_k]
        token_ids       int [rows], where `settings.token_ids`: the token of each row
        row_class       decode, draft, prefill or profile: what FFN ranks serve first
        timeout         seconds for sending and answering
        """
        settings = self.settings
        rows, ids, weights, tokens = checked(settings, layer, rows, expert_ids, expert_weights, token_ids, row_class)
        ticket = Ticket(self, len(rows), time.monotonic() + timeout)
        if len(rows) == 0:
            return _Empty(settings)
        with self._lock:
            step = next(self._steps)
        common = dict(layer=layer, row_class=frame.ROW_CLASSES[row_class], step=step & 0xFFFFFFFF, attempt=step & 0xFFFF, map_epoch=self.map.epoch)
        payloads = activation(rows, settings.activation_dtype)
        if ids is not None:
            payloads.append(Payload(frame.EXPERT_IDS, "i32", ids))
        try:
            if len(self._ranks) > 1 and self._to_owners(row_class):
                self._send_to_owners(ticket, payloads, ids, weights, common)
            else:
                if weights is not None:
                    payloads.append(Payload(frame.EXPERT_WEIGHTS, "f32", weights))
                elif tokens is not None:
                    payloads.append(Payload(frame.TOKEN_IDS, "i32", tokens[:, None]))
                self._send_to_homes(ticket, len(rows), payloads, common)
        except BaseException:
            ticket.cancel()
            raise
        return ticket

    def _to_owners(self, row_class: str) -> bool:
        if self.settings.connector == "auto":
            return self.settings.gate_on_client and row_class in ("decode", "draft")
        return self.settings.connector == "m2n"

    def _send_to_owners(self, ticket: Ticket, payloads: list[Payload], ids, weights, common) -> None:
        ticket.parts = self.map.parts(common["layer"], ids, weights)
        for part in ticket.parts:
            mine = [Payload(p.role, p.dtype, p.data[part.index], p.log2_block) for p in payloads]
            mine.append(Payload(frame.EXPERT_WEIGHTS, "f32", part.weights))
            if self.settings.shared_experts_on_ffn:
                mine.append(Payload(frame.SHARED_ROWS, "u8", part.shared_rows))
            self._send(ticket, part.rank, Request(rows=len(part.index), payloads=mine, flags=frame.PARTIAL, **common))

    def _send_to_homes(self, ticket: Ticket, rows: int, payloads: list[Payload], common) -> None:
        """Tiles go to the ranks in turn; those of one rank lie side by side."""
        tiles, count = -(-rows // frame.TILE_ROWS), len(self._ranks)
        with self._lock:
            turn, self._turn = self._turn, self._turn + tiles
        tile = 0
        for i in range(min(count, tiles)):
            begin = tile * frame.TILE_ROWS
            tile += tiles // count + (i < tiles % count)
            end = min(tile * frame.TILE_ROWS, rows)
            mine = [Payload(p.role, p.dtype, p.data[begin:end], p.log2_block) for p in payloads]
            self._send(ticket, (turn + i) % count, Request(rows=end - begin, payloads=mine, **common))

    def _send(self, ticket: Ticket, rank: int, request: Request) -> None:
        session = self._ranks[rank].open(min(ticket.deadline, time.monotonic() + self._reach_s))
        ticket.sent.append((session, session.submit(request, ticket.deadline)))

    # ---- the end ----

    def close(self) -> None:
        """Says goodbye to every rank. Requests under way end with Unavailable."""
        for entry in self._ranks:
            entry.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_) -> None:
        self.close()


class _Empty(Ticket):
    """Of a request without rows, which needs no rank."""

    def __init__(self, settings: Settings):
        self.sent, self.parts, self._bf16 = [], None, settings.reply_dtype == "bf16"
        self._empty = np.empty((0, settings.hidden_size), frame.DTYPES[settings.reply_dtype][1])

    def result(self, *, raw: bool = False) -> np.ndarray:
        return from_bf16(self._empty) if self._bf16 and not raw else self._empty

    @property
    def times(self) -> np.ndarray:
        return np.zeros(4, np.uint32)


def describe(address: str, *, key_file: str | None = None, tls_files: tuple[str, str, str] | None = None,
             timeout: float = _CONNECT_S) -> Settings:
    """What one FFN rank serves: a whole handshake, and goodbye."""
    rank = Rank(None, address, Security.of(key_file, tls_files), own_identity(0), {})
    try:
        rank.open(time.monotonic() + timeout)
        return rank.settings
    finally:
        rank.close()
