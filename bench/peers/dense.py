#!/usr/bin/env python3
"""Tandem's products beside oneDNN's dense ones of the same sizes, in turn, with the same threads. README.md says how to build onednn_bench.

    bench/peers/dense.py --onednn-bench PATH [--tandem build/tandem] [--shapes qwen3-30b,v2-lite] [--rows 64,512] [--dtype bf16|int8]
        [--repetitions 5] [--threads 2] [--output dense] [--prefix COMMAND]

Two kinds of rows: the output projection of a layer (`tandem bench kernels`), and the routed experts of a layer with that many rows each (`tandem bench
moe`), beside the dense gate+up and down products of one expert's rows. Writes OUTPUT.md and OUTPUT.json."""

import argparse
import json
import os
import pathlib
import shlex
import statistics
import subprocess
import sys

TANDEM = pathlib.Path(__file__).resolve().parents[2] / "build" / "tandem"
WEIGHTS = {"bf16": "bf16", "int8": "int8"}


def parse(words):
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--onednn-bench", required=True)
    parser.add_argument("--tandem", default=str(TANDEM))
    parser.add_argument("--shapes", default="granite-1b,v2-lite,qwen3-30b")
    parser.add_argument("--rows", default="64,512")
    parser.add_argument("--dtype", choices=WEIGHTS, default="bf16")
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--output", default="dense")
    parser.add_argument("--prefix", default="", help="put before each measurement: what keeps the machine quiet")
    return parser.parse_args(words)


def run(options, words, text=None):
    done = subprocess.run([*shlex.split(options.prefix), *words], input=text, capture_output=True, text=True, check=False,
                          env=os.environ | {"OMP_NUM_THREADS": str(options.threads)})
    if done.returncode != 0:
        raise SystemExit(f"{shlex.join(words)}: status {done.returncode}: {done.stderr.strip()[-400:]}")
    return done.stdout


def shapes(tandem):
    """name -> (hidden, intermediate, experts, top_k), from the columns of --list-shapes."""
    lines = subprocess.run([tandem, "bench", "moe", "--list-shapes"], capture_output=True, text=True, check=True).stdout.splitlines()
    return {words[0]: tuple(map(int, words[2:6])) for words in map(str.split, lines[1:]) if words}


def cases(sizes, rows):
    """[(what, command of tandem, products of oneDNN as (rows, out, in))] of one shape."""
    hidden, intermediate, experts, top_k = sizes
    batch = rows * experts // top_k
    return [("projection", ["kernels", "--filter", " output ", "--batch", str(rows)], None),
            ("experts", ["moe", "--batch", str(batch)], [(rows, 2 * intermediate, hidden), (rows, hidden, intermediate)])]


def size_of(case):
    """(out, in) of a case of `bench kernels`: "qwen3-30b output bf16 2048x4096 rows 64"."""
    return tuple(map(int, next(word for word in case["name"].split() if "x" in word and word[0].isdigit()).split("x")))


def combined(products, gigaflops):
    """The rate of products that run one after another."""
    flops = [rows * out * inner for rows, out, inner in products]
    return sum(flops) / sum(each / rate for each, rate in zip(flops, gigaflops, strict=True))


def onednn(options, products):
    lines = "".join(f"{options.dtype} {rows} {out} {inner}\n" for rows, out, inner in products)
    rates = [json.loads(line)["gigaflops"] for line in run(options, [options.onednn_bench], lines).splitlines() if line.startswith("{")]
    return combined(products, rates)


def measure(options, shape, rows, command, products):
    words = [options.tandem, "bench", *command, "--shape", shape, "--weights", WEIGHTS[options.dtype], "--threads", str(options.threads),
             "--runs", "1", "--json"]
    case = json.loads(run(options, words))["cases"][0]
    products = products or [(rows, *size_of(case))]
    return {"tandem": case["gigaflops"], "peak": case["roof_giga_per_second"], "roof": case["roof"], "onednn": onednn(options, products)}


def summary(key, runs):
    """Medians of one case's runs; the ratio and the share are medians of the runs' own, as both move with the machine."""
    row = dict(zip(("shape", "what", "rows"), key, strict=True))
    row |= {name: statistics.median(each[name] for each in runs) for name in ("tandem", "onednn", "peak")}
    row["ratio"] = statistics.median(each["tandem"] / each["onednn"] for each in runs)
    row["share"] = statistics.median(each["tandem"] / each["peak"] for each in runs)
    return row


def markdown(rows, dtype):
    lines = [f"| shape | product, {dtype} | rows | Tandem | oneDNN | peak beside | Tandem of peak | Tandem / oneDNN |",
             "| --- | --- | --- | --- | --- | --- | --- | --- |"]
    for row in rows:
        lines.append(f"| {row['shape']} | {row['what']} | {row['rows']} | {row['tandem']:.0f} | {row['onednn']:.0f} | {row['peak']:.0f} | "
                     f"{row['share']:.0%} | {row['ratio']:.2f} |")
    return "\n".join(lines) + "\n"


def main(words):
    options = parse(words)
    known = shapes(options.tandem)
    wanted = options.shapes.split(",")
    for shape in wanted:
        if shape not in known:
            raise SystemExit(f"--shapes: there is no '{shape}'; {options.tandem} bench moe --list-shapes prints all")
    runs = {}
    for repetition in range(options.repetitions):
        for shape in wanted:
            for rows in map(int, options.rows.split(",")):
                for what, command, products in cases(known[shape], rows):
                    runs.setdefault((shape, what, rows), []).append(measure(options, shape, rows, command, products))
        print(f"repetition {repetition + 1} of {options.repetitions}", file=sys.stderr)
    table = [summary(key, each) for key, each in runs.items()]
    pathlib.Path(options.output + ".json").write_text(json.dumps({"dtype": options.dtype, "table": table}, indent=1))
    text = markdown(table, options.dtype)
    pathlib.Path(options.output + ".md").write_text(text)
    print(text)


if __name__ == "__main__":
    main(sys.argv[1:])
