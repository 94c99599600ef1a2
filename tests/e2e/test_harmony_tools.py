"""Calls and forms of answers in harmony messages, by a gpt-oss of random weights: what comes out well-formed is so by the grammar
alone. It is the parity fixture with a larger vocabulary: the bytes, and harmony's control tokens."""

import json
import random
import struct

import openai
import pytest

from tests.conftest import ROOT, TandemServer
from tests.e2e.conftest import user

MARKS = ("<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|constrain|>", "<|return|>", "<|call|>", "<|endoftext|>")
PLAIN = [*range(33, 127), *range(161, 173), *range(174, 256)]
# How a byte-level vocabulary writes its bytes: those that are no letter as U+0100 and up.
LETTERS = [chr(byte) if byte in PLAIN else chr(256 + byte - sum(plain < byte for plain in PLAIN)) for byte in range(256)]
TEMPLATE = """{% for tool in tools or [] %}<|start|>developer<|message|>{{ tool.function.name }}<|end|>{% endfor %}\
{% for message in messages %}<|start|>{{ message.role }}{% for call in message.tool_calls or [] %}<|channel|>commentary \
to=functions.{{ call.function.name }}{% endfor %}<|message|>{{ message.content or '' }}<|end|>{% endfor %}<|start|>assistant"""
SCHEMA = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 8}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
          "required": ["city", "days"], "additionalProperties": False}
ZONE = {"type": "object", "properties": {"zone": {"enum": ["utc", "cet"]}}, "required": ["zone"], "additionalProperties": False}
TOOLS = [{"type": "function", "function": {"name": name, "strict": True, "parameters": schema}} for name, schema in
         (("weather", SCHEMA), ("now", ZONE))]
ID = {mark: len(LETTERS) + i for i, mark in enumerate(MARKS)}


def write_weights(source, target, vocab_size):
    """The fixture's tensors, with random rows behind those of the embedding and the head."""
    data = source.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header, body, out, at = json.loads(data[8:8 + length]), data[8 + length:], {}, 0
    rng, parts = random.Random(7), []
    for name, tensor in header.items():
        if name == "__metadata__":
            continue
        begin, end = tensor["data_offsets"]
        part = body[begin:end]
        if name in ("model.embed_tokens.weight", "lm_head.weight"):
            rows, cols = tensor["shape"]
            assert tensor["dtype"] == "BF16"
            # A bf16 is the upper half of a float32.
            part += b"".join(struct.pack("<f", rng.gauss(0, 0.5))[2:] for _ in range((vocab_size - rows) * cols))
            tensor["shape"] = [vocab_size, cols]
        out[name] = {**tensor, "data_offsets": [at, at + len(part)]}
        at += len(part)
        parts.append(part)
    written = json.dumps(out).encode()
    target.write_bytes(struct.pack("<Q", len(written)) + written + b"".join(parts))


def write_model(folder, ends):
    fixture = ROOT / "tests" / "fixtures" / "gpt_oss_bf16"
    folder.mkdir()
    vocab_size = len(LETTERS) + len(MARKS)
    write_weights(fixture / "model.safetensors", folder / "model.safetensors", vocab_size)
    config = json.loads((fixture / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "vocab_size": vocab_size, "bos_token_id": ID["<|endoftext|>"],
                                                    "eos_token_id": [ID[mark] for mark in ends]}))
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    added = [{"id": ID[mark], "content": mark, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
             for mark in MARKS]
    model = {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None,
             "fuse_unk": False, "byte_fallback": False, "vocab": {letter: i for i, letter in enumerate(LETTERS)}, "merges": []}
    (folder / "tokenizer.json").write_text(json.dumps({"version": "1.0", "truncation": None, "padding": None, "added_tokens": added,
                                                       "normalizer": None, "pre_tokenizer": byte_level, "post_processor": None,
                                                       "decoder": byte_level, "model": model}))
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE, "eos_token": "<|return|>"}))


# As released, where <|call|> ends an answer; and where it does not, so that a further call can follow it.
@pytest.fixture(scope="module", params=(("<|return|>", "<|call|>"), ("<|return|>",)), ids=("call_ends", "call_goes_on"))
def client(tmp_path_factory, request):
    folder = tmp_path_factory.mktemp("model") / "harmony"
    write_model(folder, request.param)
    process = TandemServer(["serve", "--model", str(folder), "--port", "0", "--log-level", "warning"], tmp_path_factory.mktemp("server"))
    yield openai.OpenAI(base_url=f"{process.wait_ready().url}/v1", api_key="none", max_retries=0, timeout=60)
    assert process.stop() == 0


