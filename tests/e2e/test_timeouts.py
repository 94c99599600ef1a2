"""Requests whose time is over: in the queue, while they run, in a stream, by the request's own wish and by the server's rule."""

import concurrent.futures
import json

import anthropic
import pytest

from tests.conftest import WAIT_LIMIT_S
from tests.e2e.conftest import MODEL, user

# The context is far longer than what is made in the times below, on any machine.
LONG = {"model": MODEL, "prompt": "7", "max_tokens": 500, "ignore_eos": True, "temperature": 0}
SHORT_S = 0.02


@pytest.fixture(scope="module")
def server(tandem_server):
    return tandem_server("serve", "--request-timeout-s", str(WAIT_LIMIT_S))


def over(reply):
    error = reply.json()["error"]
    if reply.status == 429:  # so slow a machine that it never began
        assert error["message"].startswith("the request has waited in the queue for ")
    else:
        assert reply.status == 504 and error["code"] == "timeout" and error["type"] == "service_unavailable_error"
        assert error["message"].startswith("the request's time is over: it had ") and "tokens were generated" in error["message"]


@pytest.mark.parametrize("path,fields", [
    ("/v1/completions", {}),
    ("/v1/chat/completions", {"messages": user("7"), "prompt": None}),
    ("/v1/responses", {"input": "7", "prompt": None, "max_tokens": None, "ignore_eos": None, "max_output_tokens": 500}),
])
def test_a_request_says_how_long_it_may_take(server, path, fields):
    body = {name: value for name, value in {**LONG, **fields}.items() if value is not None}
    # So short that no answer of any length is ready; a longer one than the server's does not lift the server's.
    over(server.request("POST", path, {**body, "timeout": 0.0001}))
    over(server.request("POST", path, body, headers={"x-request-timeout": "1e-4"}))
    over(server.request("POST", path, {**body, "timeout": 50}, headers={"x-request-timeout": "0.0001"}))
    assert server.request("POST", path, {**body, "timeout": WAIT_LIMIT_S * 2}).status == 200
    for bad in (0, -1, "3", 86401, True):
        reply = server.request("POST", path, {**body, "timeout": bad})
        assert reply.status == 400 and reply.json()["error"]["param"] == "timeout"
    for bad in ("0", "-1", "3s", "nan", "inf", "86401"):
        reply = server.request("POST", path, body, headers={"x-request-timeout": bad})
        assert reply.status == 400 and f'the header x-request-timeout is "{bad}"; it must be' in reply.json()["error"]["message"]


def test_messages_time_out_in_their_own_words(server):
    client = anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0)
    with pytest.raises(anthropic.APIStatusError) as caught:
        client.messages.create(model=MODEL, messages=user("7"), max_tokens=500, extra_body={"timeout": 0.0001})
    assert caught.value.status_code in (429, 504)
    assert caught.value.body["error"]["type"] in ("timeout_error", "rate_limit_error")


def test_a_server_ends_what_takes_too_long_and_nothing_stays(tandem_server):
    slow = tandem_server("serve", "--request-timeout-s", str(SHORT_S), "--max-num-seqs", "1")
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        replies = list(pool.map(lambda seed: slow.request("POST", "/v1/completions", {**LONG, "seed": seed, "timeout": 60}), range(8)))
    ended = [reply for reply in replies if reply.status != 200]
    assert ended, "eight long answers, one at a time, within the time of none"
    for reply in ended:
        over(reply)
    slow.wait_metrics(lambda metrics: metrics["tandem_kv_blocks_used"] == 0 and metrics["tandem_requests_waiting"] == 0)
    assert slow.metrics()["tandem_engine_overdue_total"] == len(ended)


def test_a_stream_that_has_begun_ends_with_an_error_and_without_done(server):
    timeout = SHORT_S
    for _ in range(60):
        reply = server.request("POST", "/v1/completions", {**LONG, "stream": True, "timeout": timeout})
        if reply.status == 200 and "[DONE]" not in reply.body:
            break
        timeout *= 0.7 if reply.status == 200 else 2  # its time was over at its end, or before it began
    else:
        pytest.fail("no time that ends an answer in its midst")
    events = [json.loads(line[6:]) for line in reply.body.splitlines() if line.startswith("data: {")]
    assert events[-1]["error"]["code"] == "timeout" and all("choices" in event for event in events[:-1])


def test_who_waits_too_long_in_the_queue_is_told_so(tandem_server):
    busy = tandem_server("serve", "--queue-timeout-s", str(SHORT_S), "--max-num-seqs", "1")
    replies = []
    for _ in range(20):  # where nobody gets to begin in time, later ones do
        with concurrent.futures.ThreadPoolExecutor(12) as pool:
            replies += pool.map(lambda seed: busy.request("POST", "/v1/completions", {**LONG, "seed": seed}), range(12))
        if len({reply.status for reply in replies}) > 1:
            break
    assert {reply.status for reply in replies} == {200, 429}, "the first go on to their end, the last never begin"
    for reply in replies:
        if reply.status == 429:
            assert reply.json()["error"]["type"] == "rate_limit_error" and reply.headers["retry-after"] == "1"
            assert reply.json()["error"]["message"].startswith("the request has waited in the queue for ")
