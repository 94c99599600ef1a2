"""Errors: one exception a code of docs/protocol.md section 7. The message names rank and address; both are attributes too."""

from __future__ import annotations


class TandemError(Exception):
    """Whatever goes wrong between this client and an FFN rank.

    `rank`: number of the FFN rank, or None before it is known. `address`: as it was given to the client, or None.
    """

    code = 9
    name = "internal"

    def __init__(self, message: str, *, rank: int | None = None, address: str | None = None):
        who = "" if rank is None else f"FFN rank {rank}"
        if address is not None:
            who = f"{who} at {address}" if who else address
        super().__init__(f"{who}: {message}" if who else message)
        self.message, self.rank, self.address = message, rank, address

    def at(self, *, rank: int | None = None, address: str | None = None) -> TandemError:
        """The same, of this peer: an exception of its own, for whoever raises it."""
        return type(self)(self.message, rank=rank, address=address)


class InvalidArgument(TandemError):
    code, name = 1, "invalid_argument"


class OutOfRange(TandemError):
    code, name = 2, "out_of_range"


class Unsupported(TandemError):
    code, name = 3, "unsupported"


class ResourceExhausted(TandemError):
    code, name = 4, "resource_exhausted"


class Unavailable(TandemError):
    """The rank is gone, silent, stopping, or waits for others. Another try may go better."""

    code, name = 5, "unavailable"


class DeadlineExceeded(TandemError):
    code, name = 6, "deadline_exceeded"


class Cancelled(TandemError):
    code, name = 7, "cancelled"


class DataLoss(TandemError):
    """What came is not the protocol, or the path damages data."""

    code, name = 8, "data_loss"


class Internal(TandemError):
    pass


_BY_CODE = {kind.code: kind for kind in TandemError.__subclasses__()}


def from_wire(code: int, message: str, *, rank: int | None = None, address: str | None = None) -> TandemError:
    """The exception for a code on the wire; an unknown one counts as internal."""
    return _BY_CODE.get(code, Internal)(message, rank=rank, address=address)


def clean_text(text: bytes) -> str:
    """A peer's text as one line: control characters become spaces."""
    return "".join(c if c.isprintable() else " " for c in text.decode("utf-8", "replace"))
