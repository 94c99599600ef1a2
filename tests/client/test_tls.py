"""TLS with certificates on both sides, each checked against the other's CA."""

import contextlib
import ssl
import subprocess

import numpy as np
import pytest

import tandem_client
from tests.client.conftest import needs
from tests.client.fake_rank import FakeRank

ROWS = np.random.default_rng(0).standard_normal((200, 16)).astype(np.float32)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """files(name): certificate, key, and the CA that signed it. `stranger` has a CA of its own."""
    folder = tmp_path_factory.mktemp("tls")

    def openssl(*words):
        subprocess.run(["openssl", *map(str, words)], check=True, capture_output=True, cwd=folder)

    for ca in ("ours", "theirs"):
        openssl("req", "-x509", "-newkey", "ed25519", "-nodes", "-keyout", f"{ca}.key", "-out", f"{ca}.pem", "-days", 3, "-subj", f"/CN={ca}")
    for name, ca in (("client", "ours"), ("rank", "ours"), ("stranger", "theirs")):
        openssl("req", "-newkey", "ed25519", "-nodes", "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}")
        openssl("x509", "-req", "-in", f"{name}.csr", "-CA", f"{ca}.pem", "-CAkey", f"{ca}.key", "-CAcreateserial", "-out", f"{name}.pem", "-days", 3)
        (folder / f"{name}.key").chmod(0o600)
    return lambda name, ca="ours": tuple(str(folder / file) for file in (f"{name}.pem", f"{name}.key", f"{ca}.pem"))


def server(certificate, key, ca):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version, context.verify_mode = ssl.TLSVersion.TLSv1_3, ssl.CERT_REQUIRED
    context.load_cert_chain(certificate, key)
    context.load_verify_locations(ca)
    return context


@contextlib.contextmanager
def fake(script, context):
    rank = FakeRank(script, security=2, tls=context)
    try:
        yield rank
    finally:
        with contextlib.suppress(ssl.SSLError, ConnectionError):
            rank.close()


def test_rows_inside_tls(files):
    def script(rank):
        seen.append((rank.connected.version(), rank.connected.getpeercert()["subject"]))
        rank.open()
        for _ in range(4):
            rank.reply(rank.request())

    seen = []
    with fake(script, server(*files("rank"))) as rank, tandem_client.Client(rank.address, tls_files=files("client")) as client:
        assert (client.compute(0, ROWS) == ROWS * 2).all()
    assert seen == [("TLSv1.3", ((("commonName", "client"),),))]


def nothing(rank):
    rank.greet()


def test_a_rank_of_another_ca(files):
    with fake(nothing, server(*files("stranger"))) as rank, pytest.raises(tandem_client.InvalidArgument, match=f"{rank.address}: its certificate is refused"):
        tandem_client.Client(rank.address, tls_files=files("client"))


def test_a_client_of_another_ca(files):
    with fake(nothing, server(*files("rank"))) as rank, pytest.raises(tandem_client.InvalidArgument, match="it refuses our certificate .*UNKNOWN_CA.*stranger.pem"):
        tandem_client.Client(rank.address, tls_files=files("stranger"))


def test_one_side_without_tls(files):
    def encrypted(rank):
        rank.read(80)
        rank.connected.sendall(bytes.fromhex("15030300020228"))  # as a rank answers what is no TLS

    rank = FakeRank(encrypted)
    with pytest.raises(tandem_client.InvalidArgument, match=f"{rank.address}: it speaks TLS: give this side tls_files"):
        tandem_client.Client(rank.address)
    rank.close()

    def plain(rank):
        rank.read(16)  # and ends what begins with no hello

    rank = FakeRank(plain)
    with pytest.raises(tandem_client.DeadlineExceeded, match=f"{rank.address}: not there in time: it ended the connection in the TLS handshake.*speaks no TLS"):
        tandem_client.Client(rank.address, tls_files=files("client"), timeout=0.2)
    rank.close()


def test_files_that_are_none(files, tmp_path):
    certificate, key, ca = files("client")
    with pytest.raises(tandem_client.InvalidArgument, match="missing.pem.*PEM files of a certificate"):
        tandem_client.Client("127.0.0.1:1", tls_files=(str(tmp_path / "missing.pem"), key, ca))
    open_key = tmp_path / "open.key"
    open_key.write_bytes(b"x")
    open_key.chmod(0o644)
    with pytest.raises(tandem_client.InvalidArgument, match="chmod 600"):
        tandem_client.Client("127.0.0.1:1", tls_files=(certificate, str(open_key), ca))
    with pytest.raises(tandem_client.InvalidArgument, match="one of them would do"):
        tandem_client.Client("127.0.0.1:1", tls_files=files("client"), key_file=key)


@needs("--peer-tls-certificate")
def test_a_real_rank(files, own_pool):
    certificate, key, ca = files("rank")
    pool = own_pool("arith", "--peer-tls-certificate", certificate, "--peer-tls-key", key, "--peer-tls-ca", ca)
    rows = np.random.default_rng(0).standard_normal((200, 128)).astype(np.float32)
    with tandem_client.Client(pool.address, tls_files=files("client")) as client, tandem_client.Client(own_pool("arith").address) as plain:
        for _ in range(5):
            assert (client.compute(1, rows) == plain.compute(1, rows)).all()
    with pytest.raises(tandem_client.InvalidArgument, match="it refuses our certificate"):
        tandem_client.Client(pool.address, tls_files=files("stranger"))
