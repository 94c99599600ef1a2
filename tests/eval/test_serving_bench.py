"""`tandem bench serving` against a real server, one that it starts itself, and servers that refuse."""

import json
import os
import subprocess

import pytest

from tests.conftest import ARITH, BINARY, TandemServer
from tests.e2e.test_operations import make_certificate

SHORT = ("--random-input-len", "12:40", "--random-output-len", "6", "--num-prompts", "24")


@pytest.fixture(scope="module")
def server(tandem_server):
    return tandem_server("serve")


def bench(*flags, status=0, env=None):
    done = subprocess.run([BINARY, "bench", "serving", *flags], capture_output=True, text=True, timeout=120,
                          env={**os.environ, **(env or {})})
    assert done.returncode == status, (done.returncode, done.stdout, done.stderr)
    return done


def result(*flags, **options):
    return json.loads(bench("--json", *flags, **options).stdout)


def generated(server):
    return server.metrics()["tandem_completion_tokens_total"]


def test_closed_loop_counts_what_the_server_counts(server, tmp_path):
    before = generated(server)
    report, lines = tmp_path / "load.html", tmp_path / "requests.jsonl"
    done = result("--base-url", server.url, "--tokenizer", str(ARITH), *SHORT, "--max-concurrency", "5", "--report", str(report),
                  "--output", str(lines), "--goodput", "ttft:100000", "itl:100000")
    assert (done["completed"], done["failed"], done["model"]) == (24, 0, "arith")
    assert done["output_tokens"] == 24 * 6
    # One warm-up request beside them.
    assert generated(server) - before == 25 * 6
    requests = [json.loads(line) for line in lines.read_text().splitlines()]
    assert [request["index"] for request in requests] == list(range(24))
    assert sum(request["input_tokens"] for request in requests) == done["input_tokens"]
    # A tokenizer may put its BOS before the ids; nothing else changes their number.
    assert all(12 <= request["input_tokens"] <= 41 for request in requests)
    assert done["most_in_flight"] == 5
    assert done["ttft_ms"]["count"] == done["e2el_ms"]["count"] == 24
    for metric in ("ttft_ms", "tpot_ms", "itl_ms", "e2el_ms"):
        values = done[metric]
        assert 0 < values["min"] <= values["p50"] <= values["p90"] <= values["p95"] <= values["p99"] <= values["max"]
    assert done["goodput"]["good_requests"] == 24
    page = report.read_text()
    assert page.count("<svg ") == 6 and "<script" not in page and "http" not in page.replace("http://www.w3.org/2000/svg", "").replace(server.url, "")


def test_open_loop_keeps_its_rate(server):
    done = result("--base-url", server.url + "/v1", *SHORT, "--request-rate", "40", "--burstiness", "4")
    assert (done["completed"], done["failed"]) == (24, 0)
    # 24 arrivals at 40 a second end 23/40 s after the first; the last answer comes later.
    assert done["duration_s"] >= 23 / 40
    assert "send_delay_ms" in done and done["load"]["prompts"].startswith("random words")


def test_a_duration_bounds_the_load(server):
    done = result("--base-url", server.url, "--random-input-len", "8", "--random-output-len", "4", "--duration-s", "0.5",
                  "--max-concurrency", "2")
    assert done["completed"] > 2 and done["failed"] == 0 and done["most_in_flight"] == 2


def test_shared_prefixes_hit_the_prefix_cache(server):
    flags = ("--base-url", server.url, "--tokenizer", str(ARITH), "--random-input-len", "16", "--random-output-len", "2", "--num-prompts", "20",
             "--max-concurrency", "1", "--num-warmups", "0")
    shared = result(*flags, "--random-prefix-len", "256", "--num-prefixes", "2", "--seed", "11")
    # 18 of 20 begin like an earlier one.
    assert shared["cached_tokens"] > 0.6 * shared["input_tokens"]
    alone = result(*flags, "--seed", "12")
    assert alone["cached_tokens"] < 0.1 * alone["input_tokens"]


def test_chat_dataset_whole_answers(server):
    done = result("--base-url", server.url, "--endpoint", "/v1/chat/completions", "--dataset-path", str(ARITH / "heldout.jsonl"),
                  "--num-prompts", "8", "--max-concurrency", "4", "--no-stream", "--no-ignore-eos", "--random-output-len", "64")
    assert done["completed"] == 8 and "ttft_ms" not in done and done["e2el_ms"]["count"] == 8


