"""tandem bench host: rows for eager and replay, and one account of the start for all of its measurements."""

import json

import pytest

from tests.cli.test_usage import ARITH, run


@pytest.mark.parametrize("flags", (("--ffn", "1", "--transport", "inproc"), ("--ffn", "2", "--transport", "shm")), ids=("one rank", "p2p"))
def test_eager_beside_replay_and_one_start_is_told(flags):
    done = run("bench", "host", "--model", ARITH, "--threads", "1", "--json", *flags)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert [(row["execution"], row["round"]) for row in report["runs"]] == [(kind, i) for i in range(3) for kind in ("eager", "graph")]
    for row in report["runs"]:
        assert row["layers"] > 0 and row["host_us_per_layer"] > 0 and row["misses"] == 0
    assert done.stderr.count("KV pool:") == 1, done.stderr
    assert done.stderr.count("loading: 100 %") == 1 + int(flags[1]), done.stderr


def test_warnings_alone_are_warnings_alone():
    done = run("bench", "host", "--model", ARITH, "--threads", "1", "--ffn", "0", "--log-level", "warning")
    assert done.returncode == 0 and " info " not in done.stderr, done.stderr
    assert "us a layer eager" in done.stdout
