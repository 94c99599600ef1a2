"""What can be wrong with how a rank knows its peers, one thing at a time: proxies in front of a right one that have its key or its
certificates, and the cases of `tandem conformance` that must say so."""

import select
import socket
import ssl
import threading

from tests.security import peer

from .mutated_rank import DATA, HELLO, NONCE, PROOF, Mutation

BYE = 5  # of the carrier
KEY = b"a key of forty bytes that ranks share..."
CONNECTING, LISTENING = 1, 2
PATIENCE_S = 60


class NoncesForNonces(Mutation):
    """As right as who says its nonce at once: only once it has heard the client's, and a bye to one who says something else."""

    def __init__(self):
        self.first, self.heard = None, threading.Event()

    def up(self, kind, channel, value):
        if kind != HELLO and self.first is None:
            self.first = kind
            self.heard.set()
        return [(kind, channel, value)]

    def down(self, kind, channel, value):
        silent = kind == NONCE and not (self.heard.wait(PATIENCE_S) and self.first == NONCE)
        return [(BYE, 0, 0) if silent else (kind, channel, value)]


class Keyed(Mutation):
    """Has the key, so that it can prove to either side in the other's place. `judge` says which proof of the client goes on."""

    def __init__(self):
        self.hellos, self.nonces = [b"", b""], [b"", b""]  # of the client, of the rank

    def right(self, side, nonces=None):
        return peer.proof_of(KEY, side, nonces or self.nonces, self.hellos)

    def note(self, who, kind, value):
        if kind in (HELLO, NONCE):
            (self.hellos if kind == HELLO else self.nonces)[who] = value

    def up(self, kind, channel, value):
        self.note(0, kind, value)
        return [(kind, channel, self.judge(value) if kind == PROOF else value)]

    def down(self, kind, channel, value):
        self.note(1, kind, value)
        return [(kind, channel, value)]

    def judge(self, proof):
        return proof


class TakesAnyProof(Keyed):
    def judge(self, proof):
        return self.right(CONNECTING)


class ComparesHalf(Keyed):
    def judge(self, proof):
        right = self.right(CONNECTING)
        return right if proof[:16] == right[:16] and len(proof) == 32 else proof


class TakesShortProofs(Keyed):
    def judge(self, proof):
        right = self.right(CONNECTING)
        return right if right.startswith(proof) else proof


class TakesEitherSide(Keyed):
    def judge(self, proof):
        return self.right(CONNECTING) if proof == self.right(LISTENING) else proof


class ServesBeforeTheProof(Keyed):
    """Whoever says something else is let in as well."""

    def __init__(self):
        super().__init__()
        self.proved = False

    def up(self, kind, channel, value):
        early = [(PROOF, 0, self.right(CONNECTING))] if kind == DATA and not self.proved else []
        self.proved = self.proved or bool(early) or kind == PROOF
        return early + super().up(kind, channel, value)


class OneNonce(Keyed):
    """The same one for every connection: yesterday's proof is good today."""

    NONCE = bytes(range(32))

    def theirs(self):
        return (self.nonces[0], self.NONCE)

    def judge(self, proof):
        return self.right(CONNECTING) if proof == self.right(CONNECTING, self.theirs()) else proof

    def down(self, kind, channel, value):
        (frame,) = super().down(kind, channel, value)
        if kind == NONCE:
            return [(kind, channel, self.NONCE)]
        return [(kind, channel, self.right(LISTENING, self.theirs()))] if kind == PROOF else [frame]


class ProvesFirst(Keyed):
    """Shows its proof to whoever asks: with it one can try keys at home."""

    def __init__(self):
        super().__init__()
        self.has_nonce = threading.Event()

    def down(self, kind, channel, value):
        frames = super().down(kind, channel, value)
        if kind == NONCE:
            self.has_nonce.set()
        return frames

    def up(self, kind, channel, value):
        frames = super().up(kind, channel, value)
        if kind == NONCE and self.has_nonce.wait(PATIENCE_S):
            return [*frames, (PROOF, 0, self.right(CONNECTING))]
        return [] if kind == PROOF else frames


# Name: (mutation, cases that must fail).
KEYED_MUTANTS = {
    "takes any proof": (TakesAnyProof, ["security.key_wrong_proof", "security.key_other_connection", "security.key_other_hello"]),
    "compares half": (ComparesHalf, ["security.key_last_byte"]),
    "takes short proofs": (TakesShortProofs, ["security.key_short_proof", "security.key_empty_proof"]),
    "takes either side": (TakesEitherSide, ["security.key_other_side"]),
    "serves before the proof": (ServesBeforeTheProof, ["security.key_data_before_proof"]),
    "one nonce": (OneNonce, ["security.key_nonces"]),
    "proves first": (ProvesFirst, ["security.key_proves_last"]),
}


class TlsRank:
    """Ends TLS in front of a rank that speaks it, with the rank's own `files`: certificate, key, CA. `context`: changed by a mutation;
    `takes_plain`: who does not speak TLS is let in as well."""

    def __init__(self, rank_address, files, change=None, takes_plain=False):
        host, port = rank_address.removeprefix("tcp://").rsplit(":", 1)
        self.rank, self.takes_plain = (host, int(port)), takes_plain
        certificate, key, ca = files
        self.inner = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self.inner.check_hostname = False  # names are not compared
        self.outer = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.outer.minimum_version, self.outer.verify_mode, self.outer.num_tickets = ssl.TLSVersion.TLSv1_3, ssl.CERT_REQUIRED, 0
        for context in (self.inner, self.outer):
            context.load_cert_chain(certificate, key)
            context.load_verify_locations(ca)
        if change is not None:
            change(self.outer)
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"tcp://127.0.0.1:{self.listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client):
        with client:
            try:
                plain = self.takes_plain and client.recv(1, socket.MSG_PEEK) != b"\x16"  # no record of a handshake
                outside = client if plain else self.outer.wrap_socket(client, server_side=True)
                with outside, self.inner.wrap_socket(socket.create_connection(self.rank)) as inside:
                    self._pass(outside, inside)
            except OSError:  # an end, or a stranger
                pass

    @staticmethod
    def _pass(outside, inside):
        """One thread for both ways: an object of ssl is none for two."""
        other = {outside: inside, inside: outside}
        while True:
            held = [end for end in other if isinstance(end, ssl.SSLSocket) and end.pending()]
            for end in held or select.select(list(other), [], [])[0]:
                data = end.recv(1 << 16)
                if not data:
                    return
                other[end].sendall(data)

    def close(self):
        self.listener.close()


def asks_for_no_certificate(context):
    context.verify_mode = ssl.CERT_NONE


def takes_who_shows_none(context):
    context.verify_mode = ssl.CERT_OPTIONAL


def takes_tls_1_2(context):
    context.minimum_version = ssl.TLSVersion.TLSv1_2


# Name: (changes, cases that must fail).
TLS_MUTANTS = {
    "asks for no certificate": ({"change": asks_for_no_certificate}, ["security.tls_no_certificate", "security.tls_foreign_certificate"]),
    "takes who shows none": ({"change": takes_who_shows_none}, ["security.tls_no_certificate"]),
    "takes TLS 1.2": ({"change": takes_tls_1_2}, ["security.tls_old_version"]),
    "takes plain hellos": ({"takes_plain": True}, ["security.tls_plain_hello"]),
}
