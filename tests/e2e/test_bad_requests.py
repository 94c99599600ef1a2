"""What is refused, and how: the status, the shape, and a message that names the field and the value."""

import itertools
import json
import math

import openai
import pytest

from tests.e2e.conftest import MODEL, QUESTION, user

CHAT = {"model": MODEL, "messages": user("hi"), "max_tokens": 3}
COMPLETION = {"model": MODEL, "prompt": "7", "max_tokens": 3}


def refused(reply, status=400):
    assert reply.status == status, reply.body
    error = reply.json()["error"]
    assert set(error) == {"message", "type", "param", "code"} and "\n" not in error["message"]
    return error


def test_wrong_model_is_404(client):
    with pytest.raises(openai.NotFoundError) as caught:
        client.chat.completions.create(model="gpt-4", messages=user("hi"))
    assert caught.value.code == "model_not_found" and "gpt-4" in str(caught.value) and MODEL in str(caught.value)
    with pytest.raises(openai.NotFoundError):
        client.completions.create(model="gpt-4", prompt="hi")
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("gpt-4")


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"null", b'{"model":"arith",}', b'{"model":"\xff"}', b'{"model":1e999}',
                                  b'{"model":"arith","messages":[{"role":"user","content":"\\ud800"}]}', b"[" * 100000])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_bad_json_is_400(server, path, body):
    assert "JSON" in (message := refused(server.request("POST", path, body))["message"]) or "nests" in message


def test_too_long_names_both_numbers(server, client, context_tokens, vocabulary):
    ids = [vocabulary["7"]] * (context_tokens + 100)
    error = refused(server.request("POST", "/v1/completions", {**COMPLETION, "prompt": ids}))
    assert error["code"] == "context_length_exceeded" and error["param"] == "prompt"
    assert str(len(ids)) in error["message"] and str(context_tokens) in error["message"]
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model=MODEL, messages=user(QUESTION * 200))
    assert caught.value.code == "context_length_exceeded" and caught.value.param == "messages"
    assert str(context_tokens) in str(caught.value)
    numbers = [int(word) for word in caught.value.message.replace(",", " ").split() if word.isdigit()]
    assert context_tokens in numbers and max(numbers) > context_tokens
    # One too many, and the longest that fits: it ends by length where the context ends.
    refused(server.request("POST", "/v1/completions", {**COMPLETION, "prompt": ids[:context_tokens]}))
    full = client.completions.create(model=MODEL, prompt=ids[: context_tokens - 8], max_tokens=100, temperature=0,
                                     extra_body={"ignore_eos": True})
    assert full.choices[0].finish_reason == "length" and full.usage.completion_tokens == 8


def test_a_pool_smaller_than_the_context(tandem_server, vocabulary):
    """49 blocks of 16 tokens: what fits is served to the end of the pool, what does not is refused at once, and nobody waits behind it."""
    small = tandem_server("serve", "--kv-cache-tokens", "784")
    assert small.request("GET", "/props").json()["limits"]["kv_pool_tokens"] == 784
    for length in (785, 1002):
        error = refused(small.request("POST", "/v1/completions", {**COMPLETION, "prompt": [vocabulary["7"]] * length}))
        assert error["code"] == "context_length_exceeded" and str(length) in error["message"] and "784" in error["message"]
    for length, generated in ((783, 2), (784, 1)):
        reply = small.request("POST", "/v1/completions",
                              {**COMPLETION, "prompt": [vocabulary["7"]] * length, "max_tokens": 50, "ignore_eos": True}).json()
        assert reply["choices"][0]["finish_reason"] == "length" and reply["usage"]["completion_tokens"] == generated
    assert small.request("POST", "/v1/completions", COMPLETION).status == 200
    assert small.metrics()["tandem_kv_blocks_used"] == 0


BAD_IDS = [-1, 512, 2**31, 2**32 + 1, 2**63, 1.5, "7", "", None, True, [7]]


@pytest.mark.parametrize("bad", BAD_IDS, ids=repr)
@pytest.mark.parametrize("field", ["prompt", "stop_token_ids"])
def test_ids_outside_the_vocabulary(server, field, bad, vocabulary):
    assert 512 == len(vocabulary)
    body = {**COMPLETION, field: [7, bad]}
    error = refused(server.request("POST", "/v1/completions", body))
    assert error["param"].startswith(field)
    assert json.dumps(bad) in error["message"]


@pytest.mark.parametrize("bad", ["-1", "512", "2147483648", "9223372036854775808", "1.5", "x", ""])
def test_logit_bias_outside_the_vocabulary(server, bad):
    for path, body in (("/v1/completions", COMPLETION), ("/v1/chat/completions", CHAT)):
        error = refused(server.request("POST", path, {**body, "logit_bias": {bad: 1}}))
        assert error["param"] == "logit_bias" and (bad or '""') in error["message"]


