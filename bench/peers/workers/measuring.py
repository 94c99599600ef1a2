"""What the workers share: their command line, own prompts, when they measure, and the lines that run.py reads.

    WORKER MODEL THREADS prefill LENGTH...
    WORKER MODEL THREADS decode CONTEXT GENERATED BATCH"""

import json
import pathlib
import random
import sys

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1]))
from outputs import decode_rate  # noqa: E402, F401  (the same rule for every engine)


class Task:
    def __init__(self):
        if len(sys.argv) < 5 or sys.argv[3] not in ("prefill", "decode") or (sys.argv[3] == "decode" and len(sys.argv) != 7):
            raise SystemExit("usage: WORKER MODEL THREADS prefill LENGTH... | decode CONTEXT GENERATED BATCH; run.py starts it")
        self.model, self.threads = sys.argv[1], int(sys.argv[2])
        numbers = list(map(int, sys.argv[4:]))
        self.lengths = numbers if sys.argv[3] == "prefill" else []
        self.context, self.generated, self.batch = (0, 0, 0) if self.lengths else numbers
        self.vocab_size = json.loads((pathlib.Path(self.model) / "config.json").read_text())["vocab_size"]
        self.random = random.Random(20261130)

    def prompt(self, length):
        """Random tokens, never the same ones again: no engine's prefix cache helps, and sequences take experts of their own."""
        return [self.random.randrange(1, self.vocab_size) for _ in range(length)]


def wait_until_told():
    """What came before is preparation; what comes after is timed."""
    print("ready", flush=True)
    if not sys.stdin.readline():
        raise SystemExit("standard input ended before a line came")


def report(cell, tokens_per_second):
    print(json.dumps({"cell": cell, "tokens_per_second": tokens_per_second}), flush=True)
