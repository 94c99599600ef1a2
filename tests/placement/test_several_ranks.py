"""xAyF by hand: attention processes that know nothing of each other share FFN processes that hold a part of the experts each,
and every answer has the probabilities of the colocated server, bit for bit in deterministic mode."""

import concurrent.futures
import subprocess

import pytest

from tests.conftest import ARITH, BINARY, M2N, FfnRank, TandemServer, start_ffn_ranks

QUESTIONS = [f"Tom has {a} apples and buys {b} more." for a, b in zip(range(3, 15), range(40, 28, -1))]


def answer(server, question):
    body = {"model": "arith", "prompt": question, "max_tokens": 24, "temperature": 0, "logprobs": 2, "echo": True}
    reply = server.request("POST", "/v1/completions", body)
    assert reply.status == 200, f"{reply.body}\n{server.describe()}"
    choice = reply.json()["choices"][0]
    return choice["text"], choice["logprobs"]["token_logprobs"], choice["logprobs"]["top_logprobs"]


@pytest.fixture(scope="module")
def expected(tandem_server):
    server = tandem_server("serve", "--deterministic")
    return [answer(server, question) for question in QUESTIONS]


@pytest.mark.parametrize("attention_ranks,ffn_ranks,transport,placement",
                         ((2, 2, "shm", "expert"), (2, 2, "tcp", "expert"), (3, 2, "shm", "expert"), (1, 4, "tcp", "expert"), (2, 3, "tcp", "slice")))
def test_attention_ranks_share_ffn_ranks(attention_ranks, ffn_ranks, transport, placement, expected, tmp_path):
    """Only FFN ranks are told the placement: attention knows it from the pieces that they state."""
    ranks = start_ffn_ranks(transport, ffn_ranks, tmp_path, "--deterministic", "--threads", "1", "--placement", placement)
    servers = []
    try:
        for rank in range(attention_ranks):
            directory = tmp_path / f"attention{rank}"
            directory.mkdir()
            servers.append(TandemServer(["attention", "--model", str(ARITH), "--ffn", ",".join(ffn.address for ffn in ranks), "--port", "0",
                                         "--deterministic", "--threads", "1", *M2N], directory))
        for server in servers:
            server.wait_ready()
        with concurrent.futures.ThreadPoolExecutor(8) as pool:  # the last server stays silent where there are three
            busy = servers[: max(1, min(2, attention_ranks))]
            answers = [list(pool.map(lambda question, server=server: answer(server, question), QUESTIONS)) for server in busy]
        for one in answers:
            assert one == expected
        assert answer(servers[-1], QUESTIONS[0]) == expected[0]
    finally:
        for server in servers:
            server.stop()
        for ffn in ranks:
            ffn.close()


def test_ranks_of_different_placements_stop_the_start_by_name(tmp_path):
    ranks = [FfnRank("tcp://127.0.0.1:0", tmp_path, "--placement", placement, rank=rank, ranks=2)
             for rank, placement in enumerate(("slice", "expert"))]
    try:
        done = subprocess.run([BINARY, "attention", "--model", str(ARITH), "--ffn", ",".join(ffn.address for ffn in ranks), "--port", "0", *M2N],
                              capture_output=True, text=True, timeout=60)
        assert done.returncode != 0
        # Rank 0 has the lower half of every expert, rank 1 the second half of the experts, whole.
        assert "layer 1, expert 8, rows 0..64 of rank 1 overlaps rows up to 32 of another piece; replicas must be copies" in done.stderr
    finally:
        for ffn in ranks:
            ffn.close()


def test_up_starts_several_ffn_ranks_from_one_command():
    done = subprocess.run([BINARY, "up", "--model", str(ARITH), "--ffn", "3", "--once", "--question", "What is 2 plus 3?", *M2N],
                          capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    rows = [line.split()[:2] for line in done.stdout.splitlines() if line.startswith(("attention", "ffn"))]
    assert rows == [["attention", "0"], ["ffn", "0"], ["ffn", "1"], ["ffn", "2"]], done.stdout
    assert "A: " in done.stdout
