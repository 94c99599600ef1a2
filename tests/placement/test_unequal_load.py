"""Ranks that have nothing to do, and ranks that have more than their neighbours, over every connector: nobody waits, and every
answer has the probabilities of the colocated server, bit for bit in deterministic mode. Eager and in graph mode."""

import concurrent.futures

import pytest

from tests.conftest import ARITH, M2N, FfnRank, TandemServer, start_ffn_ranks

QUESTIONS = [f"Tom has {a} apples and buys {b} more." for a, b in zip(range(3, 11), range(40, 32, -1))]
SHARED = ("--deterministic", "--threads", "1")
GRAPH = ("--execution", "graph", "--capture-sizes", "8,16")

P2P = ("--connector", "p2p")

# Requests at once to the first and to the second attention rank; others stay silent.
LOADS = ((1, 7), (7, 1), (0, 8), (8, 0), (4, 0), (0, 4), (4, 4))


def answer(server, question, tokens=16):
    body = {"model": "arith", "prompt": question, "max_tokens": tokens, "temperature": 0, "logprobs": 2}
    reply = server.request("POST", "/v1/completions", body)
    assert reply.status == 200, f"{reply.body}\n{server.describe()}"
    choice = reply.json()["choices"][0]
    return choice["text"], choice["logprobs"]["token_logprobs"], choice["logprobs"]["top_logprobs"]


@pytest.fixture(scope="module")
def expected(tandem_server):
    server = tandem_server("serve", "--deterministic")
    return {(question, tokens): answer(server, question, tokens) for question in QUESTIONS for tokens in (1, 16)}


def start_exchanging_ranks(count, directory, *flags):
    """FFN ranks of p2p know each other's addresses, and may wait for each other."""
    addresses = [f"shm://{directory}/ffn{rank}.sock" for rank in range(count)]
    ranks = ("--ffn", ",".join(addresses), "--num-ffn-ranks", str(count))
    with concurrent.futures.ThreadPoolExecutor(count) as pool:
        started = [pool.submit(FfnRank, address, directory, *ranks, "--ffn-rank", str(rank), *flags, rank=rank)
                   for rank, address in enumerate(addresses)]
    return [future.result() for future in started]


class Ranks:
    """xAyF by hand; every attention rank answers requests of its own."""

    def __init__(self, attention_ranks, ffn_ranks, directory, *flags):
        start = start_exchanging_ranks if P2P[1] in flags else lambda *rest: start_ffn_ranks("tcp", *rest)
        self.attention, self.ffn = [], start(ffn_ranks, directory, *flags)
        for rank in range(attention_ranks):
            folder = directory / f"attention{rank}"
            folder.mkdir()
            self.attention.append(TandemServer(["attention", "--model", str(ARITH), "--ffn", ",".join(ffn.address for ffn in self.ffn),
                                                "--port", "0", *flags, *(M2N if ffn_ranks > 1 and P2P[1] not in flags else ())], folder))

    def close(self):
        for server in self.attention:
            server.stop()
        for ffn in self.ffn:
            ffn.close()


@pytest.fixture
def ranks(request, tmp_path):
    attention_ranks, ffn_ranks, *flags = request.param
    started = Ranks(attention_ranks, ffn_ranks, tmp_path, *SHARED, *flags)
    try:
        for server in started.attention:
            server.wait_ready()
        yield started
    finally:
        started.close()


@pytest.mark.parametrize("ranks", ((2, 1, *GRAPH), (2, 2), (3, 2, *GRAPH), (3, 2, *P2P, *GRAPH)),
                         ids=("2A1F-graph", "2A2F-eager", "3A2F-graph", "3A2F-p2p-graph"), indirect=True)
def test_unequal_rows(ranks, expected):
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        for load in LOADS:
            asked = [(server, QUESTIONS[i]) for server, count in zip(ranks.attention, load) for i in range(count)]
            answers = list(pool.map(lambda item: answer(*item), asked))
            assert answers == [expected[question, 16] for _, question in asked], f"{load} requests"
    for server in ranks.attention[:2]:
        replays = server.metrics().get("tandem_graph_replays_total")
        if "graph" in server.arguments:
            assert replays and replays > 0, server.metrics()


@pytest.mark.parametrize("ranks", ((2, 1), (2, 2), (2, 2, *P2P)), ids=("2A1F", "2A2F", "2A2F-p2p"), indirect=True)
def test_two_hundred_requests_to_one_rank_and_then_one_to_the_other(ranks, expected):
    busy, silent = ranks.attention
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        asked = [QUESTIONS[i % len(QUESTIONS)] for i in range(200)]
        for question, got in zip(asked, pool.map(lambda question: answer(busy, question, 1), asked)):
            assert got == expected[question, 1]
    assert silent.request("GET", "/health").status == 200
    assert answer(silent, QUESTIONS[3]) == expected[QUESTIONS[3], 16]
