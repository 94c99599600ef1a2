"""Bad input on the command line: status 2 and one line that says what would do."""

import json
import os
import pathlib
import socket
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BINARY = os.environ.get("TANDEM_BINARY", str(ROOT / "build" / "tandem"))
ARITH = str(ROOT / "models" / "arith")
M2N = ["--connector", "m2n", "--compute-gate-on-attention"]


def run(*arguments, env=None):
    return subprocess.run([BINARY, *arguments], capture_output=True, text=True, timeout=60, env={**os.environ, **(env or {})})


REFUSED = [
    (["serve", "--model", ARITH, "--prot", "1"], "--prot"),
    (["serve", "--model", ARITH, "--port", "x"], "serving.port: 'x' is not a whole number in 0..65535"),
    (["serve", "--model", ARITH, "--port", "65536"], "serving.port: 65536 is not in 0..65535"),
    (["serve", "--model", "/nonexistent"], "/nonexistent does not exist"),
    (["serve", "--model", str(ROOT / "docs")], "is not a model folder"),
    (["serve"], "name its folder with --model"),
    (["attention", "--model", ARITH], "afd.ffn: no address"),
    (["up", "--model", ARITH, "--ffn", "2", "--connector", "local"], "afd.connector: local with 2 FFN ranks is not supported; use p2p, m2n or auto"),
    (["ffn", "--model", ARITH, "--num-ffn-ranks", "2"], "afd.ffn: FFN ranks of connector p2p exchange rows and need the addresses of all 2 of them"),
    (["up", "--model", ARITH, "--connector", "m2n"], "afd.connector: m2n with the gate on FFN is not supported"),
    (["up", "--model", ARITH, "--ffn", "99", "--connector", "m2n", "--compute-gate-on-attention", "--once"],
     "afd.num_ffn_ranks: 99 FFN ranks, and the model has"),
    (["up", "--model", ARITH, "--ffn", "5", "--placement", "slice", *M2N, "--once"],
     "afd.placement: slices of an expert on 5 of 5 FFN ranks, and its 64 intermediate rows are 4 granules of 16"),
    (["up", "--model", ARITH, "--ffn", "4", "--placement", "hybrid", "--expert-replicas", "3", *M2N, "--once"],
     "afd.expert_replicas: 3 with 4 FFN ranks in 2 groups"),
    (["eval", "gsm8k", "--model", ARITH, "--data", "questions.jsonl", "--balanced-routing"],
     "engine.balanced_routing: true with eval gsm8k is not supported; use false"),
    (["up", "--model", ARITH, "--ffn", "2", "--expert-slices", "2", *M2N, "--once"],
     "afd.expert_slices: 2 with afd.placement expert is not supported; use 0, or afd.placement: hybrid"),
    (["ffn", "--model", ARITH, "--connector", "m2n", "--compute-gate-on-attention", "--num-ffn-ranks", "2", "--ffn-rank", "2"],
     "afd.ffn_rank: 2 of afd.num_ffn_ranks 2"),
    (["up", "--model", ARITH, "--kv-cache-dtype", "fp8", "--compute-dtype", "float32", "--once"],
     "engine.kv_cache_dtype: fp8 with engine.compute_dtype float32 is not supported; use auto (float32 is the reference mode"),
    (["serve", "--model", ARITH, "--kv-cache-dtype", "fp8_e5m2"], "engine.kv_cache_dtype: 'fp8_e5m2' is not one of auto | bf16 | fp8 | fp8_e4m3"),
    (["inspect", str(ROOT / "tests" / "fixtures" / "deepseek_v4"), "--kv-cache-dtype", "fp8"], "engine.kv_cache_dtype: fp8 with deepseek_v4"),
    (["up", "--model", ARITH, "--transport", "carrier-pigeon"], "up.transport: 'carrier-pigeon' is not one of"),
    (["ffn", "--model", ARITH, "--listen", "tcp://0.0.0.0:0"], "--insecure"),
    (["ffn", "--model", ARITH, "--listen", "smoke://x"], "smoke"),
    (["generate", "--model", ARITH], "one of --prompt and --prompts-file"),
    (["trace", "--model", ARITH, "--ffn-addresses", "tcp://127.0.0.1:1", "--ffn", "1"],
     "trace.ffn_addresses: 1 with up.ffn 1 is not supported; use one of them: ranks that run already, or ranks to start"),
    (["trace", "--model", ARITH, "--output", "/nonexistent/trace.json"], "trace.output: cannot write /nonexistent/trace.json"),
    (["trace", "--model", ARITH, "--prompts-file", "-"], "generate.prompts_file: - asks for prompts one after another; trace wants a file"),
    (["trace", "--model", ARITH, "--prompts-file", "x", "--prompt", "y"], "generate.prompts_file: x with generate.prompt; use one of them"),
    (["trace", "--read", "/nonexistent"], "cannot open the trace /nonexistent"),
    (["trace", "--read", str(ROOT / "README.md")], "README.md is not a trace that tandem wrote to its end"),
    (["trace"], "name its folder with --model"),
    (["serve", "--model", ARITH, "--attention", "tcp://127.0.0.1:1", "--trace-requests"],
     "serving.trace_requests: true in front of attention ranks is not supported: lanes and HTTP are in different processes; use engine.trace at "
     "the attention ranks"),
    (["attention", "--model", ARITH, "--ffn", "tcp://127.0.0.1:1", "--attention-listen", "tcp://127.0.0.1:0", "--trace-requests"],
     "serving.trace_requests: true without afd.metrics_listen is not supported: this rank has no other HTTP; use --metrics-listen 127.0.0.1:9100"),
    (["attention", "--model", ARITH, "--ffn", "tcp://127.0.0.1:1", "--metrics-listen", "127.0.0.1:0"],
     "afd.metrics_listen: 127.0.0.1:0 is not supported by a process that serves the API; its own /metrics has it: use serving.port"),
    (["up", "--model", ARITH, "--attention", "2", "--trace-requests"],
     "serving.trace_requests: true with up.attention 2 is not supported: lanes and HTTP are in different processes; use engine.trace at the "
     "attention ranks"),
    (["ffn", "--model", ARITH, "--trace-requests"],
     "serving.trace_requests: true without afd.metrics_listen is not supported: this rank has no other HTTP; use --metrics-listen 127.0.0.1:9100"),
    (["ffn", "--model", ARITH, "--listen", "tcp://127.0.0.1:0", "--trace-requests", "--metrics-listen", "0.0.0.0:0"],
     "afd.metrics_listen: other hosts reach 0.0.0.0:0 and serving.trace_requests lets whoever does record this rank; give --api-key-file, or say "
     "--insecure on a network that nobody else is in"),
    (["serve", "--model", ARITH, "--attention", "tcp://127.0.0.1:1", "--trace", "t.json"],
     "engine.trace: t.json in front of attention ranks is not supported: a front runs no lanes; use it at the attention ranks"),
    (["bench", "decode", "--shape", "olmoe", "--trace", "t.json"], "engine.trace: t.json without a model is not supported"),
    (["eval", "gsm8k", "--model", ARITH], "--data"),
    (["eval", "gsm8k", "--model", ARITH, "--data", "/nonexistent"], "/nonexistent"),
    (["eval", "matrix", "--model", ARITH, "--deterministic=false"], "engine.deterministic: false; without it"),
    (["eval", "matrix", "--model", ARITH, "--max-context-tokens", "6"], "serving.max_context_tokens: 6 is too short"),
    (["eval", "matrix", "--model", ARITH, "--cover", "sextuples"], "eval.cover: 'sextuples' is not one of"),
    (["bench", "placement", "--model", ARITH, "--profile", "seed-503"],
     "bench.scale: 1: profile seed-503 needs a context of 8307 tokens and the model has 2048; use --scale 0.24 or less"),
    (["bench", "placement", "--model", ARITH, "--arms", "ffn,sideways"], "bench.arms: 'sideways' is not one of ffn, attention, base=BINARY"),
    (["bench", "placement", "--model", ARITH, "--arms", "ffn"], "bench.arms: there must be two or more"),
    (["bench", "placement", "--model", ARITH, "--arms", "ffn,ffn"], "bench.arms: ffn stands there twice"),
    (["bench", "placement", "--model", ARITH, "--arms", "base=/bin/true,ffn"], "base cannot be the first arm"),
    (["bench", "placement", "--model", ARITH, "--arms", "ffn,base=/nonexistent"], "there is no /nonexistent"),
    (["bench", "placement", "--model", ARITH, "--arms", "ffn,attention", "--ffn", "2", "--connector", "m2n"],
     "arm ffn: afd.connector: m2n with the gate on FFN is not supported"),
    (["bench", "placement", "--model", ARITH, "--ffn", "0"], "up.ffn: 0; colocated has one placement"),
    (["bench", "placement", "--model", ARITH, "--data", "/nonexistent"], "there is no /nonexistent"),
    (["eval", "gsm8k", "--model", ARITH, "--data", "questions.jsonl", "--synthetic-kv"],
     "engine.synthetic_kv: true with eval gsm8k is not supported; use false"),
    (["generate", "--model", ARITH, "--prompt", "x", "--synthetic-kv", "--speculative", "on"],
     "engine.synthetic_kv: true with engine.speculative on is not supported; use engine.speculative: off"),
    (["bench", "decode", "--model", ARITH, "--shape", "v3"], "measure.shape: v3 with model"),
    (["bench", "decode", "--model", ARITH, "--context", "1"], "measure.context: '1' is not a whole number in 2.."),
    (["bench", "decode", "--model", ARITH, "--context", "2048"], "the model has 2048 positions"),
    (["bench", "decode", "--model", ARITH, "--weights", "fp4"], "measure.weights with a model folder"),
    (["inspect", str(ROOT / "README.md")], "README.md"),
    (["frobnicate"], "frobnicate"),
    ([], "subcommand"),
]


