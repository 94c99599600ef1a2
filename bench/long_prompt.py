#!/usr/bin/env python3
"""What a long prompt costs answers that are being decoded, and what they cost it; and what the second use of a prompt costs.

    bench/long_prompt.py MODEL [--decodes 8] [--prompt-tokens 3000] [--seconds 6] [--runs 2] [-- FLAGS OF tandem serve]
    bench/long_prompt.py MODEL --shares 0.1,0.33,0.6 [as above]
    bench/long_prompt.py MODEL --prefix 8192 [--positions 16384] [-- FLAGS]

First form: the gaps between tokens of some answers without the prompt and while it is computed, and the prompt's tokens a second alone
and beside them (from its request to its first token, both over HTTP). --shares: the same with a server for each serving.prefill_share, as a table, beside
what is possible: see `bounds`. Last form: the time to the first token of a prompt, and of the
same prompt again. MODEL needs a byte-level tokenizer; bench/peers/make_checkpoints.py makes some. --positions: serve it with so many
positions (for random weights, which do not know how far they were trained). Prompts are random token ids of a fixed seed."""

import argparse
import contextlib
import http.client
import json
import os
import pathlib
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse

ROOT = pathlib.Path(__file__).resolve().parents[1]
BINARY = os.environ.get("TANDEM_BINARY", str(ROOT / "build" / "tandem"))
STOP_LIMIT_S = 60


@contextlib.contextmanager
def with_positions(model, positions):
    """A folder of links to the model's files, but for that number in its config.json."""
    if positions is None:
        yield model
        return
    with tempfile.TemporaryDirectory() as folder:
        for file in model.iterdir():
            (pathlib.Path(folder) / file.name).symlink_to(file.resolve())
        config = pathlib.Path(folder) / "config.json"
        text = json.loads(config.read_text()) | {"max_position_embeddings": positions}
        config.unlink()
        config.write_text(json.dumps(text))
        yield pathlib.Path(folder)


@contextlib.contextmanager
def served(model, flags):
    command = [BINARY, "serve", "--model", str(model), "--port", "0", "--served-model-name", "model", "--log-level", "warning", *flags]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        for line in process.stdout:
            if line.startswith("ready "):
                yield urllib.parse.urlsplit(line.split()[1]).netloc
                break
        else:
            sys.exit(f"the server ended: {' '.join(command)}")
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(STOP_LIMIT_S)
        process.stdout.close()


class Answer:
    """A streamed completion in a thread of its own: when each piece came."""

    def __init__(self, host, prompt, max_tokens):
        self.times, self.begun, self._stop = [], threading.Event(), False
        # Printable letters only: a piece a token, whatever the model would like to say.
        body = {"model": "model", "prompt": prompt, "max_tokens": max_tokens, "temperature": 1, "seed": 1, "ignore_eos": True, "stream": True,
                "guided_regex": "[a-z]*"}
        self._thread = threading.Thread(target=self._read, args=(host, json.dumps(body)))
        self.asked = time.monotonic()
        self._thread.start()

    def _read(self, host, body):
        connection = http.client.HTTPConnection(host, timeout=300)
        connection.request("POST", "/v1/completions", body, {"content-type": "application/json"})
        reply = connection.getresponse()
        if reply.status != 200:
            self.begun.set()
            raise SystemExit(reply.read().decode())
        while not self._stop and (line := reply.readline()):
            if line.startswith(b"data: {") and json.loads(line[6:])["choices"][0]["text"]:
                self.times.append(time.monotonic())
                self.begun.set()
        connection.close()

    def wait(self):
        self._thread.join()
        return self

    def leave(self):
        self._stop = True
        self._thread.join()

    def first_token_s(self):
        return self.times[0] - self.asked


def gaps(answers, begin, end):
    """Between pieces that came in that time, in ms, ascending."""
    found = []
    for answer in answers:
        times = list(answer.times)
        found += [(b - a) * 1e3 for a, b in zip(times, times[1:]) if begin <= a and b <= end]
    return sorted(found)


