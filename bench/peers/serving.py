#!/usr/bin/env python3
"""Tandem's server beside llama-server and vLLM's CPU server: the same checkpoint in bf16, the same threads, one load generator (`tandem bench
serving`, closed loop, random prompts as token ids, answers streamed). All servers stand at once and are idle while another is loaded; in each
round every server gets each concurrency, forwards and backwards in turn.

    bench/peers/serving.py --model models/M1 [--tandem build/tandem] [--llama-server PATH --gguf M1-bf16.gguf] [--vllm-python PATH]
        [--concurrency 1,8,32] [--input-tokens 256] [--output-tokens 64] [--requests 2] [--rounds 3] [--threads 2] [--output serving]
        [--prefix COMMAND]

Writes OUTPUT.json after each load and OUTPUT.md at the end: medians over the rounds. --requests: for each of the concurrency. Status 1 when a
request failed or a server ended."""

import argparse
import contextlib
import json
import os
import pathlib
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

from run import inside

TANDEM = pathlib.Path(__file__).resolve().parents[2] / "build" / "tandem"
START_LIMIT_S = 600  # vLLM compiles at its first start
NAME = "peer"        # under which every server serves the model
FIGURES = {"output tokens/s": ("output_throughput", None), "TTFT p50, ms": ("ttft_ms", "p50"), "TTFT p99, ms": ("ttft_ms", "p99"),
           "ITL p50, ms": ("itl_ms", "p50"), "ITL p99, ms": ("itl_ms", "p99")}


def parse(words):
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--model", required=True, type=pathlib.Path, help="a folder that make_checkpoints.py wrote")
    parser.add_argument("--tandem", default=str(TANDEM))
    parser.add_argument("--llama-server")
    parser.add_argument("--gguf", help="the same model for llama-server, made by gguf_files.py")
    parser.add_argument("--vllm-python", help="bin/python of an environment with vLLM, made by environments.py")
    parser.add_argument("--concurrency", default="1,8,32")
    parser.add_argument("--input-tokens", type=int, default=256)
    parser.add_argument("--output-tokens", type=int, default=64)
    parser.add_argument("--requests", type=int, default=2, help="for each of the concurrency; 4 at least")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--output", default="serving")
    parser.add_argument("--prefix", default="", help="as run.py's")
    return parser.parse_args(words)


def servers(options, most):
    """{name: (command with PORT, environment)}. `most`: sequences at once; each has room for its prompt, its answer and a template."""
    threads, room = str(options.threads), options.input_tokens + options.output_tokens + 64
    chosen = {"Tandem": ([options.tandem, "serve", "--model", str(options.model), "--served-model-name", NAME, "--port", "PORT", "--threads", threads,
                          "--max-num-seqs", str(most), "--max-context-tokens", str(room), "--log-level", "warning"], {})}
    if options.llama_server:
        if not options.gguf:
            raise SystemExit("--llama-server needs --gguf FILE, made by gguf_files.py")
        chosen["llama-server"] = ([options.llama_server, "-m", options.gguf, "--alias", NAME, "--port", "PORT", "-t", threads, "-tb", threads,
                                   "-np", str(most), "-c", str(most * room), "-fa", "on"], {})
    if options.vllm_python:
        # As its documentation advises, Intel's OpenMP, which its wheel brings along.
        openmp = pathlib.Path(options.vllm_python).parent.parent / "lib" / "libiomp5.so"
        chosen["vLLM CPU"] = ([options.vllm_python, "-m", "vllm.entrypoints.openai.api_server", "--model", str(options.model),
                               "--served-model-name", NAME, "--port", "PORT", "--dtype", "bfloat16", "--max-model-len", str(room),
                               "--max-num-seqs", str(most)],
                              {"VLLM_CPU_KVCACHE_SPACE": "2", "VLLM_CPU_OMP_THREADS_BIND": f"0-{options.threads - 1}", "VLLM_NO_USAGE_STATS": "1",
                               "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": threads} | ({"LD_PRELOAD": str(openmp)} if openmp.exists() else {}))
    return chosen


