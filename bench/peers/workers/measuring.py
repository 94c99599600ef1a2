"""What the workers share: their command line, own prompts, and the protocol that they speak with session.py.

    WORKER MODEL THREADS

A line is `prepare` or `measure`, then `prefill LENGTH` or `decode CONTEXT GENERATED BATCH`. The answer to the first is {"prepared": ...}:
buffers are touched, code is compiled, prompts of a batch are in the cache. The answer to the second is {"cell": ..., "tokens_per_second": ...}."""

import json
import os
import pathlib
import random
import sys

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1]))
from outputs import decode_rate  # noqa: E402, F401  (the same rule for every engine)

if len(sys.argv) != 3:
    raise SystemExit("usage: WORKER MODEL THREADS; run.py starts it")
# Standard output is the answers' alone; what libraries print there goes to standard error.
_answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)
MODEL, THREADS = sys.argv[1], int(sys.argv[2])
VOCAB_SIZE = json.loads((pathlib.Path(MODEL) / "config.json").read_text())["vocab_size"]
_random = random.Random(20261130)


def prompt(length):
    """Random tokens, other ones at each call: sequences take experts of their own."""
    return [_random.randrange(1, VOCAB_SIZE) for _ in range(length)]


def prompts(sequences, length):
    return [prompt(length) for _ in range(sequences)]


def serve(prefill, prepare_decode, decode):
    """Until standard input ends. `prefill(prompt)`: seconds. `prepare_decode(prompts)`: a state, and `decode(state, generated)`: tokens a
    second behind these prompts, which may be asked for again."""
    states = {}
    for line in sys.stdin:
        verb, kind, *numbers = line.split()
        numbers = tuple(map(int, numbers))
        if (verb, kind) == ("prepare", "prefill"):
            prefill(prompt(*numbers))
            answer = {"prepared": line.strip()}
        elif (verb, kind) == ("measure", "prefill"):
            answer = {"cell": f"prefill {numbers[0]}", "tokens_per_second": numbers[0] / prefill(prompt(*numbers))}
        elif (verb, kind) == ("prepare", "decode"):
            context, _, batch = numbers
            states = {numbers: prepare_decode(prompts(batch, context))}  # of one cell: its cache is memory
            answer = {"prepared": line.strip()}
        else:
            answer = {"cell": f"decode b{numbers[2]}", "tokens_per_second": decode(states[numbers], numbers[1])}
        print(json.dumps(answer), file=_answers, flush=True)
