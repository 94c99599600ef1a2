"""OpenAI's Responses API through its official client: text, reasoning, tools, streams, structured output, errors."""

import json

import openai
import pydantic
import pytest

from tests.e2e.conftest import MODEL, QUESTION, scripted_server, user
from tests.e2e.test_tools import ANSWERS, CITY

TOOL = {"type": "function", "name": "weather", "description": "The weather.", "strict": False, "parameters": {
    "type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}, "required": ["city"]}}


@pytest.fixture(scope="module")
def scripted(tmp_path_factory):
    with scripted_server(ANSWERS.values(), tmp_path_factory.mktemp("scripted")) as url:
        yield openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=60)


def create(client, **fields):
    return client.responses.create(**{"model": MODEL, "input": QUESTION, "temperature": 0, **fields})


def scripted_fields(answer, thinking=False, **fields):
    body = {"seed": list(ANSWERS).index(answer), **({"chat_template_kwargs": {"thinking": True}} if thinking else {})}
    return {"model": "scripted", "input": "Weather?", "extra_body": body, **fields}


def plain(response):
    """The items of a response, without ids."""
    drop = {"id", "call_id", "annotations", "logprobs", "summary"}

    def strip(value):
        if isinstance(value, dict):
            return {key: strip(each) for key, each in value.items() if key not in drop and each is not None}
        return [strip(each) for each in value] if isinstance(value, list) else value

    return strip([item.model_dump() for item in response.output])


def reasoning_item(text):
    return {"type": "reasoning", "status": "completed", "content": [{"type": "reasoning_text", "text": text}]}


def text_item(text):
    return {"type": "message", "status": "completed", "role": "assistant", "content": [{"type": "output_text", "text": text}]}


def call_item(**arguments):
    return {"type": "function_call", "status": "completed", "name": "weather", "arguments": json.dumps(arguments, ensure_ascii=False)}


def test_text(client):
    response = create(client, instructions="Be brief.", metadata={"k": "v"})
    chat = client.chat.completions.create(model=MODEL, messages=[{"role": "system", "content": "Be brief."}, *user(QUESTION)], temperature=0)
    assert response.object == "response" and response.status == "completed" and response.model == MODEL
    assert response.output_text == chat.choices[0].message.content and response.id.startswith("resp_")
    assert response.usage.input_tokens == chat.usage.prompt_tokens and response.usage.output_tokens == chat.usage.completion_tokens
    assert response.usage.total_tokens == chat.usage.total_tokens and response.usage.output_tokens_details.reasoning_tokens == 0
    assert response.instructions == "Be brief." and response.metadata == {"k": "v"} and response.tools == [] and response.tool_choice == "auto"
    assert response.error is None and response.incomplete_details is None and response.temperature == 0


def test_stream_is_the_same(client):
    whole = create(client)
    events = list(create(client, stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    kinds = [event.type for event in events]
    deltas = kinds.count("response.output_text.delta")
    assert deltas > 5 and kinds == [
        "response.created", "response.in_progress", "response.output_item.added", "response.content_part.added",
        *["response.output_text.delta"] * deltas, "response.output_text.done", "response.content_part.done", "response.output_item.done",
        "response.completed"]
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert text == whole.output_text == events[-1].response.output_text
    assert events[-1].response.usage == whole.usage and plain(events[-1].response) == plain(whole)
    assert {event.item_id for event in events if hasattr(event, "item_id")} == {events[-1].response.output[0].id}
    with client.responses.stream(model=MODEL, input=QUESTION, temperature=0) as stream:
        assert "".join(event.delta for event in stream if event.type == "response.output_text.delta") == text
        assert stream.get_final_response().output_text == text


def test_cut_off(client):
    response = create(client, max_output_tokens=3)
    assert response.status == "incomplete" and response.incomplete_details.reason == "max_output_tokens"
    assert response.output[0].status == "incomplete" and response.usage.output_tokens == 3
    assert list(create(client, max_output_tokens=3, stream=True))[-1].type == "response.incomplete"


def test_items_are_their_text(client):
    one = create(client, instructions="Be brief.", input=user("a\nb"), max_output_tokens=1).usage.input_tokens
    parts = [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]
    assert one == create(client, max_output_tokens=1, input=[{"type": "message", "role": "developer", "content": "Be brief."},
                                                             {"role": "user", "content": parts}]).usage.input_tokens


def test_logprobs(client):
    response = create(client, include=["message.output_text.logprobs"], top_logprobs=2)
    part = response.output[0].content[0]
    assert b"".join(bytes(token.bytes) for token in part.logprobs).decode() == part.text
    assert all(len(token.top_logprobs) == 2 for token in part.logprobs)
    events = create(client, include=["message.output_text.logprobs"], top_logprobs=2, stream=True)
    streamed = [token.logprob for event in events if event.type == "response.output_text.delta" for token in event.logprobs]
    assert streamed == [token.logprob for token in part.logprobs]


class Person(pydantic.BaseModel):
    b: int = pydantic.Field(ge=0, le=9)
    a: bool


def test_structured_output(client):
    response = client.responses.parse(model=MODEL, input=QUESTION, temperature=0, text_format=Person)
    assert isinstance(response.output_parsed, Person) and list(json.loads(response.output_text)) == ["b", "a"]
    loose = create(client, text={"format": {"type": "json_object"}}, max_output_tokens=100)
    assert loose.output_text.startswith("{")


@pytest.mark.parametrize(("answer", "thinking", "items"), [
    ("plain", False, [text_item("Hello, größer world")]),
    ("thinks", True, [reasoning_item("Let me think.\nYes."), text_item("Hello")]),
    ("thinks and calls", True, [reasoning_item("Hm."), text_item("Both."), call_item(**CITY), call_item(city="Paris")]),
    ("calls alone", False, [call_item(city="Paris")]),
])  # fmt: skip
def test_items(scripted, answer, thinking, items):
    response = scripted.responses.create(**scripted_fields(answer, thinking, tools=[TOOL]))

    def normal(response):
        found = plain(response)
        for item in found:
            if item["type"] == "function_call":
                item["arguments"] = json.dumps(json.loads(item["arguments"]), ensure_ascii=False)
        return found

    assert normal(response) == items and response.status == "completed"
    assert response.usage.output_tokens_details.reasoning_tokens == 0 if not thinking else response.usage.output_tokens_details.reasoning_tokens > 3
    fields = scripted_fields(answer, thinking)
    with scripted.responses.stream(**fields, tools=[TOOL]) as stream:
        events = list(stream)
    assert normal(events[-1].response) == items
    arguments = [event.arguments for event in events if event.type == "response.function_call_arguments.done"]
    assert arguments == [item.arguments for item in events[-1].response.output if item.type == "function_call"]
    reasoning = "".join(event.delta for event in events if event.type == "response.reasoning_text.delta")
    assert reasoning == "".join(item["content"][0]["text"] for item in items if item["type"] == "reasoning")


def test_conversation(scripted):
    """The items of a response go back as they came, with the outputs of its calls."""
    conversation = user("Weather?")
    first = scripted.responses.create(**scripted_fields("thinks and calls", True, input=conversation, tools=[TOOL]))
    conversation += [item.model_dump(exclude_none=True) for item in first.output]
    conversation += [{"type": "function_call_output", "call_id": item.call_id, "output": "sunny"} for item in first.output
                     if item.type == "function_call"]
    second = scripted.responses.create(**scripted_fields("plain", input=conversation, tools=[TOOL]))
    assert second.usage.input_tokens > first.usage.input_tokens + len("sunny") * 2
    chat = scripted.chat.completions.create(model="scripted", seed=0, tools=[{"type": "function", "function": {
        key: TOOL[key] for key in ("name", "description", "parameters")}}], messages=[
            *user("Weather?"), {"role": "assistant", "content": "Both.", "reasoning_content": "Hm.", "tool_calls": [
                {"id": item.call_id, "type": "function", "function": {"name": item.name, "arguments": item.arguments}}
                for item in first.output if item.type == "function_call"]},
            *[{"role": "tool", "tool_call_id": item.call_id, "content": "sunny"} for item in first.output if item.type == "function_call"]])
    assert chat.usage.prompt_tokens == second.usage.input_tokens, "the same prompt as the chat that says the same"


@pytest.mark.parametrize(("fields", "param", "part"), [
    ({"input": []}, "input", "input is []"),
    ({"input": [{"role": "robot", "content": "a"}]}, "input", "input[0].role is \"robot\""),
    ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input", "a part of the type \"input_image\""),
    ({"input": [{"type": "item_reference", "id": "x"}]}, "input", "nothing is stored here"),
    ({"input": [{"type": "function_call_output", "call_id": "x", "output": "a"}]}, "input", "call_id \"x\" is no function_call"),
    ({"previous_response_id": "resp_1"}, "previous_response_id", "answers are not stored"),
    ({"store": True}, "store", "answers are not stored"),
    ({"background": True}, "background", "while the client waits"),
    ({"truncation": "auto"}, "truncation", "nothing is left out"),
    ({"tools": [{"type": "web_search"}]}, "tools", "tools[0].type is \"web_search\""),
    ({"top_logprobs": 2}, "top_logprobs", "needs include"),
    ({"include": ["file_search_call.results"]}, "include", "include holds \"file_search_call.results\""),
    ({"text": {"format": {"type": "xml"}}}, "text", "text.format.type is \"xml\""),
    ({"text": {"format": {"type": "json_schema", "name": "x", "schema": {"type": "object", "patternProperties": {}}}}}, "text", "patternProperties"),
    ({"extra_body": {"max_tokens": 5}}, "max_tokens", "not a known field"),
    ({"max_output_tokens": 0}, "max_output_tokens", "max_output_tokens is 0"),
])  # fmt: skip
def test_refused(scripted, fields, param, part):
    with pytest.raises(openai.BadRequestError) as caught:
        scripted.responses.create(**{"model": "scripted", "input": "a", **fields})
    assert caught.value.param == param and part in caught.value.message
