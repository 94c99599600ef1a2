#!/usr/bin/env python3
"""Writes what the fuzz targets begin with into FOLDER/<target>/: what the tests have, and requests with every field once."""

import itertools
import json
import pathlib
import struct
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
FIXTURES = ROOT / "tests" / "fixtures"
SCHEMAS = [
    {"type": "object", "properties": {"name": {"type": "string", "minLength": 1}, "age": {"type": "integer", "minimum": 0, "maximum": 150},
                                      "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 3}}, "required": ["name"]},
    {"$defs": {"node": {"type": "object", "properties": {"next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}}}}, "$ref": "#/$defs/node"},
    {"type": "string", "format": "date-time"}, {"type": "string", "format": "email"}, {"type": "string", "format": "ipv6"}, {"format": "uuid"},
    {"type": "string", "pattern": "^[a-z]{2,4}-\\d+$"}, {"type": ["number", "null"]}, {"const": {"a": [1, "é"]}}, True, False,
    {"allOf": [{"type": "object", "properties": {"a": {"type": "boolean"}}}, {"properties": {"b": {"type": "integer", "exclusiveMinimum": -3}}}]},
    {"type": "array", "prefixItems": [{"type": "integer"}, {"type": "string"}], "items": False, "minItems": 2},
    {"type": "object", "additionalProperties": {"type": "integer"}}, {"oneOf": [{"type": "string"}, {"type": "object"}], "nullable": True},
]
REGEXES = [r"[a-c]{2,5}(x|y)*", r"\d{3}-\d{4}", r"(?i:ab)+é?", r"\p{Lu}\p{Ll}*", r"[^\n\"\\]*", r"(a|b(c|d){0,3})?z", r".\.\x41\u00e9", r"(?:yes|no)\s"]
GRAMMARS = [
    'root ::= "yes" | "no" ws\nws ::= [ \\t]*\n',
    'root ::= expr\nexpr ::= term (("+" | "-") term)*\nterm ::= [0-9]+ | "(" expr ")"\n',
    'root ::= item{1,3} # comment\nitem ::= "a" [^b-d] "\\n"? .\n',
]
CHOICES = ['["yes", "no", "maybe"]', '["", "a\\"b", "é"]']
FUNCTION = {"name": "weather", "description": "d", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}, "strict": True}
COMMON = {
    "model": "m", "max_tokens": 5, "temperature": 0.5, "top_p": 0.9, "top_k": 5, "min_p": 0.1, "repetition_penalty": 1.1, "frequency_penalty": 1,
    "presence_penalty": -1, "logit_bias": {"7": -100, "9": 2.5}, "seed": -1, "n": 2, "stop": ["a", "bc"], "stop_token_ids": [5], "min_tokens": 1,
    "ignore_eos": True, "skip_special_tokens": False, "priority": -3, "cache_salt": "s", "timeout": 2.5, "user": "u", "service_tier": "auto",
}
MESSAGES = [
    {"role": "system", "content": "S"}, {"role": "developer", "content": "D"}, {"role": "user", "content": [{"type": "text", "text": "é <|im_end|>"}]},
    {"role": "assistant", "content": None, "reasoning_content": "r",
     "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Köln"}'}}]},
    {"role": "tool", "tool_call_id": "c1", "content": "sunny"}, {"role": "user", "content": "b", "name": "x"},
]
REQUESTS = {
    0: [{**COMMON, "prompt": "hi", "echo": True, "logprobs": 2, "prompt_logprobs": 1, "best_of": 2}, {"model": "m", "prompt": [[1, 2], [3]]},
        {"model": "m", "prompt": ["a", "b"], "stream": True, "stream_options": {"include_usage": True}, "max_tokens": 0, "echo": True},
        {"model": "m", "prompt": [1, 2, 297], "guided_regex": "[ab]+"}, {"model": "m", "prompt": "x", "structured_outputs": {"choice": ["a", "b"]}}],
    1: [{**COMMON, "messages": MESSAGES, "logprobs": True, "top_logprobs": 3, "tools": [{"type": "function", "function": FUNCTION}],
         "tool_choice": "required", "parallel_tool_calls": False, "chat_template_kwargs": {"enable_thinking": True}, "reasoning_effort": "high"},
        {"model": "m", "messages": MESSAGES[2:3], "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMAS[0]}}},
        {"model": "m", "messages": MESSAGES[2:3], "response_format": {"type": "json_object"}, "thinking_token_budget": 5, "max_completion_tokens": 9},
        {"model": "m", "messages": MESSAGES[:1], "tools": [{"type": "function", "function": FUNCTION}],
         "tool_choice": {"type": "function", "function": {"name": "weather"}}, "grammar": ""}],
    2: [{"model": "m", "input": "hi", "instructions": "i", "max_output_tokens": 7, "include": ["message.output_text.logprobs"], "top_logprobs": 2,
         "text": {"format": {"type": "json_schema", "name": "n", "schema": SCHEMAS[1]}}, "reasoning": {"effort": "low"}, "metadata": {"a": "b"}},
        {"model": "m", "input": [{"role": "user", "content": [{"type": "input_text", "text": "a"}]},
                                 {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "t"}], "summary": []},
                                 {"type": "function_call", "call_id": "c", "name": "weather", "arguments": "{}"},
                                 {"type": "function_call_output", "call_id": "c", "output": "x"}],
         "tools": [{"type": "function", **FUNCTION}], "tool_choice": {"type": "function", "name": "weather"}, "stream": True}],
    3: [{"model": "m", "max_tokens": 20, "system": [{"type": "text", "text": "s"}], "stop_sequences": ["x"], "top_k": 3,
         "messages": [{"role": "user", "content": "a"},
                      {"role": "assistant", "content": [{"type": "thinking", "thinking": "t", "signature": ""}, {"type": "text", "text": "b"},
                                                        {"type": "tool_use", "id": "c", "name": "weather", "input": {"city": "K"}}]},
                      {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": [{"type": "text", "text": "r"}]},
                                                   {"type": "text", "text": "d"}]}],
         "tools": [{"name": "weather", "input_schema": FUNCTION["parameters"], "strict": True}], "tool_choice": {"type": "any"},
         "thinking": {"type": "enabled", "budget_tokens": 7}, "output_config": {"effort": "low"}}],
    4: [{"model": "m", "messages": [{"role": "user", "content": "a"}], "output_config": {"format": {"type": "json_schema", "schema": SCHEMAS[2]}}}],
    5: [{"model": "m", "prompt": "a <s>", "add_special_tokens": False, "parse_special_tokens": True, "return_token_strs": True},
        {"model": "m", "messages": MESSAGES, "add_generation_prompt": False}],
    6: [{"model": "m", "tokens": [0, 5, 299]}],
}


def seeds():
    for kind, requests in REQUESTS.items():
        for request in requests:
            yield "requests", bytes([kind]) + json.dumps(request, ensure_ascii=False).encode()
    cases = json.loads((FIXTURES / "chat_templates" / "cases.json").read_text())
    for case in cases["cases"]:
        if "template" not in case:
            continue
        yield "templates", case["template"].encode()
        if "messages" in case:
            yield "templates", case["template"].encode() + b"\0" + json.dumps(case["messages"]).encode()
    for path in sorted((FIXTURES / "chat_templates").glob("*.jinja")):
        yield "templates", path.read_bytes()
    for kind, texts in enumerate(([json.dumps(schema) for schema in SCHEMAS], REGEXES, GRAMMARS, CHOICES)):
        for text in texts:
            yield "grammars", bytes([kind]) + text.encode()
    for notation in ("hermes", "dsml", "glm", "harmony"):
        for required in (False, True):
            form = {"format": notation, "required": required, "parallel": not required, "tools": [FUNCTION, {**FUNCTION, "name": "b", "strict": False}]}
            yield "grammars", b"\4" + json.dumps(form).encode()
    for path in sorted(FIXTURES.glob("tokenizer/*/tokenizer.json")):
        yield "tokenizers", path.read_bytes()
        yield "tokenizers", path.read_bytes() + b"\0" + "Ünder 1234567 <s>▁\u200b👍🏽\r\n\n x".encode()
    for which in range(1, 7):
        for text in ("Tom has 12 apples.\n\n  <|im_end|> 'sa 'ſa ½¾", "삼겹살 👩‍👩‍👧‍👦 a\u0085b\u2028 \u180e", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa" * 20):
            yield "tokenizers", bytes([which]) + text.encode()


def frame(kind, payloads=(), rows=0, capacity=0, layer=0, tiles=0, flags=0):
    """A frame (docs/protocol.md, section 1) whose checksum the targets repair. payloads: (role, dtype, rows, columns, bytes)."""
    place = 64 + 32 * len(payloads)
    table, body = b"", b""
    for role, dtype, count, columns, data in payloads:
        start = -(-place // 64) * 64
        body += bytes(start - place) + data
        table += struct.pack("<HBBIIIIIII", role, dtype, 0, count, columns, len(data) // count if count else len(data), start, len(data), 1, 0)
        place = start + len(data)
    return struct.pack("<4sBBHHHIQIIHHHHIIIHBBII", b"TAFD", 1, 0, 64, kind, flags, place, 0, 0, 0, layer, 0, 0, tiles, 0, rows, capacity, 0, 0,
                       len(payloads), 0, 0) + table + body


def frame_seeds():
    activation, ids, weights = (1, 2, 2, 40, bytes(160)), (4, 12, 2, 2, struct.pack("<4i", 0, 7, 3, 1)), (5, 1, 2, 2, struct.pack("<4f", 1, 0.5, 0, 2))
    request = {"kind": 16, "rows": 2, "capacity": 8, "layer": 1, "tiles": 1}
    yield 0, frame(payloads=[activation], **request)
    yield 1, frame(payloads=[activation, (3, 12, 2, 1, struct.pack("<2i", 5, 99))], **request)
    yield 2, frame(payloads=[activation, ids, weights], **request)
    yield 2, frame(payloads=[activation, ids, weights, (12, 9, 2, 1, b"\1\0")], flags=1, **request)
    yield 2, frame(payloads=[(7, 13, 1, 4, bytes(16)), (6, 2, 2, 40, bytes(160))], **request | {"kind": 17})
    yield 2, frame(payloads=[(7, 13, 1, 4, bytes(16)), (8, 13, 1, 1, b"\1\0\0\0"), (9, 9, 1, 5, b"wrong")], **request | {"kind": 17})
    for kind in (18, 19, 20):
        yield 0, frame(kind)


def handshake_seeds():
    settings = b"peer.role=attention\npeer.rank=0\npeer.name=h:1\npeer.incarnation=5\nprotocol=1.0\nhidden_size=24\ntop_k=2\nmoe_layers=1,2,3\n"
    yield b"\1" + settings
    yield b"\2" + struct.pack("<18I", 1, 0, 8, 0, 32, 0, 2, 0, 8, 0, 32, 0, 3, 0, 8, 0, 32, 0)
    yield b"\3" + struct.pack("<4sBBHII", b"TNDT", 1, 0, 0, 64, 0) + struct.pack("<4sIIIQQQII", b"TNDH", 1, 8, 0, 2 << 20, 100000, 800000, 0, 0) + bytes(16)
    hello = frame(1, [(10, 9, 1, len(settings), settings)])
    canary = frame(4, [(1, 2, 64, 24, bytes(3072))], rows=64, capacity=64, layer=1, tiles=2)
    for first, list_of in ((0, [(0, hello), (1, canary)]), (128, [(1, canary), (1, canary)]), (128, [(0, frame(20))])):
        yield bytes([first]) + b"".join(struct.pack("<BH", channel, len(data)) + data for channel, data in list_of)


def checkpoint_seeds():
    header = json.dumps({"a": {"dtype": "BF16", "shape": [2, 3], "data_offsets": [0, 12]}, "b": {"dtype": "F32", "shape": [1], "data_offsets": [12, 16]},
                         "__metadata__": {"format": "pt"}}).encode()
    yield b"\0" + struct.pack("<Q", len(header)) + header + bytes(16)
    for path in sorted(FIXTURES.glob("*/config.json")):
        yield b"\1" + path.read_bytes()
    yield b"\2" + b"model: m\nafd:\n  role: ffn\n  num_ffn_ranks: 2\nserving:\n  port: 0\n"
    yield b"\2" + b'{"threads": 2, "weights": "int8", "kv_cache_dtype": "fp8"}'


def wire_and_file_seeds():
    for mode, data in frame_seeds():
        yield "frames", bytes([0x80 | mode]) + data
    for data in handshake_seeds():
        yield "handshakes", data
    for data in checkpoint_seeds():
        yield "checkpoints", data


def main():
    folder = pathlib.Path(sys.argv[1])
    for number, (target, data) in enumerate(itertools.chain(seeds(), wire_and_file_seeds())):
        path = folder / target / f"seed-{number:04}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


if __name__ == "__main__":
    main()
