"""`tandem bench placement`: the report has what was measured, in turn and of every rank. Times are never asserted."""

import json
import subprocess

import pytest

from tests.conftest import ARITH, BINARY

SMALL = ("--profile", "seed-545", "--scale", "0.1", "--limit", "8")


def bench(tmp_path, *flags):
    output = tmp_path / "report"
    done = subprocess.run([BINARY, "bench", "placement", "--model", str(ARITH), "--output", str(output), "--json", *SMALL, *flags],
                          capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    report = json.loads(done.stdout)
    assert json.loads((tmp_path / "report.json").read_text()) == report
    return report, (tmp_path / "report.md").read_text(), (tmp_path / "report.svg").read_text()


def test_both_arms_run_in_turn_on_ranks_of_their_own(tmp_path):
    report, markdown, chart = bench(tmp_path, "--runs", "3", "--transport", "tcp")
    assert report["order"] == ["ffn", "attention", "attention", "ffn", "ffn", "attention"]
    assert report["failed_requests"] == 0
    assert report["build"]["commit"] and report["host"]["cpu"] and len(report["host"]["load_end"]) == 3
    profile = report["profile"]
    assert (profile["input_tokens"], profile["output_tokens"], profile["concurrency"], profile["requests"]) == (13, 13, 1, 2)
    ffn, attention = report["arms"]
    assert [arm["name"] for arm in report["arms"]] == ["ffn", "attention"]
    assert "--compute-gate-on-attention=true" in attention["command"] and "--compute-gate-on-attention" not in ffn["command"]
    for arm in report["arms"]:
        assert len(arm["runs"]) == 3
        for run in arm["runs"]:
            assert run["requests"] == 2 and run["prompt_tokens"] == 2 * 13 and run["output_tokens"] == 2 * 13
            assert run["e2e_ms"] >= run["ttft_ms"] > 0 and run["tpot_ms"] > 0
            assert run["total_tokens_per_second"] == pytest.approx(run["prefill_tokens_per_second"] + run["output_tokens_per_second"])
        assert [(rank["role"], rank["rank"]) for rank in arm["counters"]] == [("attention", 0), ("ffn", 0)]
        assert all(rank["collects"] > 0 for rank in arm["counters"])
        assert arm["accuracy"]["questions"] == 8 and arm["accuracy"]["failed"] == 0
    # The gate is counted where it runs, and nowhere else.
    assert [rank["router_calls"] > 0 for rank in ffn["counters"]] == [False, True]
    assert [rank["router_calls"] > 0 for rank in attention["counters"]] == [True, False]
    assert set(attention["metrics"]) == {"e2e_ms", "ttft_ms", "tpot_ms", "prefill_tokens_per_second", "output_tokens_per_second",
                                         "total_tokens_per_second"}
    against = attention["metrics"]["e2e_ms"]["against_ffn"]
    assert against["verdict"] in ("inside", "better", "worse") and against["band"] > 0
    assert against["words"] in markdown and "| 6 | attention |" in markdown and "report.svg" in markdown
    assert chart.startswith("<svg") and chart.count("<circle") >= 2 * 3 * 6


def test_another_binary_is_an_arm_and_then_all_arms_are_measured_alike(tmp_path):
    # A build of its own path; what it measures is the same, so the report must hold whatever it is compared with.
    report, markdown, _ = bench(tmp_path, "--runs", "2", "--arms", f"attention,base={BINARY}", "--transport", "inproc")
    assert report["order"] == ["attention", "base", "base", "attention"]
    assert "starts its binary anew" in report["how"]
    attention, base = report["arms"]
    assert base["command"].startswith(BINARY) and "--compute-gate-on-attention=true" in base["command"]
    assert attention["accuracy"]["correct"] == base["accuracy"]["correct"] > 4 and base["accuracy"]["failed"] == 0
    assert [rank["role"] for rank in base["counters"]] == ["attention", "ffn"]
    assert base["metrics"]["e2e_ms"]["against_attention"]["words"] in markdown


def test_a_model_without_questions_says_so(tmp_path):
    output = tmp_path / "report"
    model = ARITH.parents[1] / "tests" / "fixtures" / "mixtral"
    done = subprocess.run([BINARY, "bench", "placement", "--model", str(model), "--output", str(output), "--runs", "1", "--scale", "0.05",
                           "--transport", "inproc"], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "Not measured: the folder has no heldout.jsonl" in done.stdout
    assert "no band: each arm needs two runs or more" in done.stdout
