#!/usr/bin/env python3
"""Records what DeepSeek-V4's own encoding program makes of random conversations: cases for build/prompt_cases.

The program comes with each release of the model, as encoding/encoding_dsv4.py; nothing of it is part of this project.

usage: python tools/make_prompt_cases.py ENCODING_DSV4_PY [--count N] [--seed N] > cases.jsonl; build/prompt_cases cases.jsonl
"""

import argparse
import copy
import importlib.util
import inspect
import json
import random

TEXTS = ["Hi", "", "What is 2 + 2?\n", "größer\n\nals", "<think>x</think>", "<｜User｜>", "{\"a\": 1}", " \t", "</｜DSML｜invoke>"]
VALUES = ["Paris", "", 3, -1.5, True, None, [1, "a", {"b": []}], {"z": 1, "a": "\"é\n"}, 10**15, 1e-7]
NAMES = ["weather", "mcp.get-it", "f"]
EFFORTS = ["none", "minimal", "low", "medium", "high", "xhigh", "max"]


def make_tools(rng):
    tools = []
    for name in rng.sample(NAMES, rng.randint(1, len(NAMES))):
        function = {"name": name, "description": rng.choice(TEXTS)}
        if rng.random() < 0.8:
            function["parameters"] = {"type": "object", "required": ["q"], "properties": {"q": {"type": "string", "default": rng.choice(VALUES)}}}
        tools.append({"type": "function", "function": function})
    return tools


def make_messages(rng, with_calls):
    messages = [{"role": "system", "content": rng.choice(TEXTS)}] if rng.random() < 0.5 else []
    count = 0
    for _ in range(rng.randint(1, 5)):
        if rng.random() < 0.15:
            messages.append({"role": "latest_reminder", "content": rng.choice(TEXTS)})
        for _ in range(1 if rng.random() < 0.8 else 2):
            if rng.random() < 0.15:
                messages.append({"role": "developer", "content": "D" + rng.choice(TEXTS)})
            else:
                messages.append({"role": "user", "content": rng.choice(TEXTS)})
        while rng.random() < 0.7:
            message = {"role": "assistant", "content": rng.choice(TEXTS)}
            if rng.random() < 0.6:
                message["reasoning_content"] = rng.choice(TEXTS)
            messages.append(message)
            if with_calls and rng.random() < 0.7:
                calls = []
                for _ in range(rng.randint(1, 3)):
                    count += 1
                    arguments = {key: rng.choice(VALUES) for key in rng.sample(["a", "city", "b c", "é"], rng.randint(0, 3))}
                    calls.append({"id": f"c{count}", "type": "function", "function": {"name": rng.choice(NAMES), "arguments": json.dumps(arguments)}})
                message["tool_calls"] = calls
                if rng.random() < 0.3:
                    message["content"] = None
                for call in rng.sample(calls, len(calls)):
                    messages.append({"role": "tool", "tool_call_id": call["id"], "content": rng.choice(TEXTS)})
    if messages[-1]["role"] in ("assistant", "latest_reminder"):
        messages.append({"role": "user", "content": rng.choice(TEXTS)})
    return messages


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("encoding", help="encoding_dsv4.py of a release")
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    spec = importlib.util.spec_from_file_location("encoding_dsv4", args.encoding)
    encoding = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(encoding)
    three_efforts = hasattr(encoding, "REASONING_EFFORT_PROMPTS")
    # Releases differ in what they call the reasoning of a message.
    reasoning = "reasoning_content" if '"reasoning_content"' in inspect.getsource(encoding.render_message) else "reasoning"
    rng = random.Random(args.seed)
    for _ in range(args.count):
        with_tools = rng.random() < 0.5
        messages = make_messages(rng, with_calls=with_tools or rng.random() < 0.3)
        request = {"model": "m", "messages": messages}
        variables = {}
        thinking = rng.random() < 0.6
        if thinking:
            variables[rng.choice(["thinking", "enable_thinking"])] = True
        drop = rng.random() < 0.7
        if not drop:
            variables["drop_thinking"] = False
        effort = rng.choice(EFFORTS) if rng.random() < 0.4 else None
        if effort:
            request["reasoning_effort"] = effort
            thinking = effort != "none"
        if variables:
            request["chat_template_kwargs"] = variables
        given = copy.deepcopy(messages)
        for message in given:
            if "reasoning_content" in message:
                message[reasoning] = message.pop("reasoning_content")
        if with_tools:
            request["tools"] = make_tools(rng)
            if given[0]["role"] not in ("system", "developer"):
                given.insert(0, {"role": "system", "content": ""})
            given[0]["tools"] = request["tools"]
        if three_efforts:
            known = {"minimal": "low", "low": "low", "medium": "low", "high": "high", "xhigh": "high", "max": "max"}.get(effort)
        else:
            known = "max" if effort in ("xhigh", "max") else None
        expected = encoding.encode_messages(given, thinking_mode="thinking" if thinking else "chat", drop_thinking=drop, reasoning_effort=known)
        print(json.dumps({"request": request, "three_efforts": three_efforts, "expected": expected}))


if __name__ == "__main__":
    main()
