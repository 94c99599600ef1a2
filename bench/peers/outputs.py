"""What `tandem` prints -> figures. Pure functions; each raises ValueError, naming what it looked for, when it isn't there."""

import json


def decode_rate(token_seconds):
    """Tokens a second while every sequence decodes: from when the last one has its first token to when the first one ends.
    `token_seconds`: for each sequence the times of its tokens."""
    begin = max(times[0] for times in token_seconds)
    end = min(times[-1] for times in token_seconds)
    tokens = sum(begin < time <= end for times in token_seconds for time in times)
    if tokens < 8 * len(token_seconds):
        raise ValueError(f"only {tokens} tokens of {len(token_seconds)} sequences were decoded together; generate more of each")
    return tokens / (end - begin)


def _answers(document):
    for answer in document["answers"]:
        if "error" in answer:
            raise ValueError(answer["error"])
    return document["answers"]


def tandem_prefill(document):
    """Of a line of `tandem generate --json` with one prompt."""
    answer, = _answers(document)
    if answer["cached_tokens"]:
        raise ValueError(f"{answer['cached_tokens']} tokens of a new prompt came from the prefix cache")
    return answer["prompt_tokens"] / answer["first_token_seconds"]


def tandem_decode(document):
    return decode_rate([answer["token_seconds"] for answer in _answers(document)])


def roofs(text):
    """`tandem bench roofs --json`: GB/s that all threads read, from the pages that are faster, and GFLOP/s of the bf16 dot."""
    for kernels in json.loads(text).get("tables", []):
        if kernels["in_use"]:
            return {"read_gigabytes_per_second": max(pages["all_threads"] for pages in kernels["read"].values()),
                    "bf16_gigaflops": kernels["bf16_dot"]["all_threads"]}
    raise ValueError("no roofs of a table in use")
