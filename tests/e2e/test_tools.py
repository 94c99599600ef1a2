"""Reasoning and tool calls through the official client, in DeepSeek-V4's format: the answers are written down, the server, its
tokenizer, prompts and parsers are real."""

import json

import openai
import pytest

from tests.e2e.conftest import scripted_server


def block(*calls):
    return "<｜DSML｜tool_calls>\n" + "".join(f"{call}\n" for call in calls) + "</｜DSML｜tool_calls>"


def invoke(name, **parameters):
    lines = [f'<｜DSML｜parameter name="{key}" string="{"true" if isinstance(value, str) else "false"}">'
             f"{value if isinstance(value, str) else json.dumps(value)}</｜DSML｜parameter>" for key, value in parameters.items()]
    return "\n".join([f'<｜DSML｜invoke name="{name}">', *lines, "</｜DSML｜invoke>"])


CITY = {"city": "Köln \"<b>\"\n", "days": 3, "deep": {"a": [1, None, True]}}
CALLS = "Both.\n\n" + block(invoke("weather", **CITY), invoke("weather", city="Paris"))
ANSWERS = {
    "plain": "Hello, größer world",
    "thinks": "Let me think.\nYes.</think>Hello",
    "never done": "Let me think",
    "calls": CALLS,
    "thinks and calls": "Hm.</think>" + CALLS,
    "calls alone": block(invoke("weather", city="Paris")) + "\n",
    "text behind": block(invoke("weather", city="Paris")) + "\nThat was it.",
    "malformed": "So: " + block('<｜DSML｜invoke name="weather">\n<｜DSML｜parameter name="city">Paris</｜DSML｜parameter>\n</｜DSML｜invoke>'),
}
TOOLS = [{"type": "function", "function": {"name": "weather", "description": "The weather.", "parameters": {
    "type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}, "required": ["city"]}}}]
THINKING = {"chat_template_kwargs": {"thinking": True}}


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    with scripted_server(ANSWERS.values(), tmp_path_factory.mktemp("scripted")) as url:
        yield openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=60)


def ask(client, answer, thinking=False, **fields):
    fields = {"model": "scripted", "messages": [{"role": "user", "content": "Weather?"}], "seed": list(ANSWERS).index(answer), **fields}
    return client.chat.completions.create(extra_body=THINKING if thinking else {}, **fields)


def whole(client, answer, **fields):
    """(reasoning, content, [(name, arguments)], finish_reason) of a reply; what is not there is "" or []."""
    choice = ask(client, answer, **fields).choices[0]
    calls = [(call.function.name, call.function.arguments) for call in choice.message.tool_calls or []]
    return getattr(choice.message, "reasoning_content", None) or "", choice.message.content or "", calls, choice.finish_reason


def streamed(client, answer, **fields):
    """The same of a stream, and the number of chunks."""
    reasoning, content, calls, finish, count = "", "", [], None, 0
    for chunk in ask(client, answer, stream=True, **fields):
        delta, count = chunk.choices[0].delta, count + 1
        reasoning += getattr(delta, "reasoning_content", None) or ""
        content += delta.content or ""
        for call in delta.tool_calls or []:
            if call.id:
                assert call.index == len(calls) and call.type == "function"
                calls.append([call.id, call.function.name, ""])
            calls[call.index][2] += call.function.arguments
        finish = chunk.choices[0].finish_reason or finish
    assert len({call[0] for call in calls}) == len(calls), "ids differ"
    return (reasoning, content, [(name, arguments) for _, name, arguments in calls], finish), count


@pytest.mark.parametrize(("answer", "thinking", "reasoning", "content", "calls", "finish"), [
    ("plain", False, "", "Hello, größer world", 0, "stop"),
    ("thinks", True, "Let me think.\nYes.", "Hello", 0, "stop"),
    ("never done", True, "Let me think", "", 0, "stop"),
    ("calls", False, "", "Both.", 2, "tool_calls"),
    ("thinks and calls", True, "Hm.", "Both.", 2, "tool_calls"),
    ("calls alone", False, "", "", 1, "tool_calls"),
    ("text behind", False, "", "\nThat was it.", 1, "tool_calls"),
    ("malformed", False, "", ANSWERS["malformed"], 0, "stop"),
])  # fmt: skip
def test_answers(client, answer, thinking, reasoning, content, calls, finish):
    fields = {"thinking": thinking, "tools": TOOLS}
    reply = whole(client, answer, **fields)
    assert (reply[0], reply[1], len(reply[2]), reply[3]) == (reasoning, content, calls, finish)
    if calls == 2:
        assert json.loads(reply[2][0][1]) == CITY and json.loads(reply[2][1][1]) == {"city": "Paris"}
    stream, count = streamed(client, answer, **fields)
    assert stream == reply
    if answer == "plain":
        assert count > 10, "text flows as it is made"


def test_content_is_null_beside_calls(client):
    message = ask(client, "calls alone", tools=TOOLS).choices[0].message
    assert message.content is None and message.tool_calls[0].id.startswith("call_")
    assert "reasoning_content" not in message.model_dump() or message.reasoning_content is None


def test_calls_are_text_without_tools(client):
    for fields in ({}, {"tools": TOOLS, "tool_choice": "none"}):
        assert whole(client, "calls", **fields) == ("", CALLS, [], "stop")


def test_one_call_only(client):
    assert len(whole(client, "calls", tools=TOOLS, parallel_tool_calls=False)[2]) == 1
    assert len(streamed(client, "calls", tools=TOOLS, parallel_tool_calls=False)[0][2]) == 1


def test_cut_off(client):
    """By tokens and by a stop string: what is there is given, whole as streamed."""
    for fields in ({"max_tokens": 40}, {"max_tokens": 150}, {"stop": ["days"]}):
        reply = whole(client, "calls", tools=TOOLS, **fields)
        assert reply[2] == [] and reply[1].startswith("Both.\n\n<｜DSML｜tool_calls>")
        assert reply[3] == ("stop" if "stop" in fields else "length")
        assert streamed(client, "calls", tools=TOOLS, **fields)[0] == reply


def test_conversation(client):
    """A reply's message goes back as it came, with the result, and the prompt grows by both."""
    messages = [{"role": "user", "content": "Weather?"}]
    first = ask(client, "thinks and calls", thinking=True, messages=messages, tools=TOOLS)
    message = first.choices[0].message
    messages += [message.model_dump(exclude_none=True)]
    messages += [{"role": "tool", "tool_call_id": call.id, "content": "sunny"} for call in message.tool_calls]
    second = ask(client, "plain", thinking=False, messages=messages, tools=TOOLS)
    assert second.usage.prompt_tokens > first.usage.prompt_tokens + len("sunny") * 2
    assert second.choices[0].message.content == ANSWERS["plain"]


@pytest.mark.parametrize(("fields", "param", "part"), [
    ({"tool_choice": "required"}, "tool_choice", "tools is missing"),
    ({"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "other"}}}, "tool_choice", "not among the tools"),
    ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools", "tools[0].function.name"),
    ({"reasoning_effort": "much"}, "chat_template_kwargs", "chat_template_kwargs.reasoning_effort"),
    ({"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}]}, "messages", "messages[1] has the role assistant"),
])  # fmt: skip
def test_refused(client, fields, param, part):
    with pytest.raises(openai.BadRequestError) as caught:
        ask(client, "plain", **fields)
    assert caught.value.param == param and part in caught.value.message
