"""`tandem ffn` with a key: strangers get no byte of a result, and a flood of them costs nobody a request."""

import os
import pathlib
import re
import subprocess
import threading

import pytest

from tests.conftest import ARITH, BINARY, ROOT, FfnRank, TandemServer
from tests.security import peer

KEY = b"k" * 40


def key_file(directory, key=KEY, name="peer.key"):
    path = directory / name
    path.write_bytes(key + b"\n")
    path.chmod(0o600)
    return str(path)


@pytest.fixture(scope="module")
def keyed(tmp_path_factory):
    """An FFN rank and an attention rank before it, with one key."""
    directory = tmp_path_factory.mktemp("keyed")
    flags = ("--peer-key-file", key_file(directory))
    ffn = FfnRank("tcp://127.0.0.1:0", directory, *flags)
    server = TandemServer(["attention", "--model", str(ARITH), "--ffn", ffn.address, "--port", "0", *flags], directory)
    try:
        server.wait_ready()
        yield ffn, server
    finally:
        server.stop()
        ffn.close()


def ask(server, text="What is 17 plus 25?", tokens=8):
    reply = server.request("POST", "/v1/completions", {"model": "arith", "prompt": text, "max_tokens": tokens, "temperature": 0})
    assert reply.status == 200, reply.body
    return reply.json()["choices"][0]["text"]


def test_the_example_of_the_protocol_page():
    page = (ROOT / "docs" / "protocol.md").read_text()
    (wanted,) = re.findall(r"side 1: the proof is `([0-9a-f]{64})`", page)
    assert peer.proof_of(b"k" * 32, 1, (bytes(32), bytes(32)), (bytes(64), bytes(64))).hex() == wanted


def test_the_protocol_page_is_what_a_rank_speaks(keyed):
    ffn, _ = keyed
    with peer.KeyedPeer(ffn.address, peer.hello_of(ffn.address)) as stranger:
        stranger.send(stranger.proof(KEY))
        assert stranger.read(peer.HEAD_BYTES + peer.VALUE_BYTES) == stranger.proof(KEY, side=2)


@pytest.mark.parametrize("lie", ("another key", "the listener's side", "no proof", "a request instead", "silence"))
def test_without_the_key_no_byte_of_a_result_comes(keyed, lie):
    ffn, server = keyed
    hello = peer.hello_of(ffn.address)
    with peer.KeyedPeer(ffn.address, hello) as stranger:
        before = len(stranger.heard)
        if lie == "another key":
            stranger.send(stranger.proof(b"x" * 40))
        elif lie == "the listener's side":
            stranger.send(stranger.proof(KEY, side=2))
        elif lie == "no proof":
            stranger.send(peer.frame(peer.NONCE, bytes(32)))
        elif lie == "a request instead":
            stranger.send(peer.frame(peer.DATA, bytes(4096)))
        rest = stranger.read_to_end()  # silence: at the limit of 5 s
        assert before == 2 * peer.HEAD_BYTES + peer.HELLO_BYTES + peer.VALUE_BYTES
        assert rest == (peer.head(peer.BYE, 0) if lie in ("another key", "the listener's side") else b"")
    assert ask(server)


@pytest.mark.parametrize("flags, said", [
    ((), "security differs: none at"),
    (("--peer-key-file", "OTHER"), "it refuses our key: it has another one; give both sides the same --peer-key-file"),
])
def test_an_attention_rank_without_the_key_ends_and_says_why(keyed, tmp_path, flags, said):
    ffn, server = keyed
    flags = [key_file(tmp_path, b"y" * 40) if flag == "OTHER" else flag for flag in flags]
    done = subprocess.run([BINARY, "attention", "--model", str(ARITH), "--ffn", ffn.address, "--port", "0", *flags],
                          capture_output=True, text=True, timeout=120)
    assert done.returncode == 2, done.stderr
    assert said in done.stderr and ffn.address in done.stderr
    assert ffn.process.poll() is None, "the rank with the key goes on"
    assert ask(server)


def test_a_flood_of_strangers_costs_nobody_a_request(keyed):
    ffn, server = keyed
    wanted = ask(server)
    hello = peer.hello_of(ffn.address)
    stop, failures, made = threading.Event(), [], [0]

    def flood():
        held = []
        while not stop.is_set():
            try:
                half_open = peer.RawPeer(ffn.address)  # says nothing
                held.append(half_open)
                if made[0] % 3 == 0:
                    half_open.send(peer.frame(peer.HELLO, hello))
                if made[0] % 5 == 0:
                    half_open.send(peer.frame(peer.NONCE, bytes(32)) + peer.frame(peer.PROOF, os.urandom(32)))
                made[0] += 1
                if len(held) > 200:
                    held.pop(0).close()
            except OSError as error:
                failures.append(error)
        for connection in held:
            connection.close()

    flooding = threading.Thread(target=flood)
    flooding.start()
    try:
        answers = []
        while len(answers) < 20 or (made[0] < 400 and len(answers) < 2000):
            answers.append(ask(server))
    finally:
        stop.set()
        flooding.join()
    assert made[0] >= 300, failures[:3]
    assert set(answers) == {wanted}
    assert server.request("GET", "/health").status == 200


def test_up_gives_its_ranks_the_key(tmp_path):
    done = subprocess.run([BINARY, "up", "--model", str(ARITH), "--attention", "2", "--ffn", "1", "--transport", "tcp", "--once",
                           "--peer-key-file", key_file(tmp_path), "--log-level", "debug"], capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stderr
    assert "tokens/s" in done.stdout


@pytest.mark.parametrize("content, mode, said", [
    (b"short", 0o600, "has 5 bytes, not from 32 to 4096; make one with: openssl rand -hex 32"),
    (KEY, 0o644, "others than its owner may use it; chmod 600"),
])
def test_a_key_that_is_no_secret_is_refused(tmp_path, content, mode, said):
    path = pathlib.Path(key_file(tmp_path, content))
    path.chmod(mode)
    done = subprocess.run([BINARY, "ffn", "--model", str(ARITH), "--listen", "tcp://127.0.0.1:0", "--peer-key-file", str(path)],
                          capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and said in done.stderr and str(path) in done.stderr, done.stderr
