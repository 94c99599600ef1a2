"""A trace of servers that run: the next seconds on request, the last ones of a server that records all the time, from attention and FFN
ranks into one file, while requests are answered; and what is refused."""

import contextlib
import json
import subprocess
import threading
import time
import urllib.request

import pytest

from tests.conftest import ARITH, BINARY, WAIT_LIMIT_S, FfnRank, TandemServer, start_ffn_ranks
from tests.placement.test_trace import MOST_UNKNOWN, check_file, check_sums

PROMPT = {"model": "arith", "prompt": "Tom has 3 apples and buys 4 more.", "max_tokens": 48, "temperature": 0, "ignore_eos": True}
KEY = {"authorization": "Bearer k-1"}


def trace(*arguments):
    return subprocess.run([BINARY, "trace", "--log-level", "warning", *arguments], capture_output=True, text=True, timeout=120)


@contextlib.contextmanager
def load(server):
    """Requests, two at a time, for as long as the block takes; their answers."""
    stop, answers = threading.Event(), []

    def ask():
        while not stop.is_set():
            reply = server.request("POST", "/v1/completions", PROMPT, KEY)
            answers.append((reply.status, reply.json()["choices"][0]["text"]))

    threads = [threading.Thread(target=ask) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        yield answers
    finally:
        stop.set()
        for thread in threads:
            thread.join(WAIT_LIMIT_S)


@pytest.fixture(scope="module")
def split(tmp_path_factory):
    """An attention server and an FFN rank that both let themselves be traced, with a key."""
    folder = tmp_path_factory.mktemp("split")
    flags = ("--threads", "1", "--trace-requests", "--api-key", "k-1")
    rank = FfnRank("tcp://127.0.0.1:0", folder, "--metrics-listen", "127.0.0.1:0", *flags)
    server = TandemServer(["attention", "--model", str(ARITH), "--ffn", rank.address, "--port", "0", *flags], folder)
    try:
        yield server.wait_ready(), rank
    finally:
        assert server.stop() == 0
        rank.close()


def metrics_url(rank):
    return rank.facts["metrics"]


def test_both_halves_of_a_running_deployment_in_one_file(split, tmp_path):
    server, rank = split
    output = tmp_path / "trace.json"
    alone = server.request("POST", "/v1/completions", PROMPT, KEY).json()["choices"][0]["text"]
    with load(server) as answers:
        done = trace("--url", f"{server.url},{metrics_url(rank)}", "--seconds", "0.3", "--api-key", "k-1", "--output", str(output), "--json")
    assert done.returncode == 0, done.stderr
    assert set(answers) == {(200, alone)}, "recording changes no token"
    attention, ffn = json.loads(done.stdout)["ranks"]
    assert (attention["role"], ffn["role"]) == ("attention", "ffn")
    check_sums(attention)
    assert attention["steps"] > 0 and 0 < attention["wall_ns"] < WAIT_LIMIT_S * 1e9
    # Nobody records what comes before the request, or behind it.
    assert ffn["calls"] > 0 and 0 < ffn["wall_ns"] < WAIT_LIMIT_S * 1e9 and ffn["dropped_events"] == 0
    assert sum(ffn["parts"].values()) == ffn["wall_ns"] and all(part >= 0 for part in ffn["parts"].values())
    by_layer = sum(layer["decode_ns"] + layer["prefill_ns"] for layer in ffn["layers"])
    assert by_layer == ffn["parts"]["decode_ns"] + ffn["parts"]["prefill_ns"]
    assert {layer["layer"] for layer in ffn["layers"]} == set(range(1, 5)), "the first of 5 layers is dense"
    threads = check_file(output, 1, 1, own_records=1)
    calls = [span for (process, _), spans in threads.items() if process == 20001 for span in spans if span["cat"] == "ffn"]
    assert len(calls) == ffn["calls"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["trace.json"]
    text = trace("--read", str(output)).stdout
    assert text.startswith("attention 0: ") and "\nFFN 0: " in text and "calls by layer" in text


def test_it_may_be_asked_for_again_and_records_nothing_between(split, tmp_path):
    server, _ = split
    walls = []
    for _ in range(2):
        with load(server):
            reply = server.request("GET", "/debug/trace?seconds=0.3", headers=KEY)
        assert reply.status == 200
        rank = reply.json()["otherData"]["dead_time"][0]
        check_sums(rank)
        walls.append(rank["wall_ns"])
        time.sleep(0.2)
    assert all(0 < wall < WAIT_LIMIT_S * 1e9 for wall in walls)
    idle = server.request("GET", "/debug/trace?seconds=0.2", headers=KEY)
    assert idle.status == 200 and idle.json()["otherData"]["dead_time"][0]["wall_ns"] == 0, "no step, no time"


def test_what_is_refused(split, tmp_path):
    server, rank = split
    assert server.request("GET", "/debug/trace?seconds=1").status == 401
    for query in ("", "?seconds=0", "?seconds=61", "?last=x", "?minutes=1"):
        reply = server.request("GET", f"/debug/trace{query}", headers=KEY)
        assert reply.status == 400, query
    reply = server.request("GET", "/debug/trace?last=5", headers=KEY)
    assert reply.status == 400 and "start this process with --trace FILE" in reply.json()["error"]["message"]
    failed = trace("--url", server.url, "--output", str(tmp_path / "t.json"))
    assert failed.returncode != 0 and f"{server.url} answers 401: an API key is needed" in failed.stderr
    failed = trace("--url", f"{server.url},{metrics_url(rank)}", "--api-key", "k-1", "--last", "--output", str(tmp_path / "t.json"))
    assert failed.returncode != 0 and "nothing is recorded before it is asked for" in failed.stderr
    failed = trace("--url", "http://127.0.0.1:1", "--output", str(tmp_path / "t.json"))
    assert failed.returncode != 0 and "127.0.0.1:1" in failed.stderr
    failed = trace("--url", server.url, "--output", str(tmp_path / "no/t.json"))
    assert failed.returncode != 0 and "trace.output: cannot write" in failed.stderr


def test_one_at_a_time_and_an_end_that_does_not_wait(tmp_path):
    server = TandemServer(["serve", "--model", str(ARITH), "--port", "0", "--threads", "1", "--trace-requests"], tmp_path).wait_ready()
    replies = []

    def ask():  # until it is the one that is answered
        while not replies or replies[-1].status == 409:
            replies.append(server.request("GET", "/debug/trace?seconds=60"))

    first = threading.Thread(target=ask)
    try:
        first.start()
        deadline = time.monotonic() + WAIT_LIMIT_S
        while (second := server.request("GET", "/debug/trace?seconds=0.1")).status != 409:
            assert time.monotonic() < deadline, second.body[:200]
        assert "one at a time" in second.json()["error"]["message"]
        server.request("POST", "/v1/completions", PROMPT)
    finally:
        began = time.monotonic()
        assert server.stop() == 0
        first.join(WAIT_LIMIT_S)
    assert time.monotonic() - began < 60, "the end did not wait for the window"
    assert replies and replies[-1].status == 200, "what had been recorded was answered"
    check_sums(replies[-1].json()["otherData"]["dead_time"][0])


def test_the_last_seconds_of_a_server_that_records_all_the_time(tmp_path):
    at_exit, output = tmp_path / "exit.json", tmp_path / "now.json"
    server = TandemServer(["serve", "--model", str(ARITH), "--port", "0", "--threads", "1", "--trace-requests", "--trace", str(at_exit)],
                          tmp_path).wait_ready()
    try:
        assert server.request("POST", "/v1/completions", PROMPT).status == 200
        done = trace("--url", server.url, "--last", "--seconds", "60", "--output", str(output), "--json")
        assert done.returncode == 0, done.stderr
    finally:
        assert server.stop() == 0
    (now,) = json.loads(done.stdout)["ranks"]
    check_sums(now)
    check_file(output, 1, 0)
    (end,) = json.loads(trace("--read", str(at_exit), "--json").stdout)["ranks"]
    assert now["steps"] == end["steps"] > 0 and now["wall_ns"] == end["wall_ns"], "the same steps: nothing ran since"
    assert end["parts"]["unaccounted_ns"] <= MOST_UNKNOWN * end["wall_ns"]


def test_an_attention_rank_behind_a_front(tmp_path):
    ranks = start_ffn_ranks("shm", 1, tmp_path, "--threads", "1")
    rank = subprocess.Popen([BINARY, "attention", "--model", str(ARITH), "--ffn", ranks[0].address, "--attention-listen", "tcp://127.0.0.1:0",
                             "--threads", "1", "--json", "--trace-requests", "--metrics-listen", "127.0.0.1:0"], stdout=subprocess.PIPE, text=True)
    facts = json.loads(rank.stdout.readline())
    front = TandemServer(["serve", "--model", str(ARITH), "--attention", facts["address"], "--port", "0"], tmp_path)
    output = tmp_path / "t.json"
    try:
        front.wait_ready()
        with load(front):
            done = trace("--url", facts["metrics"], "--seconds", "0.3", "--output", str(output), "--json")
        assert done.returncode == 0, done.stderr
        (report,) = json.loads(done.stdout)["ranks"]
        check_sums(report)
        check_file(output, 1, 1)
        assert report["steps"] > 0
        with urllib.request.urlopen(facts["metrics"]) as reply:
            metrics = reply.read().decode()
        assert "tandem_ready 1" in metrics.splitlines()
    finally:
        assert front.stop() == 0
        rank.terminate()
        assert rank.wait(WAIT_LIMIT_S) == 0
        rank.stdout.close()
        ranks[0].close()


def test_off_unless_it_is_asked_for(tandem_server, tmp_path):
    server = tandem_server("serve")
    reply = server.request("GET", "/debug/trace?seconds=1")
    assert reply.status == 404
    assert reply.json()["error"]["message"] == "traces on request are off: start this process with --trace-requests"
    rank = FfnRank("tcp://127.0.0.1:0", tmp_path, "--metrics-listen", "127.0.0.1:0")
    try:
        failed = trace("--url", metrics_url(rank), "--output", str(tmp_path / "t.json"))
        assert failed.returncode != 0 and "answers 404: traces on request are off" in failed.stderr
        # What the listener does not have is refused, and the rank goes on.
        other = trace("--url", metrics_url(rank).replace("/metrics", "/nothing"), "--output", str(tmp_path / "t.json"))
        assert "answers 404: there is no /nothing/debug/trace" in other.stderr
        assert rank.process.poll() is None
    finally:
        rank.close()
