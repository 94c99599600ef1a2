"""Calls that are enforced, and strict arguments, by a real engine: the bundled model was never trained to call anything, so that
nothing here passes by chance. Its folder gets a template with tools in Hermes' notation, or in GLM's."""

import json

import anthropic
import openai
import pytest

from tests.conftest import ARITH, TandemServer
from tests.e2e.conftest import QUESTION, user

HERMES = "{{ '<tool_call>\\n' + (call['function'] | tojson) + '\\n</tool_call>' }}"
GLM = """{{ '<tool_call>' + call['function']['name'] + '\\n' }}{% for key, value in call['function']['arguments'].items() %}\
{{ '<arg_key>' + key + '</arg_key>\\n<arg_value>' + (value if value is string else value | tojson) + '</arg_value>\\n' }}{% endfor %}</tool_call>"""
TEMPLATE = """{{ bos_token }}{% if tools %}Tools:{% for tool in tools %} {{ tool | tojson }}{% endfor %}{% endif %}\
{% for message in messages %}{% if message['role'] == 'assistant' %}{{ '<｜Assistant｜>' + (message['content'] or '') }}\
{% for call in message['tool_calls'] or [] %}CALL{% endfor %}\
{{ eos_token }}{% else %}{{ '<｜User｜>' + message['content'] }}{% endif %}{% endfor %}\
{% if add_generation_prompt %}{{ '<｜Assistant｜>' }}{% endif %}"""
SCHEMA = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 8}, "days": {"type": "integer", "minimum": 1, "maximum": 9},
                                           "unit": {"enum": ["C", "F"]}}, "required": ["city", "days", "unit"], "additionalProperties": False}
TWO = {"type": "object", "properties": {"zone": {"enum": ["UTC", "CET"]}}, "required": ["zone"]}
TOOLS = [{"type": "function", "function": {"name": name, "strict": True, "parameters": schema}} for name, schema in
         (("weather", SCHEMA), ("now", TWO))]


@pytest.fixture(scope="module", params=(HERMES, GLM), ids=("hermes", "glm"))
def server(tmp_path_factory, request):
    folder = tmp_path_factory.mktemp("model") / "caller"
    folder.mkdir()
    for file in ARITH.iterdir():
        (folder / file.name).symlink_to(file)
    (folder / "chat_template.jinja").write_text(TEMPLATE.replace("CALL", request.param))
    process = TandemServer(["serve", "--model", str(folder), "--port", "0", "--log-level", "warning"], tmp_path_factory.mktemp("server"))
    yield process.wait_ready()
    assert process.stop() == 0


@pytest.fixture(scope="module")
def client(server):
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=60)


def check(name, arguments):
    value = json.loads(arguments)
    if name == "weather":
        assert list(value) == ["city", "days", "unit"] and len(value["city"]) <= 8 and 1 <= value["days"] <= 9 and value["unit"] in "CF"
    else:
        assert name == "now" and value["zone"] in ("UTC", "CET")


def ask(client, **fields):
    return client.chat.completions.create(**{"model": "caller", "messages": user(QUESTION), "max_tokens": 200, "tools": TOOLS,
                                             "temperature": 1, **fields})


@pytest.mark.parametrize("seed", range(4))
def test_required(client, seed):
    choice = ask(client, tool_choice="required", parallel_tool_calls=False, seed=seed).choices[0]
    assert choice.finish_reason == "tool_calls" and choice.message.content is None and len(choice.message.tool_calls) == 1
    call = choice.message.tool_calls[0].function
    check(call.name, call.arguments)
    pieces = [delta.function for chunk in ask(client, tool_choice="required", parallel_tool_calls=False, seed=seed, stream=True)
              for delta in chunk.choices[0].delta.tool_calls or []]
    assert pieces[0].name == call.name and "".join(piece.arguments or "" for piece in pieces) == call.arguments


def test_several_calls(client):
    message = ask(client, tool_choice="required", seed=1, max_tokens=400).choices[0].message
    for call in message.tool_calls:
        check(call.function.name, call.function.arguments)


@pytest.mark.parametrize("name", ["weather", "now"])
def test_named(client, name):
    choice = ask(client, tool_choice={"type": "function", "function": {"name": name}}, seed=3).choices[0]
    assert [call.function.name for call in choice.message.tool_calls] == [name]
    check(name, choice.message.tool_calls[0].function.arguments)


def test_auto_may_answer(client):
    """Strict tools leave the model its words: without a call the answer is text, and ends by itself."""
    choice = ask(client, temperature=0).choices[0]
    assert choice.finish_reason in ("stop", "tool_calls") and (choice.message.content or choice.message.tool_calls)


@pytest.mark.parametrize("seed", range(6))
def test_a_form_beside_tools(client, seed):
    """The answer is a call, or has the form."""
    schema = {"type": "object", "properties": {"sum": {"type": "integer", "minimum": 0, "maximum": 99}}, "required": ["sum"]}
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    choice = ask(client, seed=seed, max_tokens=400, parallel_tool_calls=False, response_format=form).choices[0]
    if choice.finish_reason == "tool_calls":
        assert choice.message.content is None
        for call in choice.message.tool_calls:
            check(call.function.name, call.function.arguments)
    else:
        assert choice.finish_reason == "stop" and 0 <= json.loads(choice.message.content)["sum"] <= 99


def test_through_the_other_apis(client, server):
    response = client.responses.create(model="caller", input=QUESTION, tool_choice="required", parallel_tool_calls=False, temperature=1,
                                       tools=[{"type": "function", **tool["function"]} for tool in TOOLS], extra_body={"seed": 5})
    assert [item.type for item in response.output] == ["function_call"]
    check(response.output[0].name, response.output[0].arguments)
    messages = anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0)
    tools = [{"name": tool["function"]["name"], "input_schema": tool["function"]["parameters"], "strict": True} for tool in TOOLS]
    for choice in ({"type": "any", "disable_parallel_tool_use": True}, {"type": "tool", "name": "now"}):
        reply = messages.messages.create(model="caller", max_tokens=200, messages=user(QUESTION), tools=tools, tool_choice=choice,
                                         extra_body={"seed": 5})
        assert reply.stop_reason == "tool_use" and [block.type for block in reply.content] == ["tool_use"]
        check(reply.content[0].name, json.dumps(reply.content[0].input))
    assert reply.content[0].name == "now"


def test_a_schema_that_cannot_be_kept(client):
    tool = {"type": "function", "function": {"name": "f", "strict": True, "parameters": {"type": "object", "patternProperties": {}}}}
    with pytest.raises(openai.BadRequestError) as caught:
        ask(client, tools=[tool])
    assert caught.value.param == "tools" and "the function f" in caught.value.message and "patternProperties" in caught.value.message