@pytest.mark.parametrize("arguments,expected", REFUSED, ids=[" ".join(a)[-50:] for a, _ in REFUSED])
def test_bad_usage_is_status_2_and_one_line(arguments, expected):
    done = run(*arguments)
    assert done.returncode == 2, (done.returncode, done.stderr)
    lines = [line for line in done.stderr.splitlines() if line.startswith("tandem:")]
    assert len(lines) == 1 and expected in lines[0], done.stderr


def test_environment_and_file_are_read_and_named(tmp_path):
    done = run("serve", "--model", ARITH, env={"TANDEM_PORT": "x"})
    assert done.returncode == 2 and "TANDEM_PORT: serving.port" in done.stderr
    config = tmp_path / "tandem.yaml"
    config.write_text("serving:\n  port: 80\n  porrt: 81\n")
    done = run("serve", "--config", str(config))
    assert done.returncode == 2 and "line 3: unknown key 'serving.porrt'; did you mean 'serving.port'?" in done.stderr
    config.write_text("afd:\n  send_token_ids: true\n  compute_gate_on_attention: true\n")
    done = run("serve", "--config", str(config), "--model", ARITH)
    assert done.returncode == 2 and "afd.send_token_ids: true" in done.stderr


def test_a_taken_port_is_named():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = run("serve", "--model", ARITH, "--port", str(port))
        assert done.returncode != 0
        assert str(port) in done.stderr.splitlines()[-1]


