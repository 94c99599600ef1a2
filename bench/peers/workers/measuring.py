"""What the workers share: their command line, own prompts, and the lines that run.py reads."""

import json
import pathlib
import random
import sys
import time

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1]))
from outputs import decode_rate  # noqa: E402, F401  (the same rule for every engine)


def arguments():
    """MODEL THREADS PREFILL,... CONTEXT GENERATED BATCH,..."""
    if len(sys.argv) != 7:
        raise SystemExit("usage: WORKER MODEL THREADS PREFILL,... CONTEXT GENERATED BATCH,...; run.py starts it")
    model, threads, prefill, context, generated, batches = sys.argv[1:]
    with open(model + "/config.json") as file:
        vocab_size = json.load(file)["vocab_size"]
    numbers = lambda text: [int(word) for word in text.split(",")]
    return model, int(threads), numbers(prefill), int(context), int(generated), numbers(batches), vocab_size


class Prompts:
    """Random tokens, never the same ones again: no engine's prefix cache helps, and sequences take experts of their own."""

    def __init__(self, vocab_size):
        self.random, self.vocab_size = random.Random(20261130), vocab_size

    def __call__(self, length):
        return [self.random.randrange(1, self.vocab_size) for _ in range(length)]


def report(cell, tokens_per_second):
    print(json.dumps({"cell": cell, "tokens_per_second": tokens_per_second}), flush=True)


def best_of(times, call):
    """Tokens or seconds: the shortest of a few, after one that warms up. The harness takes the median over processes."""
    call()
    seconds = []
    for _ in range(times):
        start = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - start)
    return min(seconds)
