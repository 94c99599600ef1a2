"""Who the other side is: nothing, a pre-shared key, or TLS with certificates on both sides (docs/protocol.md, authentication)."""

from __future__ import annotations

import hashlib
import hmac
import os
import socket
import ssl
import stat
import threading
import time
from dataclasses import dataclass

from .errors import DataLoss, DeadlineExceeded, InvalidArgument, Unavailable

NONE, KEY, TLS = 0, 1, 2
NAMES = {NONE: "none", KEY: "a key", TLS: "TLS"}
_MIN_KEY_BYTES, _MAX_KEY_BYTES = 32, 4096
_READ_BYTES = 64 << 10  # several records of 16 KiB at a time
_PERHAPS_PLAIN = "it is gone, or speaks no TLS: then give both sides certificates, or neither"


@dataclass(frozen=True)
class Security:
    mode: int = NONE
    key: bytes = b""
    context: ssl.SSLContext | None = None
    certificate: str = ""  # its file, for messages

    @staticmethod
    def of(key_file: str | None, tls_files: tuple[str, str, str] | None) -> Security:
        """`tls_files`: certificate and key of this side, and the CA of the other's, as PEM. InvalidArgument names the file and what would do."""
        if key_file is not None and tls_files is not None:
            raise InvalidArgument("key_file and tls_files: one of them would do")
        if key_file is not None:
            return Security(KEY, key=load_key(key_file))
        return Security(TLS, context=_context(*tls_files), certificate=tls_files[0]) if tls_files is not None else Security()


def _check_secret(path: str) -> None:
    mode = os.stat(path).st_mode
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise InvalidArgument(f"key file {path} is open to others (mode {mode & 0o777:o}): chmod 600 {path}")


def load_key(path: str) -> bytes:
    """A pre-shared key: the bytes of a file that only its owner may read, without one newline at the end."""
    try:
        _check_secret(path)
        with open(path, "rb") as file:
            key = file.read(_MAX_KEY_BYTES + 2).removesuffix(b"\n")
    except OSError as error:
        raise InvalidArgument(f"key file {path}: {error.strerror}") from None
    if not _MIN_KEY_BYTES <= len(key) <= _MAX_KEY_BYTES:
        raise InvalidArgument(f"key file {path} has {len(key)} bytes, a key needs {_MIN_KEY_BYTES} to {_MAX_KEY_BYTES}: openssl rand -hex 32 > {path}")
    return key


def proof(key: bytes, side: int, nonces: bytes, hellos: bytes) -> bytes:
    """HMAC-SHA256. `side`: who proves, 1 connecting, 2 listening. `nonces`, `hellos`: the connecting side's, then the listening side's."""
    return hmac.new(key, b"tandem peer 1" + bytes([side]) + nonces + hellos, hashlib.sha256).digest()


def _context(certificate: str, key: str, ca: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False  # the CA is the deployment's own: whom it signed belongs to it, whatever its name
    context.verify_mode = ssl.CERT_REQUIRED
    try:
        _check_secret(key)
        context.load_cert_chain(certificate, key)
        context.load_verify_locations(ca)
    except (OSError, ssl.SSLError) as error:
        raise InvalidArgument(f"tls_files {certificate}, {key}, {ca}: {error}: PEM files of a certificate, its key and the other side's CA "
                              "would do") from None
    return context


class TlsStream:
    """A connected socket inside TLS, for one thread that receives and any that send. OpenSSL works on memory, under a lock that is never
    held over a wait; the socket's own calls are outside it."""

    def __init__(self, connected: socket.socket, security: Security, deadline: float):
        self._socket, self._whose = connected, security.certificate
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = security.context.wrap_bio(self._in, self._out)
        self._state = threading.Lock()  # of the three above
        self._order = threading.Lock()  # what OpenSSL wrote leaves in that order; taken before _state
        self._plain = b""
        self._shake_hands(deadline)

    def _shake_hands(self, deadline: float) -> None:
        while True:
            try:
                self._tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                self._flush()
                self._socket.settimeout(max(deadline - time.monotonic(), 0.001))
                try:
                    self._feed()
                except TimeoutError:
                    raise DeadlineExceeded("no TLS handshake in time") from None
                except OSError as error:
                    raise Unavailable(f"it ended the connection in the TLS handshake ({error.strerror or error}): {_PERHAPS_PLAIN}") from None
            except (ssl.SSLEOFError, ssl.SSLZeroReturnError):  # by the release of Python
                raise Unavailable(f"it ended the connection in the TLS handshake: {_PERHAPS_PLAIN}") from None
            except ssl.SSLCertVerificationError as error:
                self._flush()
                raise InvalidArgument(f"its certificate is refused ({error.verify_message}): name the CA that signed it") from None
            except ssl.SSLError as error:
                raise InvalidArgument(f"it does not speak TLS 1.3 with us ({error.reason}): give both sides certificates, or neither") from None
        self._flush()

    def _feed(self) -> bool:
        """False at the end of the socket."""
        data = self._socket.recv(_READ_BYTES)
        with self._state:
            self._in.write(data) if data else self._in.write_eof()
        return bool(data)

    def _flush(self) -> None:
        with self._order:
            with self._state:
                data = self._out.read()
            if data:
                self._socket.sendall(data)

    def sendall(self, data) -> None:
        with self._order:
            with self._state:
                self._tls.write(data)
                data = self._out.read()
            self._socket.sendall(data)

    @property
    def buffered(self) -> bool:
        """Whether `recv` has something without the socket."""
        return bool(self._plain)

    def recv(self, count: int) -> bytes:
        """b"" at the end; TimeoutError where what came is not yet a whole record, or nothing came in the socket's timeout."""
        if not self._plain:
            ended = not self._feed()
            parts = []
            with self._state:
                try:
                    while part := self._tls.read(_READ_BYTES):
                        parts.append(part)
                    ended = True  # the peer's close_notify, which some releases read as nothing and others raise
                except ssl.SSLWantReadError:
                    pass
                except (ssl.SSLEOFError, ssl.SSLZeroReturnError):
                    ended = True
                except ssl.SSLError as error:
                    if "ALERT" in (error.reason or ""):  # in TLS 1.3 our certificate is judged when we believe the handshake done
                        raise InvalidArgument(f"it refuses our certificate ({error.reason}): give it the CA that signed {self._whose}") from None
                    raise DataLoss(f"TLS: {error.reason}") from None
            self._flush()  # answers of TLS itself
            self._plain = b"".join(parts)
            if not self._plain:
                if ended:
                    return b""
                raise TimeoutError
        taken, self._plain = self._plain[:count], self._plain[count:]
        return taken

    def recv_into(self, view: memoryview) -> int:
        data = self.recv(len(view))
        view[:len(data)] = data
        return len(data)

    def __getattr__(self, name: str):
        return getattr(self._socket, name)  # settimeout, setsockopt, shutdown, fileno, close