def ask(client, **fields):
    # Reasoning that may go on for ever does so with random weights: its end is made likely.
    return client.chat.completions.create(**{"model": "harmony", "messages": user("how warm is it"), "max_tokens": 600, "tools": TOOLS,
                                             "temperature": 1, "logit_bias": {str(ID["<|end|>"]): 8, str(ID["<|return|>"]): 20}, **fields})


def check(call):
    value = json.loads(call.arguments)
    if call.name == "weather":
        assert list(value) == ["city", "days"] and len(value["city"]) <= 8 and 1 <= value["days"] <= 9
    else:
        assert call.name == "now" and value["zone"] in ("utc", "cet")


@pytest.mark.parametrize("seed", range(6))
def test_required(client, seed):
    fields = {"tool_choice": "required", "parallel_tool_calls": False, "seed": seed}
    choice = ask(client, **fields).choices[0]
    assert choice.finish_reason == "tool_calls" and choice.message.content is None and len(choice.message.tool_calls) == 1, choice
    call = choice.message.tool_calls[0].function
    check(call)
    reasoning, pieces = "", []
    for chunk in ask(client, **fields, stream=True):
        delta = chunk.choices[0].delta
        assert not delta.content
        reasoning += getattr(delta, "reasoning_content", None) or ""
        pieces += [piece.function for piece in delta.tool_calls or []]
    assert reasoning == (getattr(choice.message, "reasoning_content", None) or "")
    assert pieces[0].name == call.name and "".join(piece.arguments or "" for piece in pieces) == call.arguments


def test_reasoning_is_free(client):
    """Among some seeds there are answers that reason first, and answers that do not."""
    messages = [ask(client, tool_choice="required", parallel_tool_calls=False, seed=seed).choices[0].message for seed in range(12)]
    assert 0 < len([m for m in messages if getattr(m, "reasoning_content", None)]), messages
    assert all(len(m.tool_calls) == 1 for m in messages)


@pytest.mark.parametrize("name", ["weather", "now"])
def test_named(client, name):
    choice = ask(client, tool_choice={"type": "function", "function": {"name": name}}, seed=3).choices[0]
    assert [call.function.name for call in choice.message.tool_calls] == [name]
    check(choice.message.tool_calls[0].function)


def test_several_calls(client):
    """What a model does not want is not made likely: one call in some answers, more in others."""
    bias = {str(ID["<|end|>"]): 4, str(ID["<|return|>"]): 3}
    counts = set()
    for seed in range(8):
        choice = ask(client, tool_choice="required", seed=seed, max_tokens=900, logit_bias=bias).choices[0]
        for call in choice.message.tool_calls or []:
            check(call.function)
        if choice.finish_reason == "tool_calls":
            counts.add(len(choice.message.tool_calls))
    assert 1 in counts and max(counts) > 1, counts


@pytest.mark.parametrize("seed", range(4))
def test_a_form_alone_and_beside_tools(client, seed):
    schema = {"type": "object", "properties": {"sum": {"type": "integer", "minimum": 0, "maximum": 99}}, "required": ["sum"]}
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    alone = ask(client, seed=seed, tools=openai.omit, response_format=form).choices[0]
    assert alone.finish_reason == "stop" and 0 <= json.loads(alone.message.content)["sum"] <= 99 and not alone.message.tool_calls
    choice = ask(client, seed=seed, parallel_tool_calls=False, response_format=form).choices[0]
    if choice.finish_reason == "tool_calls":
        assert choice.message.content is None
        check(choice.message.tool_calls[0].function)
    else:
        assert choice.finish_reason == "stop" and 0 <= json.loads(choice.message.content)["sum"] <= 99


@pytest.mark.parametrize("seed", range(4))
def test_auto_may_answer(client, seed):
    """Strict tools alone: messages of text, then a call or the answer, never anything between."""
    choice = ask(client, seed=seed, max_tokens=900).choices[0]
    for call in choice.message.tool_calls or []:
        check(call.function)
    assert "<|" + "channel" not in (choice.message.content or "") or choice.finish_reason == "length", choice
