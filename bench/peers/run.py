#!/usr/bin/env python3
"""Tandem beside other engines on M1, M2 and M3: the same threads, the same bits of a weight. Each engine's process holds its model and
waits while the others are measured; in each round all are, one after the other, each between two readings of the machine's roofs.
README.md says how to get the engines.

    bench/peers/run.py --models FOLDER [--only M1,M3] [--bits 16,8,4] [--repetitions 5] [--threads 2] [--output peers]
        [--tandem build/tandem] [--gguf FOLDER] [--llama-driver PATH] [--ik-driver PATH] [--environments FOLDER]
        [--beside 1] [--engines 'Tandem;llama.cpp'] [--cells 'decode b1;prefill 512'] [--prefix 'COMMAND'] [--prepare-prefix 'COMMAND']

Writes OUTPUT.json (every run) after each round and OUTPUT.md (medians) at the end. A second call with the same output goes on: its runs
are added. Status 1 when a process failed: it is named, and the others count."""

import argparse
import contextlib
import json
import pathlib
import shlex
import subprocess
import sys
import tempfile
import time

import arms
import outputs
import table

TANDEM = pathlib.Path(__file__).resolve().parents[2] / "build" / "tandem"


def parse(words):
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--models", required=True, type=pathlib.Path, help="what make_checkpoints.py wrote")
    parser.add_argument("--only", default="M1,M2,M3")
    parser.add_argument("--bits", default="16")
    parser.add_argument("--repetitions", type=int, default=5, help="rounds of each cell")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--output", default="peers")
    parser.add_argument("--tandem", default=str(TANDEM))
    parser.add_argument("--gguf", default="gguf", help="folder of MODEL-TYPE.gguf, made by gguf_files.py")
    for flag in ("llama-driver", "ik-driver", "environments"):
        parser.add_argument("--" + flag)
    parser.add_argument("--beside", type=int, default=1, help="how many of the others hold their model beside Tandem at once: what memory "
                        "allows (each takes the checkpoint's size, vLLM 3 GB more)")
    parser.add_argument("--engines", help="only these, by their names in the table, separated by semicolons")
    parser.add_argument("--cells", help="only these, by their names in the table, separated by semicolons")
    parser.add_argument("--prefix", default="", help="a command that runs another one while nothing else is on a shared machine; each round "
                        "is measured inside of it")
    parser.add_argument("--prepare-prefix", default="", help="the same while others may work, for loading and prefilling")
    return parser.parse_args(words)


@contextlib.contextmanager
def inside(prefix):
    """What happens within happens while `prefix` runs a command."""
    if not prefix:
        yield
        return
    holder = subprocess.Popen([*shlex.split(prefix), "sh", "-c", "echo held; read line"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        if holder.stdout.readline() != b"held\n":
            raise SystemExit(f"{prefix} ended with status {holder.wait()} before it ran a command")
        yield
    finally:
        holder.stdin.close()
        holder.wait()


def roofs(options):
    time.sleep(0.3)  # OpenMP's threads wait busily for about 0.2 s before they sleep
    done = subprocess.run([options.tandem, "bench", "roofs", "--threads", str(options.threads), "--runs", "1", "--json"], capture_output=True,
                          text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{options.tandem} bench roofs: status {done.returncode}: {done.stderr.strip()}")
    return outputs.roofs(done.stdout)


class Held:
    """The engines of one model that hold it now. One that fails is named and left out from there on."""

    def __init__(self, engines, model, bits, options, failures):
        self.model, self.bits, self.options, self.failures, self.sessions = model, bits, options, failures, {}
        for arm in engines:
            self._guarded(arm, lambda arm=arm: self.sessions.update({arm: arm.start(model, bits, options.threads, options.scratch)}))

    def _guarded(self, arm, action):
        try:
            return action()
        except ValueError as error:
            self.failures.append(f"{self.model.name}, {self.bits} bits, {arm.name}: {error}")
            print(self.failures[-1], file=sys.stderr, flush=True)
            if arm in self.sessions:
                self.sessions.pop(arm).close()
            return None

    def prepare(self, cell):
        for arm, session in list(self.sessions.items()):
            with inside(self.options.prepare_prefix):
                self._guarded(arm, lambda arm=arm, session=session: arm.prepare(session, cell))

    def round(self, cell, repetition):
        """The runs of one round. Forwards and backwards in turn, so that a drift of the machine meets all alike."""
        runs, number = [], time.time_ns()
        with inside(self.options.prefix):
            before = roofs(self.options)
            for arm, session in list(self.sessions.items())[::1 if repetition % 2 == 0 else -1]:
                rate = self._guarded(arm, lambda arm=arm, session=session: arm.measure(session, cell))
                after = roofs(self.options)
                if rate is not None:
                    runs.append({"model": self.model.name, "bits": self.bits, "engine": arm.name, "cell": cell.name, "round": number,
                                 "tokens_per_second": rate} | {name: (before[name] + after[name]) / 2 for name in before})
                before = after
        return runs

    def close(self):
        for session in self.sessions.values():
            session.close()


def available(engines, model, bits):
    present = []
    for arm in engines:
        refusal = arm.missing(model, bits)
        if refusal:
            print(f"{model.name}, {bits} bits: not compared: {refusal}", file=sys.stderr)
        else:
            present.append(arm)
    return present


def groups(engines, beside):
    """Tandem with `beside` of the others at a time."""
    tandem = [arm for arm in engines if arm.name == table.TANDEM]
    others = [arm for arm in engines if arm.name != table.TANDEM]
    return [tandem + others[first:first + beside] for first in range(0, len(others), beside)] or [tandem]


def main(words):
    options = parse(words)
    path = pathlib.Path(options.output + ".json")
    document = json.loads(path.read_text()) if path.exists() else {"runs": []}
    cells = [cell for cell in arms.CELLS if not options.cells or cell.name in options.cells.split(";")]
    failures = []
    engines, absent = arms.make(options)
    if options.engines:
        engines = [arm for arm in engines if arm.name in options.engines.split(";")]
    for line in absent:
        print(f"not compared: {line}", file=sys.stderr)
    models = [options.models / name for name in options.only.split(",")]
    for model in models:
        if not (model / "config.json").exists():
            raise SystemExit(f"{model} has no config.json; write it with make_checkpoints.py {options.models} {model.name}")
    with tempfile.TemporaryDirectory() as scratch:
        options.scratch = pathlib.Path(scratch)
        for model, bits in [(model, int(bits)) for model in models for bits in options.bits.split(",")]:
            for group in groups(available(engines, model, bits), options.beside):
                held = Held(group, model, bits, options, failures)
                for cell in cells:
                    held.prepare(cell)
                    for repetition in range(options.repetitions):
                        runs = held.round(cell, repetition)
                        for run in runs:
                            print(f"{model.name} {bits} bits {run['engine']}: {run['cell']} {run['tokens_per_second']:.1f} tok/s "
                                  f"({run['read_gigabytes_per_second']:.0f} GB/s)", flush=True)
                        document["runs"] += runs
                        path.write_text(json.dumps(document, indent=1))
                held.close()
    document["table"] = table.rows(document["runs"])
    path.write_text(json.dumps(document, indent=1))
    text = table.markdown(document["table"])
    pathlib.Path(options.output + ".md").write_text(text)
    print(text)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
