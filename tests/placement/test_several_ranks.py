"""xAyF by hand: attention processes that know nothing of each other share FFN processes that hold a part of the experts each,
and every answer has the probabilities of the colocated server, bit for bit in deterministic mode."""

import concurrent.futures
import subprocess

import pytest

from tests.conftest import ARITH, BINARY, M2N, TandemServer, start_ffn_ranks

QUESTIONS = [f"Tom has {a} apples and buys {b} more." for a, b in zip(range(3, 15), range(40, 28, -1))]


def answer(server, question):
    body = {"model": "arith", "prompt": question, "max_tokens": 24, "temperature": 0, "logprobs": 2}
    reply = server.request("POST", "/v1/completions", body)
    assert reply.status == 200, f"{reply.body}\n{server.describe()}"
    choice = reply.json()["choices"][0]
    return choice["text"], choice["logprobs"]["token_logprobs"], choice["logprobs"]["top_logprobs"]


@pytest.fixture(scope="module")
def expected(tandem_server):
    server = tandem_server("serve", "--deterministic")
    return [answer(server, question) for question in QUESTIONS]


@pytest.mark.parametrize("attention_ranks,ffn_ranks,transport", ((2, 2, "shm"), (2, 2, "tcp"), (3, 2, "shm"), (1, 4, "tcp")))
def test_attention_ranks_share_ffn_ranks(attention_ranks, ffn_ranks, transport, expected, tmp_path):
    ranks = start_ffn_ranks(transport, ffn_ranks, tmp_path, "--deterministic", "--threads", "1")
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


def test_up_starts_several_ffn_ranks_from_one_command():
    done = subprocess.run([BINARY, "up", "--model", str(ARITH), "--ffn", "3", "--once", "--question", "What is 2 plus 3?", *M2N],
                          capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    rows = [line.split()[:2] for line in done.stdout.splitlines() if line.startswith(("attention", "ffn"))]
    assert rows == [["attention", "0"], ["ffn", "0"], ["ffn", "1"], ["ffn", "2"]], done.stdout
    assert "A: " in done.stdout
