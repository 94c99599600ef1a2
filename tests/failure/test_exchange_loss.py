"""Connector p2p over two FFN ranks: one is killed. Requests that need it end by name, /health names it, `up` starts it again, both
ranks find each other, and the answer is the one from before."""

import os
import signal
import time

from tests.conftest import ARITH, TandemServer

PATIENCE_S = 40  # a lost rank loads its weights again on a busy test machine


def pids(server):
    """pid of each FFN rank, from the table that `up` prints."""
    rows = [line.split() for line in server.stdout if line.startswith("ffn ")]
    return {int(row[1]): int(row[2]) for row in rows}


def answer(server):
    reply = server.request("POST", "/v1/completions", {"model": "arith", "prompt": "2+2=", "max_tokens": 12, "temperature": 0})
    return reply.status, reply.json()["choices"][0]["text"] if reply.status == 200 else reply.body


def test_a_killed_ffn_peer_is_named_and_taken_back(tmp_path):
    server = TandemServer(["up", "--model", str(ARITH), "--ffn", "2", "--exchange", "alltoall", "--deterministic", "--threads", "1",
                           "--port", "0"], tmp_path)
    try:
        server.wait_ready()
        before = answer(server)
        assert before[0] == 200
        os.kill(pids(server)[1], signal.SIGKILL)
        deadline = time.monotonic() + PATIENCE_S
        while (health := server.request("GET", "/health")).status == 200:
            assert time.monotonic() < deadline, server.describe()
        assert "FFN rank 1 at shm://" in health.body
        while answer(server) != before:
            assert time.monotonic() < deadline, server.describe()
            time.sleep(0.05)
        while server.request("GET", "/health").status != 200:
            assert time.monotonic() < deadline, server.describe()
            time.sleep(0.05)
    finally:
        server.stop()