@pytest.mark.parametrize("placement", ((), ("--ffn", "1", "--transport", "shm")))
def test_a_server_of_its_own(placement):
    done = result("--model", str(ARITH), *placement, *SHORT, "--max-concurrency", "8")
    assert (done["completed"], done["failed"], done["model"]) == (24, 0, "arith")
    assert done["load"]["prompts"] == "random tokens"


def test_text_for_people(server):
    done = bench("--base-url", server.url, *SHORT, "--metric-percentiles", "50", "99.9", "--goodput=ttft:0.001")
    for part in ("24 completed, 0 failed", "p99.9", "TTFT", "0 of 24 requests within ttft <= 0.001 ms"):
        assert part in done.stdout
    assert "requests: 24/24" in done.stderr  # a log has lines, not a bar


def test_failed_requests_are_counted_by_status_and_give_status_1(server, context_tokens=2048):
    done = json.loads(bench("--json", "--base-url", server.url, "--num-warmups", "0", "--num-prompts", "3", "--tokenizer", str(ARITH),
                            "--random-input-len", str(context_tokens + 1), status=1).stdout)
    assert done["failures"]["400"]["count"] == done["failed"] == 3 and done["completed"] == 0
    assert str(context_tokens) in done["failures"]["400"]["example"]


def test_tls_and_keys(tmp_path):
    certificate, key = make_certificate(tmp_path)
    server = TandemServer(["serve", "--model", str(ARITH), "--port", "0", "--ssl-certfile", str(certificate), "--ssl-keyfile", str(key),
                           "--api-key", "sk-1"], tmp_path).wait_ready()
    try:
        trusted = {"SSL_CERT_FILE": str(certificate)}
        assert result("--base-url", server.url, *SHORT, "--api-key", "sk-1", env=trusted)["completed"] == 24
        assert result("--base-url", server.url, *SHORT, env={**trusted, "OPENAI_API_KEY": "sk-1"})["completed"] == 24
        assert "401" in bench("--base-url", server.url, env=trusted, status=1).stderr
        assert "certificate" in bench("--base-url", server.url, "--api-key", "sk-1", status=1).stderr
    finally:
        assert server.stop() == 0


REFUSED = [
    ([], "load.base_url: no server; name one with --base-url, or a model folder to serve with --model"),
    (["--base-url", "localhost:8000"], "'localhost:8000': not a URL of http or https; use one such as http://127.0.0.1:8000"),
    (["--base-url", "http://x", "--request-rate", "0"], "load.request_rate: '0' is not a number above 0; use inf"),
    (["--base-url", "http://x", "--duration-s", "3"], "load.duration_s: nothing bounds how much is sent at once"),
    (["--base-url", "http://x", "--random-input-len", "9:1"], "load.random_input_len: '9:1' is not within"),
    (["--base-url", "http://x", "--goodput", "ttft:1", "speed:2"], "load.goodput: 'speed:2' names no metric"),
    (["--base-url", "http://x", "--no-stream", "--goodput", "ttft:1"], "load.goodput: ttft without load.stream has no times of tokens; use e2el"),
    (["--base-url", "http://x", "--dataset-name", "custom"], "load.dataset_path: no file; name one with --dataset-path"),
    (["--base-url", "http://x", "--dataset-name", "random", "--dataset-path", "y"], "load.dataset_name: random with load.dataset_path y"),
    (["--base-url", "http://x", "--extra-body", "[]"], "load.extra_body: '[]' is not a JSON object"),
    (["--base-url", "http://x", "--metric-percentiles", "100"], "load.metric_percentiles: '100' is not a number between 0 and 100"),
    (["--model", "/nonexistent"], "/nonexistent"),
]


@pytest.mark.parametrize("flags,expected", REFUSED, ids=[" ".join(flags)[-40:] for flags, _ in REFUSED])
def test_what_cannot_be_is_refused_by_name(flags, expected):
    assert expected in bench(*flags, status=2).stderr


def test_servers_that_are_not_there_or_have_another_model(server):
    assert "no connection" in bench("--base-url", "http://127.0.0.1:9", status=1).stderr
    assert "has no model 'gpt'; it has arith" in bench("--base-url", server.url, "--model", "gpt", status=2).stderr
    missing = bench("--base-url", server.url, "--dataset-path", "/nonexistent", status=2)
    assert "load.dataset_path: cannot read /nonexistent" in missing.stderr