def test_help_teaches():
    for arguments in (["--help"], ["serve", "--help"], ["eval", "gsm8k", "--help"]):
        done = run(*arguments)
        assert done.returncode == 0 and "--" in done.stdout
    assert "Example:" in run("ffn", "--help").stdout
    assert run("--version").stdout.startswith("tandem ")


def test_json_documents_parse():
    facts = json.loads(run("inspect", ARITH, "--json").stdout)
    assert facts
    ranks = json.loads(run("inspect", ARITH, "--json", "--num-ffn-ranks", "4", "--placement", "hybrid", *M2N).stdout)["ffn_ranks"]
    assert [(rank["rank"], rank["row_begin"], rank["row_end"]) for rank in ranks] == [(0, 0, 32), (1, 32, 64), (2, 0, 32), (3, 32, 64)]
    assert sum(rank["stored_bytes"] for rank in ranks) == facts["roles"]["experts"]["bytes"]["bf16"]
    findings = json.loads(run("doctor", "--json", "--port", "0").stdout)
    assert {finding["subject"] for finding in findings} >= {"ISA", "threads", "huge pages", "/dev/shm", "port"}


def test_the_configuration_reference_is_current():
    assert run("configuration").stdout == (ROOT / "docs" / "configuration.md").read_text()


@pytest.mark.parametrize("page,marker,flag", (("features.md", "support matrix", "--matrix"), ("afd-plugin.md", "plugin keys", "--plugin")))
def test_generated_tables_in_the_docs_are_current(page, marker, flag):
    text = (ROOT / "docs" / page).read_text()
    assert run("configuration", flag).stdout == text.split(f"<!-- {marker}: begin -->\n")[1].split(f"<!-- {marker}: end -->\n")[0]


def test_an_empty_value_takes_nothing_from_the_word_behind_it(tmp_path):
    done = subprocess.run([BINARY, "generate", "--model", ARITH, "--prompt", "hi", "--max-tokens", "1", "--weights-cache=", "--prefix-cache-dir=",
                           "--capture-sizes=", "--log-level=warning"], capture_output=True, text=True, timeout=60, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert list(tmp_path.iterdir()) == []
    assert " info " not in done.stderr
