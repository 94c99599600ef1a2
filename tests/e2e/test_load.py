"""Many clients at once, clients that leave, and what health and metrics say meanwhile."""

import concurrent.futures
import json
import socket
import threading
import time
import urllib.parse

import pytest

from tests.conftest import ARITH, TandemServer
from tests.e2e.conftest import MODEL, QUESTION, make_client, user
from tests.e2e.load import IDLE, HealthPoller, wait_idle

NO_END = {"ignore_eos": True}


@pytest.mark.parametrize("placement", ["serve", "shm"])
def test_64_streams_at_once_while_health_answers(tandem_server, placement):
    server = tandem_server(placement)
    client = make_client(server)
    questions = [QUESTION.replace("12", str(10 + i)) for i in range(64)]
    texts, ends, failures = [None] * 64, [None] * 64, []

    def stream(i):
        try:
            pieces, end = [], None
            for chunk in client.chat.completions.create(model=MODEL, messages=user(questions[i]), temperature=0, max_tokens=100, stream=True, extra_body=NO_END):
                pieces.append(chunk.choices[0].delta.content or "")
                end = chunk.choices[0].finish_reason or end
            texts[i], ends[i] = "".join(pieces), end
        except Exception as error:  # noqa: BLE001 - reported below, in the test's thread
            failures.append((i, error))

    threads = [threading.Thread(target=stream, args=(i,)) for i in range(64)]
    with HealthPoller(server) as poller:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    print(poller.describe())
    assert not failures
    assert all(end == "length" for end in ends)
    assert len(poller.latencies) > 10 and poller.statuses == {200}
    wait_idle(server)
    # Batching changes nothing: the same question alone has the same answer.
    for i in range(0, 64, 16):
        alone = client.chat.completions.create(model=MODEL, messages=user(questions[i]), temperature=0, max_tokens=100, extra_body=NO_END)
        assert alone.choices[0].message.content == texts[i], questions[i]


def open_request(server, body):
    parts = urllib.parse.urlsplit(server.url)
    connection = socket.create_connection((parts.hostname, parts.port), timeout=60)
    data = json.dumps(body).encode()
    connection.sendall(b"POST /v1/completions HTTP/1.1\r\nhost: test\r\ncontent-type: application/json\r\n"
                       b"content-length: " + str(len(data)).encode() + b"\r\n\r\n" + data)
    return connection


def test_clients_that_leave_free_everything(tandem_server, vocabulary, context_tokens):
    """In the queue, in a prefill, in decode, streaming or not: closed sockets leave nothing behind, and each counts once."""
    server = tandem_server("serve", "--max-num-seqs", "2", "--max-num-batched-tokens", "64")
    before = wait_idle(server)
    body = {"model": MODEL, "prompt": [vocabulary["7"]] * 700, "max_tokens": context_tokens, "ignore_eos": True, "temperature": 0}
    rounds, each = 84, 6  # 504 sockets; six at once on two places: most of them wait

    def arrived(metrics, ways=("tandem_requests_running", "tandem_requests_waiting", "tandem_engine_cancelled_total", "tandem_engine_finished_total")):
        return sum(metrics[name] - before[name] for name in ways)

    for i in range(rounds):
        clients = [open_request(server, {**body, "stream": k % 2 == 0}) for k in range(each)]
        server.wait_metrics(lambda metrics, most=(i + 1) * each: arrived(metrics) >= most)
        if i % 3 == 1:
            clients[0].recv(1)  # its first token has come: decode
        for client in clients:
            client.close()
        wait_idle(server)
    # On a busy machine a few may reach the end of the context before their client is gone; each ends once all the same.
    after = server.wait_metrics(lambda metrics: arrived(metrics) == rounds * each and all(metrics[name] == 0 for name in IDLE))

    def grown(name):
        return after[name] - before[name]

    assert grown("tandem_engine_cancelled_total") > rounds * each // 2
    assert grown("tandem_http_disconnects_total") >= grown("tandem_engine_cancelled_total")
    # A normal end is no abort.
    make_client(server).completions.create(model=MODEL, prompt="7", max_tokens=3)
    assert server.metrics()["tandem_engine_cancelled_total"] == after["tandem_engine_cancelled_total"]


def test_a_stream_that_is_closed_early(server, client):
    wait_idle(server)
    for taken in (1, 2, 5):
        stream = client.completions.create(model=MODEL, prompt="7", max_tokens=2000, stream=True, extra_body={"ignore_eos": True})
        for _, _ in zip(range(taken), stream, strict=False):
            pass
        stream.close()
        wait_idle(server)


def test_a_full_queue_is_429_with_retry_after(tandem_server):
    server = tandem_server("serve", "--max-num-seqs", "1", "--max-queue", "1")
    body = {"model": MODEL, "prompt": "7", "max_tokens": 1000, "ignore_eos": True}
    replies = []
    for _ in range(10):  # on a busy machine eight clients may come one after the other
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            replies += pool.map(lambda seed: server.request("POST", "/v1/completions", {**body, "seed": seed}), range(8))
        if any(reply.status != 200 for reply in replies):
            break
    assert {reply.status for reply in replies} == {200, 429}
    for reply in (reply for reply in replies if reply.status == 429):
        assert int(reply.headers["retry-after"]) >= 1 and reply.json()["error"]["type"] == "rate_limit_error"
    wait_idle(server)


def test_metrics_count(tandem_server):
    server = tandem_server("serve", "--served-model-name", "org/counted")
    client = make_client(server)
    before = server.metrics()
    done = client.completions.create(model="org/counted", prompt="7", max_tokens=5, temperature=0, extra_body={"ignore_eos": True})
    assert done.model == "org/counted" and client.models.retrieve("org/counted").id == "org/counted"
    after = server.metrics()

    def grown(name):
        return after[name] - before[name]

    assert grown("tandem_time_to_first_token_seconds_count") == 1
    assert grown("tandem_inter_token_seconds_count") == 4
    assert grown("tandem_answer_seconds_count") == 1
    assert grown("tandem_completion_tokens_total") == grown("tandem_engine_generated_tokens_total") == 5
    assert grown("tandem_prompt_tokens_total") == done.usage.prompt_tokens
    assert after["tandem_ready"] == after["tandem_engine_healthy"] == 1
    text = server.request("GET", "/metrics").body
    assert 'tandem_http_requests_total{route="/v1/completions",status="200"} 1' in text


def test_health_while_loading_and_a_clean_stop(tmp_path):
    server = TandemServer(["serve", "--model", str(ARITH), "--port", "0"], tmp_path)
    deadline = time.monotonic() + 60
    while server.listening_url is None:
        assert time.monotonic() < deadline and server.process.poll() is None, server.describe()
        time.sleep(0.002)
    first = server.request("GET", "/health")  # loading, unless it was faster than this request
    if first.status == 503:
        assert first.json()["status"] == "loading" and "reason" in first.json()
        assert server.listening_url
    else:
        assert first.json() == {"status": "ok"}
    server.wait_ready()
    assert server.url == server.listening_url
    assert server.request("GET", "/health").status == 200
    held = open_request(server, {"model": MODEL, "prompt": "7", "max_tokens": 50, "ignore_eos": True, "stream": True})
    held.recv(1)
    assert server.stop() == 0, "SIGTERM drains and ends with status 0"
    rest = b""
    while piece := held.recv(65536):
        rest += piece
    assert rest.rstrip().endswith(b"0") and b"data: [DONE]" in rest, "an open stream may end"
