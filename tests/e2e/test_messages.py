"""Anthropic's Messages API through its official client: text, thinking, tools, streams, errors."""

import json

import anthropic
import pytest

from tests.e2e.conftest import MODEL, QUESTION, scripted_server, user
from tests.e2e.test_tools import ANSWERS, CITY

TOOL = {"name": "weather", "description": "The weather.", "input_schema": {
    "type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}, "required": ["city"]}}


def make_messages_client(url):
    return anthropic.Anthropic(base_url=url, api_key="none", max_retries=0, timeout=60)


@pytest.fixture(scope="module")
def arith(server):
    return make_messages_client(server.url)


@pytest.fixture(scope="module")
def scripted(tmp_path_factory):
    with scripted_server(ANSWERS.values(), tmp_path_factory.mktemp("scripted")) as url:
        yield make_messages_client(url)


def create(client, **fields):
    return client.messages.create(**{"model": MODEL, "max_tokens": 200, "messages": user(QUESTION), "extra_body": {"temperature": 0},
                                     **fields})


def scripted_fields(answer, thinking=False, **fields):
    more = {"thinking": {"type": "enabled", "budget_tokens": 1024}} if thinking else {}
    return {"model": "scripted", "max_tokens": 2000, "messages": user("Weather?"), **more, **fields,
            "extra_body": {"seed": list(ANSWERS).index(answer), **fields.get("extra_body", {})}}


def ask(client, answer, **fields):
    return client.messages.create(**scripted_fields(answer, **fields))


def plain(message):
    """The blocks of a message, without ids."""
    return [{key: value for key, value in block.model_dump(exclude_none=True).items() if key != "id"} for block in message.content]


def test_text(arith, client):
    message = create(arith)
    chat = client.chat.completions.create(model=MODEL, messages=user(QUESTION), temperature=0)
    assert message.type == "message" and message.role == "assistant" and message.model == MODEL and message.id.startswith("msg_")
    assert [block.type for block in message.content] == ["text"]
    assert message.content[0].text == chat.choices[0].message.content
    assert message.stop_reason == "end_turn" and message.stop_sequence is None
    usage = message.usage
    assert usage.input_tokens + usage.cache_read_input_tokens == chat.usage.prompt_tokens
    assert usage.output_tokens == chat.usage.completion_tokens and usage.cache_creation_input_tokens == 0
    assert message._request_id


def test_stream_is_the_same(arith):
    whole = create(arith)
    with arith.messages.stream(model=MODEL, max_tokens=200, messages=user(QUESTION), extra_body={"temperature": 0}) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == final.content[0].text == whole.content[0].text
    assert final.stop_reason == "end_turn" and final.usage.output_tokens == whole.usage.output_tokens


def test_the_order_of_events(server):
    """As they are on the wire: the client skips pings, and does not look at names."""
    reply = server.request("POST", "/v1/messages", {"model": MODEL, "max_tokens": 200, "messages": user(QUESTION), "temperature": 0,
                                                    "stream": True}, headers={"x-request-id": "mine"})
    assert reply.headers["content-type"].startswith("text/event-stream") and reply.headers["request-id"] == "mine"
    names = []
    for event in reply.body.split("\n\n")[:-1]:
        name, data = event.split("\n")
        assert name.startswith("event: ") and data.startswith("data: ")
        names.append(name.removeprefix("event: "))
        assert json.loads(data.removeprefix("data: "))["type"] == names[-1]
    count = names.count("content_block_delta")
    assert count > 5
    assert names == ["message_start", "ping", "content_block_start", *["content_block_delta"] * count, "content_block_stop",
                     "message_delta", "message_stop"]
    start = json.loads(reply.body.split("\n")[1].removeprefix("data: "))["message"]
    assert start["content"] == [] and start["stop_reason"] is None and start["usage"]["input_tokens"] > 0


def test_ends(arith):
    text = create(arith).content[0].text
    short = create(arith, max_tokens=3)
    assert short.stop_reason == "max_tokens" and short.usage.output_tokens == 3
    stop = text[4:9]
    cut = create(arith, stop_sequences=["\x7fnever", stop])
    assert cut.stop_reason == "stop_sequence" and cut.stop_sequence == stop and cut.content[0].text == text[: text.index(stop)]
    with arith.messages.stream(model=MODEL, max_tokens=200, messages=user(QUESTION), stop_sequences=[stop],
                               extra_body={"temperature": 0}) as stream:
        final = stream.get_final_message()
    assert (final.stop_reason, final.stop_sequence, final.content[0].text) == (cut.stop_reason, stop, cut.content[0].text)


def test_a_full_context(tandem_server):
    small = make_messages_client(tandem_server("serve", "--max-context-tokens", "64").url)
    content = QUESTION
    while (count := small.messages.count_tokens(model=MODEL, messages=user(content)).input_tokens) < 60:
        content = "7 " + content
    message = create(small, messages=user(content), max_tokens=500)
    assert message.stop_reason == "model_context_window_exceeded" and message.usage.output_tokens == 64 - count


def test_blocks_are_their_text(arith):
    """System and turns as blocks, and turns of one speaker: the prompt is the same."""
    def count(**fields):
        return arith.messages.count_tokens(model=MODEL, **fields).input_tokens

    one = count(system="Be brief.\nReally.", messages=user("a\nb"))
    usage = create(arith, system="Be brief.\nReally.", messages=user("a\nb"), max_tokens=1).usage
    assert one == usage.input_tokens + usage.cache_read_input_tokens
    blocks = [{"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}, {"type": "text", "text": "b"}]
    assert one == count(system=[{"type": "text", "text": "Be brief."}, {"type": "text", "text": "Really."}],
                        messages=[{"role": "user", "content": blocks}])
    assert one == count(system="Be brief.\nReally.", messages=user("a") + user("b"))
    assert one > count(messages=user("a\nb"))


def test_structured_output(arith):
    schema = {"type": "object", "properties": {"b": {"type": "integer", "minimum": 0, "maximum": 9}, "a": {"enum": ["x", "y"]}},
              "required": ["b", "a"]}
    message = create(arith, output_config={"format": {"type": "json_schema", "schema": schema}})
    value = json.loads(message.content[0].text)
    assert list(value) == ["b", "a"] and value["a"] in ("x", "y")


@pytest.mark.parametrize(("answer", "thinking", "blocks", "stop_reason"), [
    ("plain", False, [{"type": "text", "text": "Hello, größer world"}], "end_turn"),
    ("thinks", True, [{"type": "thinking", "thinking": "Let me think.\nYes.", "signature": ""}, {"type": "text", "text": "Hello"}], "end_turn"),
    ("thinks and calls", True, [{"type": "thinking", "thinking": "Hm.", "signature": ""}, {"type": "text", "text": "Both."},
                                {"type": "tool_use", "name": "weather", "input": CITY},
                                {"type": "tool_use", "name": "weather", "input": {"city": "Paris"}}], "tool_use"),
    ("calls alone", False, [{"type": "tool_use", "name": "weather", "input": {"city": "Paris"}}], "tool_use"),
])  # fmt: skip
def test_blocks(scripted, answer, thinking, blocks, stop_reason):
    fields = {"thinking": thinking, "tools": [TOOL]}
    message = ask(scripted, answer, **fields)
    assert (plain(message), message.stop_reason) == (blocks, stop_reason)
    ids = [block.id for block in message.content if block.type == "tool_use"]
    assert len(set(ids)) == len(ids) and all(name.startswith("toolu_") for name in ids)
    with scripted.messages.stream(**scripted_fields(answer, **fields)) as stream:
        final = stream.get_final_message()
    assert (plain(final), final.stop_reason) == (blocks, stop_reason)


def test_one_call_only(scripted):
    message = ask(scripted, "calls", tools=[TOOL], tool_choice={"type": "auto", "disable_parallel_tool_use": True})
    assert [block.type for block in message.content] == ["text", "tool_use"]
    none = ask(scripted, "calls", tools=[TOOL], tool_choice={"type": "none"})
    assert [block.type for block in none.content] == ["text"] and none.stop_reason == "end_turn"


def test_conversation(scripted):
    """A reply goes back as it came, with the results, and the prompt grows by both."""
    messages = user("Weather?")
    first = ask(scripted, "thinks and calls", thinking=True, messages=messages, tools=[TOOL])
    messages.append(first.to_param())
    results = [{"type": "tool_result", "tool_use_id": block.id, "content": [{"type": "text", "text": "sunny"}]}
               for block in first.content if block.type == "tool_use"]
    messages.append({"role": "user", "content": [*results, {"type": "text", "text": "And?"}]})
    second = ask(scripted, "plain", messages=messages, tools=[TOOL])
    assert second.usage.input_tokens > first.usage.input_tokens + len("sunny") * 2
    assert second.content[0].text == ANSWERS["plain"]
    counted = scripted.messages.count_tokens(model="scripted", messages=messages, tools=[TOOL]).input_tokens
    assert counted == second.usage.input_tokens


@pytest.mark.parametrize(("fields", "part"), [
    ({"max_tokens": 0}, "max_tokens is 0"),
    ({"messages": []}, "messages is []"),
    ({"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]}, "a block has the type \"image\""),
    ({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}, "messages ends with an assistant's"),
    ({"messages": [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "x"}]}]}, "tool_use_id \"x\" is no tool_use"),
    ({"messages": [{"role": "robot", "content": "a"}]}, "messages[0].role is \"robot\""),
    ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools[0].type is \"web_search_20250305\""),
    ({"tools": [{"name": "a b", "input_schema": {}}]}, "tools[0].name is \"a b\""),
    ({"tools": [{"name": "ab"}]}, "tools[0].input_schema is missing"),
    ({"stop_sequences": [""]}, "stop_sequences holds an empty string"),
    ({"thinking": {"type": "sometimes"}}, "thinking.type is \"sometimes\""),
    ({"extra_body": {"temperature": 1.5}}, "temperature is 1.5"),
    ({"extra_body": {"n": 2}}, "\"n\" is not a known field"),
    ({"extra_body": {"mcp_servers": [{}]}}, "mcp_servers is not supported"),
])  # fmt: skip
def test_refused(scripted, fields, part):
    with pytest.raises(anthropic.BadRequestError) as caught:
        scripted.messages.create(**{"model": "scripted", "max_tokens": 5, "messages": user("a"), **fields})
    body = caught.value.body
    assert body["type"] == "error" and body["error"]["type"] == "invalid_request_error" and part in body["error"]["message"]
    assert body["request_id"] == caught.value.response.headers["request-id"]


def test_refused_of_this_model(arith):
    with pytest.raises(anthropic.BadRequestError) as caught:
        create(arith, thinking={"type": "enabled", "budget_tokens": 1024})
    assert "this model does not think" in caught.value.message
    with pytest.raises(anthropic.BadRequestError) as caught:
        create(arith, tools=[TOOL])
    assert "no place for tools" in caught.value.message


def test_a_budget_leaves_room_for_the_text(scripted):
    with pytest.raises(anthropic.BadRequestError) as caught:
        scripted.messages.create(model="scripted", max_tokens=1024, messages=user("a"), thinking={"type": "enabled", "budget_tokens": 1024})
    assert "thinking.budget_tokens is 1024; it must be below max_tokens, which is 1024" in caught.value.message


def test_errors_have_their_types(arith, server):
    with pytest.raises(anthropic.NotFoundError) as caught:
        create(arith, model="other")
    assert caught.value.body["error"]["type"] == "not_found_error"
    with pytest.raises(anthropic.BadRequestError) as caught:
        create(arith, messages=user("x " * 5000))
    assert "the context of 2048 tokens" in caught.value.message
    for method, path, status, kind in (("GET", "/v1/messages", 405, "invalid_request_error"), ("POST", "/v1/messages/no", 404, "not_found_error")):
        reply = server.request(method, path, {})
        assert reply.status == status and reply.json()["error"]["type"] == kind
    reply = server.request("POST", "/v1/messages", b"{")
    assert reply.status == 400 and reply.json()["type"] == "error"
