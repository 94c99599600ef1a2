"""The pre-shared key: both sides prove it before anything else travels."""

import contextlib

import numpy as np
import pytest

import tandem_client
from tandem_client import security
from tests.client.conftest import needs
from tests.client.fake_rank import FakeRank

KEY = b"0123456789abcdef0123456789abcdef"
ROWS = np.ones((3, 16), np.float32)


@pytest.fixture
def key_file(tmp_path):
    def write(key=KEY + b"\n", mode=0o600):
        path = tmp_path / "key"
        path.write_bytes(key)
        path.chmod(mode)
        return str(path)

    return write


@contextlib.contextmanager
def fake(script, mode=1):
    rank = FakeRank(script, security=mode)
    try:
        yield rank
    finally:
        rank.close()


def serve(rank):
    rank.open(KEY)
    rank.reply(rank.request())


def test_the_documented_proof():
    got = security.proof(b"k" * 32, 1, bytes(64), bytes(128))
    assert got.hex() == "04212fd4deb4b25e00a40b1b56e7e9116252e3b995041c7a3a79218ad3ed0a59"


def test_equal_keys(key_file):
    with fake(serve) as rank, tandem_client.Client(rank.address, key_file=key_file()) as client:
        assert (client.compute(0, ROWS) == ROWS * 2).all() and rank.proved


def test_our_key_is_wrong(key_file):
    def script(rank):
        with pytest.raises(EOFError, match="wrong proof"):
            rank.open(KEY)

    with fake(script) as rank, pytest.raises(tandem_client.InvalidArgument, match=f"{rank.address}: .*the key files of the two sides differ"):
        tandem_client.Client(rank.address, key_file=key_file(b"x" * 32))


def test_a_rank_without_the_key_gets_no_frame(key_file):
    got = []

    def script(rank):
        rank.greet(beat=False)
        with contextlib.suppress(ConnectionError):
            rank.prove(KEY, right=False)
            got.append(rank.connected.recv(1))

    with fake(script) as rank, pytest.raises(tandem_client.InvalidArgument, match="it does not have our key"):
        tandem_client.Client(rank.address, key_file=key_file())
    assert got in ([b""], [])


def test_one_side_without_a_key(key_file):
    def script(rank):
        rank.greet()
        with contextlib.suppress(ConnectionError, EOFError):
            assert rank.read(1) is None, "nothing follows"

    with fake(script) as rank, pytest.raises(tandem_client.InvalidArgument, match="security differs: none here, a key there: give both"):
        tandem_client.Client(rank.address)
    with fake(script, 0) as rank, pytest.raises(tandem_client.InvalidArgument, match="security differs: a key here, none there: give both"):
        tandem_client.Client(rank.address, key_file=key_file())


def test_keys_that_are_none(key_file):
    for mode in (0o640, 0o604):
        with pytest.raises(tandem_client.InvalidArgument, match="is open to others .*: chmod 600 "):
            tandem_client.Client("127.0.0.1:1", key_file=key_file(mode=mode))
    with pytest.raises(tandem_client.InvalidArgument, match="has 31 bytes, a key needs 32 to 4096: openssl rand"):
        tandem_client.Client("127.0.0.1:1", key_file=key_file(b"y" * 31 + b"\n"))


@needs("--peer-key-file")
def test_a_real_rank(key_file, own_pool, tmp_path):
    (tmp_path / "other").mkdir()
    path = key_file()
    pool = own_pool("arith", "--peer-key-file", path)
    rows = np.random.default_rng(0).standard_normal((100, 128)).astype(np.float32)
    with tandem_client.Client(pool.address, key_file=path) as client, tandem_client.Client(own_pool("arith").address) as plain:
        assert (client.compute(1, rows) == plain.compute(1, rows)).all()
    assert tandem_client.describe(pool.address, key_file=path).hidden_size == 128
    with pytest.raises(tandem_client.InvalidArgument, match="security differs: none here, a key there"):
        tandem_client.Client(pool.address)
    other = tmp_path / "other" / "key"
    other.write_bytes(b"z" * 32)
    other.chmod(0o600)
    with pytest.raises(tandem_client.InvalidArgument, match="the key files of the two sides differ"):
        tandem_client.Client(pool.address, key_file=str(other))
