"""Tandem's own attention worker as a client of a pool: what it generates, as token ids."""

import json

from tests.conftest import ARITH, TandemServer


def start_worker(address, directory):
    return TandemServer(["attention", "--model", str(ARITH), "--ffn", address, "--port", "0", "--threads", "1", "--log-level", "warning"],
                        directory).wait_ready()


def heldout_prompts(worker, count):
    """Token ids of the first questions, as the chat template puts them."""
    with (ARITH / "heldout.jsonl").open() as file:
        questions = [json.loads(next(file))["question"] for _ in range(count)]
    return [worker.request("POST", "/tokenize", {"model": "arith", "messages": [{"role": "user", "content": question}]}).json()["tokens"]
            for question in questions]


def worker_tokens(worker, prompt, most):
    """What follows a prompt greedily: text, and its token ids."""
    reply = worker.request("POST", "/v1/completions", {"model": "arith", "prompt": prompt, "temperature": 0, "max_tokens": most})
    text = reply.json()["choices"][0]["text"]
    return text, worker.request("POST", "/tokenize", {"model": "arith", "prompt": text, "add_special_tokens": False}).json()["tokens"]
