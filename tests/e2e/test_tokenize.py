"""/tokenize and /detokenize, as vLLM has them."""

import pytest

from tests.e2e.conftest import MODEL, QUESTION, user


def tokenize(server, **fields):
    reply = server.request("POST", "/tokenize", {"model": MODEL, **fields})
    assert reply.status == 200, reply.body
    return reply.json()


@pytest.mark.parametrize("text", ["", "7", QUESTION, "größer 삼겹살 👩‍👩‍👧", "a\r\n\tb"])
def test_there_and_back(server, client, text):
    reply = tokenize(server, prompt=text, return_token_strs=True)
    assert reply["count"] == len(reply["tokens"]) == len(reply["token_strs"]) and reply["max_model_len"] == 2048
    back = server.request("POST", "/detokenize", {"model": MODEL, "tokens": reply["tokens"]}).json()
    assert back == {"prompt": text}
    if text:
        used = client.completions.create(model=MODEL, prompt=text, max_tokens=1).usage.prompt_tokens
        assert used == reply["count"]
    assert tokenize(server, prompt=text)["token_strs"] is None


def test_chat(server, client, vocabulary):
    reply = tokenize(server, messages=user(QUESTION), return_token_strs=True, temperature=0.5)
    used = client.chat.completions.create(model=MODEL, messages=user(QUESTION), max_tokens=1).usage.prompt_tokens
    assert reply["count"] == used and reply["token_strs"][0] == "<｜begin▁of▁sentence｜>"
    assert tokenize(server, messages=user(QUESTION), add_generation_prompt=False)["count"] == used - 1
    marks = "<｜User｜>"
    assert tokenize(server, prompt=marks)["count"] > 1 and tokenize(server, prompt=marks, parse_special_tokens=True)["count"] == 1


@pytest.mark.parametrize(("path", "fields", "param"), [
    ("/tokenize", {}, "prompt"), ("/tokenize", {"prompt": 7}, "prompt"), ("/tokenize", {"prompt": "a", "more": 1}, "more"),
    ("/tokenize", {"messages": [], "return_token_strs": True}, "messages"), ("/tokenize", {"messages": user("a"), "return_token_strs": 1}, "return_token_strs"),
    ("/detokenize", {}, "tokens"), ("/detokenize", {"tokens": [512]}, "tokens"), ("/detokenize", {"tokens": [-1]}, "tokens"),
    ("/detokenize", {"tokens": ["7"]}, "tokens"), ("/detokenize", {"tokens": [2**63]}, "tokens"),
])  # fmt: skip
def test_refused(server, path, fields, param):
    reply = server.request("POST", path, {"model": MODEL, **fields})
    assert reply.status == 400 and reply.json()["error"]["param"] == param
    assert server.request("POST", path, {"model": "other", **fields}).status == 404
