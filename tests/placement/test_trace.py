"""tandem trace: in every placement the parts of the time add up, the file is what Perfetto loads, and no token changes. Also with
attention and FFN in two time namespaces, whose clocks are an hour apart."""

import json
import os
import subprocess
import sys
import time

import pytest

from tests.conftest import ARITH, BINARY, M2N, FfnRank, TandemServer, start_ffn_ranks

PROMPTS = [{"prompt_ids": [3 + (7 * i + 11 * j) % 90 for j in range(5 + 9 * i)], "max_tokens": 16 + i} for i in range(6)]
FLAGS = ["--model", str(ARITH), "--deterministic", "--ignore-eos", "--log-level", "warning", "--json"]
# `other_lanes` and `idle` of a lane are times as any other; what is unknown is what no event explains.
MOST_UNKNOWN = 0.02
HOUR_S = 3600


def tandem(*arguments, prefix=()):
    done = subprocess.run([*prefix, BINARY, *arguments], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def prompts(tmp_path_factory):
    path = tmp_path_factory.mktemp("prompts") / "prompts.jsonl"
    path.write_text("".join(json.dumps(prompt) + "\n" for prompt in PROMPTS))
    return str(path)


@pytest.fixture(scope="module")
def expected(prompts):
    """Without a trace, colocated."""
    return json.loads(tandem("generate", "--prompts-file", prompts, *FLAGS))


def check_file(path, attention_ranks, ffn_ranks, own_records=0):
    """Chrome trace JSON as a viewer wants it; the spans of each thread. `own_records`: of FFN ranks, beside what attention says of them."""
    events = json.loads(path.read_text())["traceEvents"]
    named = {(e["pid"], e.get("tid")) for e in events if e["ph"] == "M"}
    processes = {e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert len([name for name in processes if name.endswith("(its own record)")]) == own_records
    assert len([name for name in processes if name.startswith("FFN rank")]) == ffn_ranks + own_records
    assert len(processes) == attention_ranks + ffn_ranks + own_records
    threads = {}
    for event in events:
        if event["ph"] == "M":
            continue
        assert event["ph"] == "X" and event["dur"] >= 0 and event["name"]
        thread = (event["pid"], event["tid"])
        assert thread in named and (event["pid"], None) in named
        threads.setdefault(thread, []).append(event)
    for spans in threads.values():
        around = []
        for before, span in zip([None, *spans], spans):
            begin, end = span["ts"], span["ts"] + span["dur"]
            assert before is None or begin >= before["ts"]
            while around and around[-1] <= begin + 0.0015:
                around.pop()
            assert not around or end <= around[-1] + 0.0015, f"{span} reaches out of the span around it"
            around.append(end)
    return threads


def check_sums(rank):
    """Every view adds up: the thread, each lane, the layers of a lane, each rank's round trips."""
    wall = rank["wall_ns"]
    assert wall > 0 and rank["dropped_events"] == 0 and rank["failed_exchanges"] == 0 and rank["corrected_answers"] == 0
    for view in [rank, *rank["lanes"]]:
        assert all(part >= 0 for part in view["parts"].values())
        assert abs(sum(view["parts"].values()) - view["parts"]["unaccounted_ns"] - wall) <= MOST_UNKNOWN * wall, view
    for lane in rank["lanes"]:
        layers = [layer["parts"] for layer in rank["layers"] if layer["lane"] == lane["lane"]]
        assert sum(sum(parts.values()) for parts in layers) + lane["parts"]["idle_ns"] == wall
    round_trips = {}
    for answer in rank["answers"]:
        assert all(part >= 0 for part in answer["parts"].values())
        round_trips.setdefault((answer["lane"], answer["layer"]), []).append(answer)
    assert sum(max(a["answers"] for a in answers) for answers in round_trips.values()) <= rank["exchanges"]
    assert sum(answer["last"] for answer in rank["answers"]) == rank["exchanges"]


PLACEMENTS = {
    "colocated": ([], 1, 0),
    "1A1F": (["--ffn", "1", "--transport", "shm"], 1, 1),
    "1A2F m2n": (["--ffn", "2", "--transport", "shm", *M2N], 1, 2),
    "1A2F p2p, two lanes": (["--ffn", "2", "--transport", "tcp", "--micro-batches", "2"], 1, 2),
    "1A2F graph, threads": (["--ffn", "2", "--transport", "inproc", "--execution", "graph", *M2N], 1, 2),
    "2A2F": (["--attention", "2", "--ffn", "2", "--transport", "shm", *M2N], 2, 2),
    "2A1F, threads": (["--attention", "2", "--ffn", "1", "--transport", "inproc"], 2, 1),
}


@pytest.mark.parametrize("name", PLACEMENTS)
def test_parts_add_up_and_no_token_changes(name, prompts, expected, tmp_path):
    flags, attention_ranks, ffn_ranks = PLACEMENTS[name]
    output = tmp_path / "trace.json"
    report = json.loads(tandem("trace", "--prompts-file", prompts, "--output", str(output), "--threads", "1", *flags, *FLAGS))
    assert report["logits_hash"] == expected["logits_hash"]
    assert report["generated_tokens"] == expected["generated_tokens"]
    assert os.listdir(tmp_path) == ["trace.json"], "the parts of ranks are gone"
    threads = check_file(output, attention_ranks, ffn_ranks)
    assert [rank["rank"] for rank in report["ranks"]] == list(range(attention_ranks))
    for rank in report["ranks"]:
        check_sums(rank)
        assert rank["wall_ns"] <= report["seconds"] * 1e9, "a window within the run that was measured around it"
        ranks = {answer["ffn_rank"] for answer in rank["answers"]}
        assert ranks == (set(range(ffn_ranks)) if ffn_ranks else {"local"})
        # The first of 5 layers is dense; the others have asked experts.
        assert {answer["layer"] for answer in rank["answers"]} == set(range(1, 5))
        experts = sum(answer["parts"]["experts_ns"] for answer in rank["answers"])
        assert experts > 0 and rank["parts"]["attention_ns"] > 0
        if not ffn_ranks:
            assert experts == rank["parts"]["experts_ns"] and rank["parts"]["wire_ns"] == 0
        lanes = {tid for pid, tid in threads if pid == 1 + rank["rank"] and tid < 900}
        assert len(lanes) == len(rank["lanes"])


def test_a_server_writes_its_trace_when_it_stops_and_read_prints_it(tmp_path):
    output = tmp_path / "server.json"
    directory = tmp_path / "log"
    directory.mkdir()
    ranks = start_ffn_ranks("shm", 1, tmp_path, "--threads", "1")
    server = TandemServer(["attention", "--model", str(ARITH), "--ffn", ranks[0].address, "--port", "0", "--threads", "1", "--trace", str(output)],
                          directory)
    try:
        server.wait_ready()
        assert server.request("POST", "/v1/completions", {"model": "arith", "prompt": "Tom has 3", "max_tokens": 20}).status == 200
        metrics = server.metrics()
        parts = sum(metrics[f"tandem_ffn_{part}_seconds_total"] for part in ("queue", "compute", "exchange"))
        assert 0 < parts <= metrics["tandem_ffn_round_trip_seconds_total"]
        assert metrics["tandem_lane_busy_seconds_total"] > 0
        assert not output.exists()
    finally:
        assert server.stop() == 0
        ranks[0].close()
    check_file(output, 1, 1)
    report = json.loads(tandem("trace", "--read", str(output), "--json"))
    check_sums(report["ranks"][0])
    text = tandem("trace", "--read", str(output))
    assert text.startswith("attention 0: ") and "FFN rank 0" in text and "embedding, head" in text


def test_a_ring_that_is_too_small_says_what_it_left_out(prompts, tmp_path):
    flags = ["trace", "--prompts-file", prompts, "--output", str(tmp_path / "trace.json"), "--threads", "1", "--trace-events", "1024", *FLAGS]
    (rank,) = json.loads(tandem(*flags))["ranks"]
    assert rank["events"] == 1024 and rank["dropped_events"] > 0
    assert sum(rank["parts"].values()) == rank["wall_ns"]
    assert rank["parts"]["unaccounted_ns"] <= MOST_UNKNOWN * rank["wall_ns"]
    assert "older events did not fit the ring (--trace-events)" in tandem(*flags[:-1])


# ---- clocks an hour apart ----


def unshare():
    """What starts a process an hour ahead of us; skips by name where that is not permitted."""
    prefix = ["unshare", *([] if os.geteuid() == 0 else ["--user", "--map-root-user"]), "--time", "--monotonic", str(HOUR_S), "--boottime",
              str(HOUR_S), "--fork", "--kill-child=SIGKILL"]
    try:
        asked = subprocess.run([*prefix, sys.executable, "-c", "import time; print(time.monotonic())"], capture_output=True, text=True, timeout=30)
    except FileNotFoundError:
        pytest.skip("time namespaces: there is no unshare (util-linux)")
    if asked.returncode != 0:
        pytest.skip(f"time namespaces: {asked.stderr.strip()}")
    ahead = float(asked.stdout) - time.monotonic()
    assert abs(ahead - HOUR_S) < 60, "the clocks are an hour apart"
    return prefix


@pytest.mark.parametrize("ahead", ("ffn", "attention"))
def test_clocks_an_hour_apart(ahead, prompts, expected, tmp_path):
    prefix = unshare()
    output = tmp_path / "trace.json"
    ranks = [FfnRank("tcp://127.0.0.1:0", tmp_path, "--deterministic", "--threads", "1", rank=rank, ranks=2,
                     prefix=prefix if ahead == "ffn" and rank == 1 else ()) for rank in range(2)]
    try:
        report = json.loads(tandem("trace", "--prompts-file", prompts, "--output", str(output), "--threads", "1", "--ffn-addresses",
                                   ",".join(rank.address for rank in ranks), *M2N, *FLAGS, prefix=prefix if ahead == "attention" else ()))
    finally:
        for rank in ranks:
            rank.close()
    assert report["logits_hash"] == expected["logits_hash"]
    check_file(output, 1, 2)
    (rank,) = report["ranks"]
    check_sums(rank)
    assert rank["wall_ns"] <= report["seconds"] * 1e9
    assert {answer["ffn_rank"] for answer in rank["answers"]} == {0, 1}
    for answer in rank["answers"]:
        # Neither side's hour is in a part: of the one that is ahead no less than of the other.
        assert 0 <= answer["parts"]["wire_ns"] < rank["wall_ns"] and 0 < answer["parts"]["experts_ns"] < rank["wall_ns"]