REFUSED = [
    ({"temperature": -1}, "temperature"), ({"temperature": 2.5}, "temperature"), ({"temperature": "1"}, "temperature"),
    ({"top_p": 1.1}, "top_p"), ({"top_k": -2}, "top_k"), ({"min_p": -0.1}, "min_p"), ({"n": 0}, "n"), ({"n": 1.5}, "n"),
    ({"max_tokens": 0}, "max_tokens"), ({"max_tokens": -1}, "max_tokens"), ({"max_tokens": 2**31}, "max_tokens"),
    ({"seed": 0.5}, "seed"), ({"stop": ""}, "stop"), ({"stop": ["a", ""]}, "stop"), ({"stop": 1}, "stop"),
    ({"frequency_penalty": 3}, "frequency_penalty"), ({"presence_penalty": -3}, "presence_penalty"),
    ({"repetition_penalty": 0}, "repetition_penalty"), ({"logit_bias": {"7": 101}}, "logit_bias"),
    ({"stream_options": {"include_usage": True}}, "stream_options"), ({"min_tokens": 4}, "min_tokens"),
    ({"temprature": 1}, "temprature"), ({"guided_json": 7}, "guided_json"),
]


@pytest.mark.parametrize("fields,param", REFUSED, ids=[json.dumps(fields) for fields, _ in REFUSED])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_values_are_refused_by_name(server, path, fields, param):
    body = {**(CHAT if "chat" in path else COMPLETION), **fields}
    error = refused(server.request("POST", path, body))
    assert error["param"] == param and param in error["message"] and error["type"] == "invalid_request_error"


CHAT_REFUSED = [
    ({"messages": []}, "messages"), ({"messages": [{"role": "user"}]}, "messages[0].content"),
    ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role"),
    ({"messages": user([{"type": "image_url", "image_url": {"url": "x"}}])}, "messages[0].content"),
    ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools"), ({"response_format": {"type": "xml"}}, "response_format.type"),
    ({"modalities": ["audio"]}, "modalities"), ({"logprobs": 3}, "logprobs"), ({"top_logprobs": 3}, "top_logprobs"),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"), ({"max_completion_tokens": 4}, "max_completion_tokens"),
    ({"chat_template": "x"}, "chat_template"),
]


@pytest.mark.parametrize("fields,param", CHAT_REFUSED, ids=[json.dumps(fields) for fields, _ in CHAT_REFUSED])
def test_chat_refuses_by_name(server, fields, param):
    assert refused(server.request("POST", "/v1/chat/completions", {**CHAT, **fields}))["param"] == param


@pytest.mark.parametrize("fields,param", [({"suffix": "x"}, "suffix"), ({"best_of": 3}, "best_of"), ({"logprobs": 21}, "logprobs"),
                                          ({"prompt_logprobs": 1, "stream": True}, "prompt_logprobs"),
                                          ({"max_tokens": 0}, "max_tokens"), ({"prompt": []}, "prompt")])
def test_completions_refuse_by_name(server, fields, param):
    assert refused(server.request("POST", "/v1/completions", {**COMPLETION, **fields}))["param"] == param


def test_paths_and_methods(server):
    refused(server.request("GET", "/v1/nothing"), 404)
    reply = server.request("GET", "/v1/completions")
    refused(reply, 405)
    assert reply.headers["allow"] == "POST"
    refused(server.request("POST", "/health", {}), 405)


def test_sampling_at_the_edges(client):
    """Every pair of edges answers with valid JSON and finite numbers; those that leave one choice are greedy."""

    def text(**fields):
        reply = client.with_options().chat.completions.create(model=MODEL, messages=user(QUESTION), max_tokens=6, logprobs=True,
                                                              top_logprobs=5, seed=3, **fields)
        for token in reply.choices[0].logprobs.content:
            for each in (token, *token.top_logprobs):
                assert math.isfinite(each.logprob) and each.logprob <= 0
        return reply.choices[0].message.content

    greedy = text(temperature=0)
    for temperature, top_p, top_k in itertools.product((0, 1e-8, 1, 2), (0, 1e-8, 1), (-1, 0, 1)):
        got = text(temperature=temperature, top_p=top_p, extra_body={"top_k": top_k})
        if temperature < 1 or top_p < 1 or top_k == 1:
            assert got == greedy, (temperature, top_p, top_k)


def test_the_server_is_none_the_worse(server, client):
    assert server.request("GET", "/health").json() == {"status": "ok"}
    assert client.chat.completions.create(model=MODEL, messages=user(QUESTION), temperature=0).choices[0].finish_reason == "stop"


@pytest.mark.parametrize("letter", ["a", "_", " ", "\n", "é", "7"], ids=repr)
def test_a_million_letters_are_counted_and_refused(server, letter, context_tokens):
    error = refused(server.request("POST", "/v1/completions", {**COMPLETION, "prompt": letter * 10**6}))
    assert error["code"] == "context_length_exceeded" and str(context_tokens) in error["message"], error["message"]


def test_a_body_above_the_limit_is_413_before_it_is_read(server):
    connection = server.connection()
    connection.putrequest("POST", "/v1/completions")
    connection.putheader("content-length", str(1 << 40))
    connection.endheaders()
    reply = connection.getresponse()
    assert reply.status == 413 and "larger than" in json.loads(reply.read())["error"]["message"]
    connection.close()