def free_port():
    """These servers cannot say which port they took if they are asked for any."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def answers(port):
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/models", timeout=5) as reply:
            return reply.status == 200 and NAME in reply.read().decode()
    except (urllib.error.URLError, OSError):
        return False


@contextlib.contextmanager
def running(name, words, environment, scratch):
    port = free_port()
    log = scratch / (name.replace(" ", "-") + ".log")
    with open(log, "wb") as out:
        process = subprocess.Popen([word if word != "PORT" else str(port) for word in words], stdout=out, stderr=out,
                                   env=os.environ | environment)
    try:
        start = time.monotonic()
        while not answers(port):
            if process.poll() is not None or time.monotonic() - start > START_LIMIT_S:
                raise SystemExit(f"{name}: status {process.poll()} before it answered: {log.read_text(errors='replace')[-800:]}")
            time.sleep(0.5)
        yield port
    finally:
        process.terminate()
        try:
            process.wait(30)  # seconds: vLLM's processes end one after the other
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def load(options, port, concurrency, seed):
    count = max(4, options.requests * concurrency)
    done = subprocess.run(
        [options.tandem, "bench", "serving", "--base-url", f"http://127.0.0.1:{port}", "--model", str(options.model), "--served-model-name", NAME,
         "--random-input-len", str(options.input_tokens), "--random-output-len", str(options.output_tokens), "--num-prompts", str(count),
         "--max-concurrency", str(concurrency), "--num-warmups", "1", "--seed", str(seed), "--json"], capture_output=True, text=True, check=False)
    try:
        return json.loads(done.stdout)
    except json.JSONDecodeError:
        raise SystemExit(f"bench serving: status {done.returncode}: {done.stderr.strip()[-800:]}") from None


def rows(runs):
    """{(concurrency, figure): {server: median over the rounds}}"""
    table = {}
    for run in runs:
        for figure, (key, percentile) in FIGURES.items():
            value = run["report"][key] if percentile is None else run["report"][key][percentile]
            table.setdefault((run["concurrency"], figure), {}).setdefault(run["server"], []).append(value)
    return {key: {server: statistics.median(values) for server, values in by_server.items()} for key, by_server in table.items()}


def markdown(table):
    names = list(dict.fromkeys(name for by_server in table.values() for name in by_server))
    lines = ["| at once | figure | " + " | ".join(names) + " | |", "| --- | --- |" + " --- |" * (len(names) + 1)]
    for (concurrency, figure), by_server in table.items():
        others = [value for name, value in by_server.items() if name != "Tandem"]
        verdict = "–"
        if others and "Tandem" in by_server:
            won = by_server["Tandem"] > max(others) if figure.endswith("/s") else by_server["Tandem"] < min(others)
            verdict = "won" if won else "lost"
        cells = [f"{by_server[name]:,.0f}" if by_server.get(name, 0) >= 100 else f"{by_server[name]:.1f}" if name in by_server else "–"
                 for name in names]
        lines.append(f"| {concurrency} | {figure} | " + " | ".join(cells) + f" | {verdict} |")
    return "\n".join(lines) + "\n"


def main(words):
    options = parse(words)
    concurrency = [int(number) for number in options.concurrency.split(",")]
    runs, failed = [], 0
    with tempfile.TemporaryDirectory() as scratch, contextlib.ExitStack() as stack:
        ports = {name: stack.enter_context(running(name, *command, pathlib.Path(scratch)))
                 for name, command in servers(options, max(concurrency)).items()}
        for number in range(options.rounds):
            for at_once in concurrency:
                with inside(options.prefix):
                    for name in list(ports)[::1 if number % 2 == 0 else -1]:
                        # Prompts of their own in each round: no prefix cache has seen them.
                        report = load(options, ports[name], at_once, seed=1000 * number + at_once)
                        failed += report["failed"]
                        runs.append({"server": name, "concurrency": at_once, "round": number, "report": report})
                        print(f"{name}: {at_once} at once: {report['output_throughput']:.1f} tokens/s, TTFT p50 {report['ttft_ms']['p50']:.0f} ms, "
                              f"ITL p50 {report['itl_ms']['p50']:.1f} ms, {report['failed']} failed", flush=True)
                pathlib.Path(options.output + ".json").write_text(json.dumps({"runs": runs}, indent=1))
    text = markdown(rows(runs))
    pathlib.Path(options.output + ".md").write_text(text)
    print(text)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