def p99(values):
    return values[min(len(values) - 1, len(values) * 99 // 100)]


def prompt_ids(rng, count, vocabulary):
    return [rng.randrange(257, vocabulary) for _ in range(count)]


def bounds(decodes, row_s, step_s, stretch):
    """Shares of a prompt's rows a second alone, where decode steps of step_s seconds take `stretch` times as long and a prompt's row costs
    row_s alone: if products hide every read behind them (the answers' rows cost what a prompt's do), and if nothing is hidden (a row
    costs what it does alone, on top of the step)."""
    return 1 - decodes * row_s / (stretch * step_s), (stretch - 1) / stretch


def measure_prompt(host, vocabulary, arguments):
    rng = random.Random(1)
    alone = [Answer(host, prompt_ids(rng, arguments.prompt_tokens, vocabulary), 1).wait().first_token_s() for _ in range(arguments.runs)]
    answers = [Answer(host, prompt_ids(rng, 64, vocabulary), 100000) for _ in range(arguments.decodes)]
    for answer in answers:
        answer.begun.wait()
    without, beside, during = [], [], []
    for _ in range(arguments.runs):
        begin = time.monotonic()
        time.sleep(arguments.seconds / arguments.runs)
        without += gaps(answers, begin, time.monotonic())
        begin = time.monotonic()
        prompt = Answer(host, prompt_ids(rng, arguments.prompt_tokens, vocabulary), 1).wait()
        beside.append(prompt.first_token_s())
        during += gaps(answers, begin, begin + beside[-1])
    for answer in answers:
        answer.leave()
    without.sort(), during.sort()
    return without, during, statistics.median(alone), statistics.median(beside)


def print_prompt(measured, arguments):
    without, during, alone_s, beside_s = measured
    for name, values in (("without the prompt", without), ("while it is computed", during)):
        print(f"gaps {name}: {len(values)}, median {statistics.median(values):.1f} ms, p99 {p99(values):.1f} ms, longest {values[-1]:.1f} ms")
    count = arguments.prompt_tokens
    stretch = statistics.median(during) / statistics.median(without)
    hidden, plain = bounds(arguments.decodes, alone_s / count, statistics.median(without) / 1e3, stretch)
    print(f"prompt of {count}: {count / alone_s:.0f} tokens/s alone, {count / beside_s:.0f} beside {arguments.decodes} answers")
    print(f"p99 gap {p99(during) / p99(without):.2f} x, median {stretch:.2f} x; prefill {alone_s / beside_s:.0%} of alone "
          f"({hidden:.0%} if products hid every read, {plain:.0%} if nothing were hidden)")


def print_row(share, measured, arguments):
    without, during, alone_s, beside_s = measured
    count, step_ms = arguments.prompt_tokens, statistics.median(without)
    stretch = statistics.median(during) / step_ms
    hidden, plain = bounds(arguments.decodes, alone_s / count, step_ms / 1e3, stretch)
    print(f"| {share} | {step_ms:.1f}, {p99(without):.1f} | {statistics.median(during):.1f}, {p99(during):.1f} | {stretch:.2f}, "
          f"{p99(during) / p99(without):.2f} | {count / alone_s:.0f}, {count / beside_s:.0f} | {alone_s / beside_s:.0%} | "
          f"{plain:.0%}, {hidden:.0%} |", flush=True)


def measure_prefix(host, vocabulary, arguments):
    rng = random.Random(2)
    for _ in range(arguments.runs):
        prompt = prompt_ids(rng, arguments.prefix, vocabulary)
        first, second = (Answer(host, prompt, 1).wait().first_token_s() for _ in range(2))
        print(f"prompt of {arguments.prefix}: first token after {first:.3f} s, again after {second:.3f} s: {second / first:.1%}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=pathlib.Path)
    parser.add_argument("--decodes", type=int, default=8)
    parser.add_argument("--prompt-tokens", type=int, default=3000)
    parser.add_argument("--shares", help="serving.prefill_share, several with commas between them")
    parser.add_argument("--prefix", type=int)
    parser.add_argument("--positions", type=int)
    parser.add_argument("--seconds", type=float, default=6, help="of answers without the prompt, in all")
    parser.add_argument("--runs", type=int, default=2)
    words = sys.argv[1:]
    own = words.index("--") if "--" in words else len(words)
    arguments = parser.parse_args(words[:own])
    vocabulary = json.loads((arguments.model / "config.json").read_text())["vocab_size"]
    flags = words[own + 1 :]
    with with_positions(arguments.model, arguments.positions) as model:
        if arguments.shares:
            print("| share | gaps without the prompt: median, p99, ms | while it is computed | of that | prefill alone, beside, tokens/s | of alone "
                  "| nothing hidden, all reads hidden |\n| --- | --- | --- | --- | --- | --- | --- |")
            for share in arguments.shares.split(","):
                with served(model, [*flags, "--prefill-share", share]) as host:
                    print_row(share, measure_prompt(host, vocabulary, arguments), arguments)
            return
        with served(model, flags) as host:
            if arguments.prefix:
                measure_prefix(host, vocabulary, arguments)
            else:
                print_prompt(measure_prompt(host, vocabulary, arguments), arguments)


if __name__ == "__main__":
    main()
