"""Rank: one FFN rank as the client sees it, through however many sessions. A session that ended is followed by another at the next
request, with a full handshake; the rank must then be what it was."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping

import numpy as np

from .errors import DeadlineExceeded, InvalidArgument, TandemError, Unavailable
from .security import Security
from .session import Session
from .settings import Identity, Settings

_TRY_AGAIN_S = 0.25  # a peer that answered, or is not there yet: often enough for a start, seldom enough for a log
_HANDSHAKE_LIMIT_S = 5.0  # of one try: the rank has the same one, and whoever closes the client waits no longer


class Rank:
    """`number`: its place in the list of addresses; None: whichever it is."""

    def __init__(self, number: int | None, address: str, security: Security, identity: Identity, expected: Mapping[str, object]):
        self.number, self.address = number, address
        self._security, self._identity, self._expected = security, identity, expected
        self._opening = threading.Lock()
        self._session: Session | None = None
        self._closed = False
        self.settings: Settings | None = None  # of the first session, and of every later one
        self.pieces: np.ndarray | None = None  # uint32 [count, 6]

    def open(self, deadline: float) -> Session:
        """A session that can be used: the current one, or a new one. Tries again until the deadline while the rank is not there."""
        if not self._opening.acquire(timeout=max(deadline - time.monotonic(), 0)):
            raise DeadlineExceeded("not there in time: another request has not reached it either", rank=self.number, address=self.address)
        try:
            while True:
                if self._closed:
                    raise Unavailable("the client is closed", rank=self.number, address=self.address)
                if self._session is not None and self._session.usable:
                    return self._session
                try:
                    return self._open_once(deadline)
                except (Unavailable, DeadlineExceeded) as error:
                    if time.monotonic() + _TRY_AGAIN_S >= deadline:
                        raise DeadlineExceeded(f"not there in time: {error.message}", rank=self.number, address=self.address) from None
                    time.sleep(_TRY_AGAIN_S)
        finally:
            self._opening.release()

    def _open_once(self, deadline: float) -> Session:
        if self._session is not None:
            self._session.close()
            self._session = None
        try:
            limit = min(deadline, time.monotonic() + _HANDSHAKE_LIMIT_S)
            session = Session(self.number, self.address, self._security, self._identity, self._expected, limit)
        except TandemError as error:
            raise error.at(rank=self.number, address=self.address) from None
        if self.settings is None:
            self.settings, self.pieces = session.settings, session.pieces
        elif (other := session.settings.differing(self.settings)) or not np.array_equal(session.pieces, self.pieces):
            session.close()
            raise InvalidArgument(f"it came back with other settings or other experts ({', '.join(other) or 'experts'}); connect anew",
                                  rank=self.number, address=self.address)
        self._session = session
        return session

    def close(self) -> None:
        self._closed = True  # whoever is opening ends at its next try
        with self._opening:
            if self._session is not None:
                self._session.close()
