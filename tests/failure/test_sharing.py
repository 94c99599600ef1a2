"""Many clients on one FFN rank, each a process of its own: what one of them does, the others do not notice."""

import concurrent.futures
import contextlib
import os
import re
import signal
import socket
import time
import urllib.request

import pytest

from tests.conftest import ARITH, START_LIMIT_S, FfnRank, TandemServer
from tests.failure import fake_peer
from tests.failure.test_ffn_loss import PATIENCE_S, answer, ask_until_it_ends


@contextlib.contextmanager
def client(ffn, directory):
    directory.mkdir()
    attention = TandemServer(["attention", "--model", str(ARITH), "--ffn", ffn.address, "--port", "0"], directory)
    try:
        yield attention.wait_ready()
    finally:
        attention.process.kill()
        attention.process.wait()
        attention.stop()


@pytest.fixture
def pool(tmp_path):
    ffn = FfnRank("tcp://127.0.0.1:0", tmp_path, "--metrics-listen", "127.0.0.1:0", "--max-clients", "4")
    try:
        yield ffn
    finally:
        ffn.close()


def metrics(ffn):
    text = urllib.request.urlopen(ffn.facts["metrics"]).read().decode()
    values = {name: float(value) for name, value in re.findall(r"^(\w+) (\S+)$", text, re.M)}
    return values, re.findall(r'^tandem_ffn_rank_client_rows_total\{client="([^"]*)"', text, re.M)


def wait_for(ffn, holds):
    deadline = time.monotonic() + PATIENCE_S
    while not holds(*metrics(ffn)):
        assert time.monotonic() < deadline, metrics(ffn)
        time.sleep(0.05)


@pytest.mark.parametrize("how", (signal.SIGKILL, signal.SIGSTOP), ids=("killed", "stopped"))
def test_a_client_that_dies_under_load_is_not_missed(pool, tmp_path, how):
    with client(pool, tmp_path / "good") as good, client(pool, tmp_path / "bad") as bad:
        before = answer(good)
        assert answer(bad) == before
        with concurrent.futures.ThreadPoolExecutor(8) as threads:
            for i in range(8):
                threads.submit(ask_until_it_ends, bad, i)
            wait_for(pool, lambda values, clients: values["tandem_ffn_rank_clients_per_call_sum"] > 50)
            bad.process.send_signal(how)
            assert answer(good) == before
            wait_for(pool, lambda values, clients: len(clients) == 1)
            assert answer(good) == before
            bad.process.kill()  # so that its requests end
        assert good.request("GET", "/health").status == 200
        values, clients = metrics(pool)
        assert values["tandem_ffn_rank_sessions_closed_total"] == 1 and values["tandem_ffn_rank_tiles_failed_total"] == 0


def long_answer(server, count):
    body = {"model": "arith", "prompt": f"{count} and", "max_tokens": 150, "temperature": 0, "ignore_eos": True}
    reply = server.request("POST", "/v1/completions", body)
    assert reply.status == 200, reply.body
    return reply.json()["choices"][0]["text"]


def test_two_clients_are_merged_and_answered_as_one_alone(pool, tmp_path):
    with client(pool, tmp_path / "first") as first, client(pool, tmp_path / "second") as second:
        alone = [long_answer(first, i) for i in range(4)]
        before, _ = metrics(pool)
        for _ in range(20):  # two processes may take turns by chance, but not for ever
            with concurrent.futures.ThreadPoolExecutor(8) as threads:
                answers = list(threads.map(long_answer, [first, second] * 4, [i // 2 for i in range(8)]))
            assert answers == [text for text in alone for _ in range(2)]
            values, clients = metrics(pool)
            assert len(clients) == 2
            calls, in_calls = (values[f"tandem_ffn_rank_{name}"] - before[f"tandem_ffn_rank_{name}"] for name in ("calls_total", "clients_per_call_sum"))
            if in_calls > calls:
                return
        pytest.fail(f"no call had two clients: {values}")


def test_connections_that_say_nothing_or_nonsense_take_nobodys_place(pool, tmp_path):
    host, port = pool.address.removeprefix("tcp://").rsplit(":", 1)
    with client(pool, tmp_path / "good") as good, contextlib.ExitStack() as opened:
        before = answer(good)
        for number in range(120):
            stranger = opened.enter_context(socket.create_connection((host, int(port))))
            with contextlib.suppress(OSError):
                if number % 3 == 0:
                    stranger.sendall(os.urandom(200))
                elif number % 3 == 1:  # a carrier's hello and nothing behind it: a place in the handshake
                    stranger.sendall(fake_peer.stream_hello())
        assert answer(good) == before
        with client(pool, tmp_path / "late") as late:
            assert answer(late) == before, "who says a proper hello is let in"
        values, _ = metrics(pool)
        assert values["tandem_ffn_rank_tiles_failed_total"] == 0


def test_one_client_too_many_is_refused_by_number(pool, tmp_path):
    with contextlib.ExitStack() as opened:
        clients = [opened.enter_context(client(pool, tmp_path / f"client{i}")) for i in range(4)]
        directory = tmp_path / "fifth"
        directory.mkdir()
        fifth = TandemServer(["attention", "--model", str(ARITH), "--ffn", pool.address, "--port", "0"], directory)
        try:
            deadline = time.monotonic() + START_LIMIT_S
            while "4 clients are connected, max_sessions is 4" not in fifth.log_path.read_text():
                assert time.monotonic() < deadline and fifth.process.poll() is None, fifth.describe()
                time.sleep(0.05)
        finally:
            fifth.stop()
        assert answer(clients[0]) == answer(clients[3])
