#!/usr/bin/env python3
"""Tandem beside other engines on M1, M2 and M3: alternating in one run, the same threads, the same bits of a weight, the read bandwidth
measured before and after each process. README.md says how to get the engines.

    bench/peers/run.py --models FOLDER [--only M1,M3] [--bits 16,8,4] [--repetitions 5] [--threads 2] [--output peers]
        [--tandem build/tandem] [--gguf FOLDER] [--llama-driver PATH [--llama-bench PATH]] [--ik-driver PATH [--ik-llama-bench PATH]]
        [--environments FOLDER] [--engines 'Tandem;llama.cpp'] [--cells WORD] [--prefix 'COMMAND']

Writes OUTPUT.json (every run) after each process and OUTPUT.md (medians) at the end. A second call with the same output goes on: its runs
are added. Status 1 when a process failed: it is named, and the others count."""

import argparse
import json
import os
import pathlib
import shlex
import subprocess
import sys
import tempfile
import time

import arms
import outputs
import table

HERE = pathlib.Path(__file__).resolve().parent
TANDEM = HERE.parents[1] / "build" / "tandem"
PROCESS_LIMIT_S = 900  # loading 6 GB, repacking it and a prefill of 32 x 256 rows on two slow cores


def parse(words):
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--models", required=True, type=pathlib.Path, help="what make_checkpoints.py wrote")
    parser.add_argument("--only", default="M1,M2,M3")
    parser.add_argument("--bits", default="16")
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--output", default="peers")
    parser.add_argument("--tandem", default=str(TANDEM))
    parser.add_argument("--gguf", default="gguf", help="folder of MODEL-TYPE.gguf, made by gguf_files.py")
    for flag in ("llama-driver", "llama-bench", "ik-driver", "ik-llama-bench", "environments"):
        parser.add_argument("--" + flag)
    parser.add_argument("--engines", help="only these, by their names in the table, separated by semicolons")
    parser.add_argument("--cells", default="", help="only processes whose command line has this word in it")
    parser.add_argument("--prefix", default="", help="put before each measurement: what keeps the machine quiet")
    return parser.parse_args(words)


def roof_command(tandem, threads):
    return shlex.join([tandem, "bench", "roofs", "--threads", str(threads), "--runs", "3", "--json"])


def under_roofs(options, *words):
    """What beside.py reports of a measurement."""
    done = subprocess.run([*shlex.split(options.prefix), sys.executable, "-B", str(HERE / "beside.py"), str(PROCESS_LIMIT_S),
                           roof_command(options.tandem, options.threads), *words], capture_output=True, text=True, check=False)
    try:
        return json.loads(done.stdout)
    except json.JSONDecodeError:
        raise ValueError(f"status {done.returncode} before it reported: {done.stderr[-300:]}") from None


def prepared(command, options):
    """The same of a process that prepares first, outside of what --prefix keeps quiet."""
    fifo, output = options.scratch / "go", options.scratch / "output"
    fifo.unlink(missing_ok=True)
    os.mkfifo(fifo)
    with open(output, "wb") as out, open(options.scratch / "errors", "wb") as errors, open(fifo, "r+b", buffering=0) as told:
        process = subprocess.Popen(command.words, stdin=told, stdout=out, stderr=errors)
        try:
            start = time.monotonic()
            while b"ready\n" not in output.read_bytes():
                if process.poll() is not None or time.monotonic() - start > PROCESS_LIMIT_S:
                    text = (options.scratch / "errors").read_text(errors="replace").strip()
                    raise ValueError(f"status {process.poll()} before it was ready: {text[-600:]}")
                time.sleep(0.2)
            return under_roofs(options, "tell", str(process.pid), str(fifo), str(output))
        finally:
            process.kill()
            process.wait()


def measure(command, options):
    """The cells of one process, each with the roofs beside it; ValueError says what failed."""
    result = prepared(command, options) if command.prepares else under_roofs(options, "run", *command.words)
    engine = result["engine"]
    if engine["status"] != 0:
        raise ValueError(f"status {engine['status']}: {engine['err'].strip()[-600:]}")
    before, after = (outputs.roofs(roof["out"]) for roof in result["roofs"])
    beside = {name: (before[name] + after[name]) / 2 for name in before}
    return [{"cell": cell, "tokens_per_second": rate} | beside for cell, rate in command.parse(engine["out"]).items()]


def main(words):
    options = parse(words)
    path = pathlib.Path(options.output + ".json")
    document = json.loads(path.read_text()) if path.exists() else {"runs": []}
    failed = False
    with tempfile.TemporaryDirectory() as scratch:
        options.scratch = pathlib.Path(scratch)
        engines, absent = arms.make(options)
        if options.engines:
            engines = [arm for arm in engines if arm.name in options.engines.split(";")]
        for line in absent:
            print(f"not compared: {line}", file=sys.stderr)
        for repetition in range(options.repetitions):
            for model, bits in [(options.models / name, int(bits)) for name in options.only.split(",") for bits in options.bits.split(",")]:
                if not (model / "config.json").exists():
                    raise SystemExit(f"{model} has no config.json; write it with make_checkpoints.py {options.models} {model.name}")
                # Forwards and backwards, so that a drift of the machine meets all alike.
                for arm in engines if repetition % 2 == 0 else reversed(engines):
                    refusal = arm.missing(model, bits)
                    if refusal:
                        if repetition == 0:
                            print(f"{model.name}, {bits} bits: not compared: {refusal}", file=sys.stderr)
                        continue
                    for command in arm.commands(model, bits, options.threads):
                        if options.cells and options.cells not in " ".join(command.words):
                            continue
                        try:
                            runs = measure(command, options)
                        except ValueError as error:
                            print(f"{model.name}, {bits} bits, {arm.name}: {error}", file=sys.stderr)
                            failed = True
                            continue
                        for run in runs:
                            run |= {"model": model.name, "bits": bits, "engine": arm.name, "repetition": repetition}
                            print(f"{model.name} {bits} bits {arm.name}: {run['cell']} {run['tokens_per_second']:.1f} tok/s "
                                  f"({run['read_gigabytes_per_second']:.0f} GB/s)", flush=True)
                        document["runs"] += runs
                        path.write_text(json.dumps(document, indent=1))
    document["table"] = table.rows(document["runs"])
    path.write_text(json.dumps(document, indent=1))
    text = table.markdown(document["table"])
    pathlib.Path(options.output + ".md").write_text(text)
    print(text)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
