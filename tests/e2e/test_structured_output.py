"""Answers in a given form, through the official client: whatever the model would like to say, the form is kept.

The bundled model was not trained to write JSON, so that nothing here passes by chance.
"""

import json
import re

import openai
import pytest

from tests.conftest import ARITH, TandemServer
from tests.e2e.conftest import MODEL, QUESTION, make_client, user

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 130},
        "tags": {"type": "array", "items": {"enum": ["new", "old"]}, "maxItems": 3},
        "spouse": {"anyOf": [{"type": "null"}, {"type": "object", "properties": {"name": {"type": "string", "maxLength": 6}},
                                                "required": ["name"]}]},
    },
    "required": ["name", "age", "tags", "spouse"],
}
FORMAT = {"type": "json_schema", "json_schema": {"name": "person", "strict": True, "schema": PERSON}}


def check_person(text):
    value = json.loads(text)
    assert list(value) == ["name", "age", "tags", "spouse"], text
    assert isinstance(value["name"], str) and len(value["name"]) <= 12
    assert type(value["age"]) is int and 0 <= value["age"] <= 130
    assert len(value["tags"]) <= 3 and set(value["tags"]) <= {"new", "old"}
    assert value["spouse"] is None or list(value["spouse"]) == ["name"]


@pytest.mark.parametrize("sampling", [{"temperature": 0}, {"temperature": 1, "seed": 7},
                                      {"temperature": 2, "seed": 8, "extra_body": {"top_k": 40}}])
def test_json_schema(client, sampling):
    reply = client.chat.completions.create(model=MODEL, messages=user(QUESTION), response_format=FORMAT, max_tokens=250, n=4,
                                           **sampling)
    assert len(reply.choices) == 4
    for choice in reply.choices:
        assert choice.finish_reason == "stop", choice
        check_person(choice.message.content)


def test_the_stream_says_the_same(client):
    arguments = {"model": MODEL, "messages": user(QUESTION), "response_format": FORMAT, "max_tokens": 250, "temperature": 1,
                 "seed": 3}
    whole = client.chat.completions.create(**arguments).choices[0].message.content
    pieces = [chunk.choices[0].delta.content or "" for chunk in client.chat.completions.create(**arguments, stream=True)]
    assert "".join(pieces) == whole and len(pieces) > 5
    check_person(whole)


def test_json_object(client):
    reply = client.chat.completions.create(model=MODEL, messages=user(QUESTION), response_format={"type": "json_object"},
                                           max_tokens=300, temperature=1, seed=1)
    choice = reply.choices[0]
    assert choice.message.content.startswith("{")
    if choice.finish_reason == "stop":
        assert isinstance(json.loads(choice.message.content), dict)


@pytest.mark.parametrize("form,pattern", [
    ({"guided_regex": r"[A-C]{3}-\d{2,4}"}, r"[A-C]{3}-\d{2,4}"),
    ({"structured_outputs": {"choice": ["positive", "negative"]}}, "positive|negative"),
    ({"grammar": 'root ::= "<" item ("," item)* ">"\nitem ::= [0-9] | "[" root "]"'}, r"<.*>"),
])
@pytest.mark.parametrize("temperature", [0, 1.5])
def test_regex_choice_and_grammar(client, form, pattern, temperature):
    for seed in range(3):
        reply = client.completions.create(model=MODEL, prompt="Answer:", max_tokens=200, temperature=temperature, seed=seed,
                                          extra_body=form, logprobs=2)
        choice = reply.choices[0]
        # Only the grammar has texts without end.
        assert choice.finish_reason == "stop" or "grammar" in form
        if choice.finish_reason == "stop":
            assert re.fullmatch(pattern, choice.text), choice.text
        # Log probabilities are the model's own, whatever the form leaves.
        assert all(logprob <= 0 for logprob in choice.logprobs.token_logprobs)


def test_what_cannot_be_kept_is_refused(client):
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model=MODEL, messages=user("hi"), response_format={
            "type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object", "patternProperties": {}}}})
    assert caught.value.param == "response_format" and "patternProperties" in caught.value.message
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(model=MODEL, prompt="a", extra_body={"guided_grammar": "root ::= root \"a\""})
    assert "left recursion" in caught.value.message


def test_through_a_front_with_two_ranks_and_a_split(client, tmp_path):
    """The form travels to the rank that samples; ranks with the experts elsewhere keep it as well."""
    split = TandemServer(["up", "--attention", "2", "--ffn", "1", "--transport", "shm", "--model", str(ARITH), "--port", "0"], tmp_path)
    try:
        front = make_client(split.wait_ready())
        for seed in range(4):
            arguments = {"model": MODEL, "messages": user(QUESTION), "response_format": FORMAT, "max_tokens": 250, "temperature": 1,
                         "seed": seed}
            text = front.chat.completions.create(**arguments).choices[0].message.content
            check_person(text)
            assert text == client.chat.completions.create(**arguments).choices[0].message.content
    finally:
        assert split.stop() == 0
