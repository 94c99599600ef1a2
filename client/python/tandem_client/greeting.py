"""The beginning of a tcp connection (docs/protocol.md section 3): hellos, in which this side leaves all sizes to the other, and the
proof of a pre-shared key. Blocking, with a deadline."""

from __future__ import annotations

import binascii
import hmac
import secrets
import socket
import struct
import time
from dataclasses import dataclass

from .errors import DataLoss, DeadlineExceeded, InvalidArgument, Unavailable
from .security import KEY, NAMES, Security, TlsStream, proof

HEAD = struct.Struct("<4sBBHII")  # magic, kind, channel, 0, value, CRC-32 of what stands before
HEAD_MAGIC = b"TNDT"
HELLO, DATA, CREDIT, HEARTBEAT, BYE, NONCE, PROOF = 1, 2, 3, 4, 5, 8, 9
_TLS_ALERT = 21  # first byte of what a side that speaks TLS says to one that does not

_HELLO = struct.Struct("<4sIIIQQQII16s")
_HELLO_MAGIC, _VERSION = b"TNDH", 1
_PROOF_LIMIT_S = 5.0  # the listening side's own limit for the whole of it


def head(kind: int, channel: int = 0, value: int = 0) -> bytes:
    """The 16 bytes before every message of the carrier."""
    start = struct.pack("<4sBBHI", HEAD_MAGIC, kind, channel, 0, value)
    return start + binascii.crc32(start).to_bytes(4, "little")


def read_head(data) -> tuple[int, int, int]:
    """(kind, channel, value)."""
    magic, kind, channel, zero, value, crc = HEAD.unpack(data)
    if magic != HEAD_MAGIC or zero or binascii.crc32(data[:12]) != crc or channel > 2:
        raise DataLoss("tcp frame: wrong magic, checksum, channel or reserved bytes")
    return kind, channel, value


@dataclass(frozen=True)
class Terms:
    """What the listening side's hello states."""

    slots: int  # credits of a channel in each direction
    slot_bytes: int  # largest message
    heartbeat_s: float
    silence_s: float


Stream = socket.socket | TlsStream


def _receive(connected: Stream, count: int, deadline: float, what: str) -> bytes:
    data = bytearray()
    while len(data) < count:
        left = deadline - time.monotonic()
        if left <= 0:
            raise DeadlineExceeded(f"no {what} in time")
        connected.settimeout(left)
        try:
            more = connected.recv(count - len(data))
        except TimeoutError:
            continue
        except OSError as error:
            raise Unavailable(f"the connection was lost while waiting for its {what} ({error})") from None
        if not more:
            if data[:1] == bytes([_TLS_ALERT]):
                raise InvalidArgument("it speaks TLS: give this side tls_files, a certificate, its key and the other side's CA")
            raise Unavailable(f"the other side closed the connection while its {what} was due; its log says why")
        data += more
    return bytes(data)


def greet(connected: Stream, security: Security, deadline: float) -> Terms:
    """Says hello with zeros ("as you say") and takes the answer; proves the key where both sides have one."""
    ours = _HELLO.pack(_HELLO_MAGIC, _VERSION, 0, 0, 0, 0, 0, 0, security.mode, bytes(16))
    connected.settimeout(max(deadline - time.monotonic(), 0.001))
    try:
        connected.sendall(head(HELLO, value=len(ours)) + ours)
    except OSError:
        pass  # it ended the connection; what it said before is still read, and says why
    answer = _receive(connected, HEAD.size + _HELLO.size, deadline, "hello")
    try:
        is_hello = read_head(answer[:HEAD.size]) == (HELLO, 0, _HELLO.size)
    except DataLoss:
        is_hello = False
    theirs = answer[HEAD.size:]
    magic, version, slots, _, slot_bytes, heartbeat_us, silence_us, carrier, their_security, _ = _HELLO.unpack(theirs)
    if not is_hello or magic != _HELLO_MAGIC:
        raise DataLoss("it does not speak Tandem's transport (no hello); check the address")
    if version != _VERSION:
        raise InvalidArgument(f"transport version {version} there, {_VERSION} here: install the same release on both sides")
    if carrier != 0:
        raise InvalidArgument("it listens on ucx://, and this client speaks tcp:// only: let it listen on tcp://")
    if their_security != security.mode:
        raise InvalidArgument(f"security differs: {NAMES[security.mode]} here, {NAMES.get(their_security, their_security)} there: give both sides "
                              "the same key file, or neither")
    if not (1 <= slots <= 1024 and 4096 <= slot_bytes <= 1 << 30 and 1000 <= heartbeat_us < silence_us <= 3_600_000_000):
        raise DataLoss(f"its hello states {slots} slots of {slot_bytes} bytes, heartbeats of {heartbeat_us} us, {silence_us} us of silence")
    if security.mode == KEY:
        _prove(connected, security.key, ours, theirs, min(deadline, time.monotonic() + _PROOF_LIMIT_S))
    return Terms(slots, slot_bytes, heartbeat_us / 1e6, silence_us / 1e6)


def _prove(connected: Stream, key: bytes, ours: bytes, theirs: bytes, deadline: float) -> None:
    """Each side shows that it has the key, for these two nonces and these two hellos."""
    nonce = secrets.token_bytes(32)
    connected.sendall(head(NONCE, value=32) + nonce)
    nonces = nonce + _expect(connected, NONCE, deadline, "nonce")
    connected.sendall(head(PROOF, value=32) + proof(key, 1, nonces, ours + theirs))
    try:
        answer = _expect(connected, PROOF, deadline, "proof")
    except Unavailable:
        raise InvalidArgument("it ended the connection when it saw our proof: the key files of the two sides differ") from None
    if not hmac.compare_digest(answer, proof(key, 2, nonces, ours + theirs)):
        raise InvalidArgument("it does not have our key: the key files of the two sides differ")


def _expect(connected: Stream, wanted: int, deadline: float, what: str) -> bytes:
    kind, channel, value = read_head(_receive(connected, HEAD.size, deadline, what))
    if kind == BYE:
        raise Unavailable(f"it ended the connection where its {what} was due")
    if (kind, channel, value) != (wanted, 0, 32):
        raise DataLoss(f"kind {kind} with value {value} where its {what} was due")
    return _receive(connected, 32, deadline, what)
