"""An attention rank behind a front dies under load: its requests end by name, the others go on, and it is taken back."""

import concurrent.futures
import os
import signal
import threading
import time

import pytest

from tests.conftest import ARITH, FfnRank, TandemServer
from tests.failure.test_ffn_loss import PATIENCE_S, answer, ask_until_it_ends


class Deployment:
    def __init__(self, directory):
        self.directory, self.ffn, self.attention = directory, None, {}

    def start_rank(self, rank):
        folder = self.directory / f"attention{rank}-{time.monotonic_ns()}"
        folder.mkdir()
        self.attention[rank] = TandemServer(
            ["attention", "--model", str(ARITH), "--ffn", self.ffn.address, "--attention-listen", self.address(rank), "--attention-rank",
             str(rank), "--num-attention-ranks", "2"], folder)
        return self.attention[rank]

    def address(self, rank):
        return f"shm://{self.directory}/attention{rank}.sock"


@pytest.fixture
def front(tmp_path):
    deployment = Deployment(tmp_path)
    deployment.ffn = FfnRank(f"shm://{tmp_path}/ffn.sock", tmp_path)
    for rank in (0, 1):
        deployment.start_rank(rank)
    server = TandemServer(["serve", "--model", str(ARITH), "--attention", f"{deployment.address(0)},{deployment.address(1)}", "--port", "0"],
                          tmp_path)
    try:
        yield server.wait_ready(), deployment
    finally:
        server.stop()
        for rank in deployment.attention.values():
            rank.process.kill()
            rank.stop()
        deployment.ffn.close()


def rank_health(server):
    return server.request("GET", "/health")


def wait_for(server, holds):
    deadline = time.monotonic() + PATIENCE_S
    while not holds(rank_health(server).json()):
        assert time.monotonic() < deadline, f"{rank_health(server).body}\n{server.describe()}"
        time.sleep(0.02)


def ask_until_told(server, count, told, outcomes):
    while not told.is_set():
        outcomes.append(ask_until_it_ends(server, count))


@pytest.mark.parametrize("how", (signal.SIGKILL, signal.SIGSTOP), ids=("killed", "stopped"))
def test_a_lost_attention_rank_ends_its_own_requests_only(front, how):
    server, deployment = front
    before = answer(server)
    told, outcomes = threading.Event(), []
    with concurrent.futures.ThreadPoolExecutor(12) as pool:
        asking = [pool.submit(ask_until_told, server, i, told, outcomes) for i in range(12)]
        try:
            wait_for(server, lambda health: min(rank["running"] for rank in health["ranks"]) >= 1)
            lost_at = time.monotonic()
            deployment.attention[1].process.send_signal(how)
            wait_for(server, lambda health: any(error is not None for _, error in outcomes))
            print(f"{how.name}: the first request ended {time.monotonic() - lost_at:.2f} s after the loss")
            wait_for(server, lambda health: [rank["ready"] for rank in health["ranks"]] == [True, False])
            reply = rank_health(server)
            assert reply.status == 200 and reply.json()["status"] == "degraded", "one rank serves on"
            assert deployment.address(1) in reply.json()["reason"]
            assert answer(server) == before, "new requests go to the rank that serves"
        finally:
            told.set()
        for thread in asking:
            thread.result(timeout=120)
    errors = [error for _, error in outcomes if error is not None]
    assert 0 < len(errors) < len(outcomes), outcomes
    for error in errors:
        assert "attention rank 1" in error and deployment.address(1) in error, error

    lost = deployment.attention[1]
    lost.process.kill()
    lost.stop()
    deployment.start_rank(1)
    wait_for(server, lambda health: health["status"] == "ok")
    for i in range(8):  # it gets work again: these have nothing in common and spread
        assert server.request("POST", "/v1/completions", {"model": "arith", "prompt": f"{i} and {i}", "max_tokens": 4}).status == 200
    finished = [line for line in server.request("GET", "/metrics").body.splitlines()
                if line.startswith('tandem_attention_rank_finished_total{rank="1"}')]
    deadline = time.monotonic() + PATIENCE_S
    while float(finished[0].split()[1]) == 0 and time.monotonic() < deadline:  # counts come every 100 ms
        time.sleep(0.05)
        finished = [line for line in server.request("GET", "/metrics").body.splitlines()
                    if line.startswith('tandem_attention_rank_finished_total{rank="1"}')]
    assert float(finished[0].split()[1]) > 0, "the rank that came back got nothing"


def test_up_starts_a_dead_attention_rank_again(tmp_path):
    server = TandemServer(["up", "--model", str(ARITH), "--attention", "2", "--ffn", "1", "--port", "0", "--threads", "1"], tmp_path)
    try:
        server.wait_ready()
        before = answer(server)
        pids = [int(line.split()[2]) for line in "".join(server.stdout).splitlines() if line.startswith("attention")]
        assert len(pids) == 2
        os.kill(pids[0], signal.SIGKILL)
        wait_for(server, lambda health: not health["ranks"][0]["ready"])
        assert answer(server) == before
        wait_for(server, lambda health: health["status"] == "ok")
        assert answer(server) == before
    finally:
        server.stop()
