"""What the engines' own benchmarks print -> {cell: tokens a second}. A cell is "prefill 512" or "decode b8". Pure functions; one
raises ValueError, naming what it looked for, when the text has none of it."""

import json


def _json_lines(text):
    for line in text.splitlines():
        line = line.strip()
        if line.startswith("{") and line.endswith("}"):
            yield json.loads(line)


def _some(cells, what):
    if not cells:
        raise ValueError(f"no {what} in the engine's output")
    return cells


def llama_bench(text):
    """`llama-bench -o json`: one object a test, n_gen 0 for prefill. Anything before the list is a log."""
    start = text.find("[\n")
    if start < 0:
        raise ValueError("no JSON list of llama-bench in the engine's output")
    tests = json.JSONDecoder().raw_decode(text[start:])[0]
    return _some({f"prefill {test['n_prompt']}": float(test["avg_ts"]) for test in tests if test["n_gen"] == 0},
                 "prefill test of llama-bench")


def worker(text):
    """The workers and gguf_bench: {"cell": ..., "tokens_per_second": ...} a line; engines log to the same stream."""
    return _some({line["cell"]: line["tokens_per_second"] for line in _json_lines(text) if "cell" in line},
                 "line with a cell")


def decode_rate(token_seconds):
    """Tokens a second while every sequence decodes: from when the last one has its first token to when the first one ends.
    `token_seconds`: for each sequence the times of its tokens."""
    begin = max(times[0] for times in token_seconds)
    end = min(times[-1] for times in token_seconds)
    tokens = sum(begin < time <= end for times in token_seconds for time in times)
    if tokens < 8 * len(token_seconds):
        raise ValueError(f"only {tokens} tokens of {len(token_seconds)} sequences were decoded together; generate more of each")
    return tokens / (end - begin)


def _tandem_answers(text):
    document = next((line for line in _json_lines(text) if "answers" in line), None)
    if document is None:
        raise ValueError("no answers of `tandem generate --json` in the engine's output")
    for answer in document["answers"]:
        if "token_seconds" not in answer:
            raise ValueError("the answers of `tandem generate --json` have no token_seconds: build this tree's tandem")
    return document["answers"]


def tandem_one_by_one(text):
    """`tandem generate --one-by-one --json`: prefill of each prompt length from the last prompt of it, decode b1 from the last answer."""
    answers = _tandem_answers(text)
    cells = {f"prefill {answer['prompt_tokens']}": answer["prompt_tokens"] / answer["first_token_seconds"]
             for answer in answers[:-1]}
    return cells | {"decode b1": decode_rate([answers[-1]["token_seconds"]])}


def tandem_batch(text):
    answers = _tandem_answers(text)
    return {f"decode b{len(answers)}": decode_rate([answer["token_seconds"] for answer in answers])}


def roofs(text):
    """`tandem bench roofs --json`: GB/s that all threads read, from the pages that are faster, and GFLOP/s of the bf16 dot."""
    for line in _json_lines(text):
        for kernels in line.get("tables", []):
            if kernels["in_use"]:
                return {"read_gigabytes_per_second": max(pages["all_threads"] for pages in kernels["read"].values()),
                        "bf16_gigaflops": kernels["bf16_dot"]["all_threads"]}
    raise ValueError("no roofs of `tandem bench roofs --json`")
