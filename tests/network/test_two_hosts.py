"""bench/two_hosts.py end to end: attention and FFN in two network namespaces, over a wire of 10 Gbit/s. Skipped by name where the
machine does not permit namespaces."""

import json
import pathlib
import subprocess
import sys

import pytest

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "bench" / "two_hosts.py"


@pytest.mark.parametrize("transport", ("tcp", "ucx"))
def test_requests_cross_the_wire(transport):
    done = subprocess.run([sys.executable, str(SCRIPT), "--rates", "10", "--transports", transport, "--requests", "4", "--max-tokens", "8",
                           "--json"], capture_output=True, text=True, timeout=120)
    if done.returncode == 77:
        pytest.skip(done.stderr.strip())
    assert done.returncode == 0, done.stderr
    (row,) = json.loads(done.stdout)
    assert row["transport"] == transport and row["gigabits"] == 10
    assert row["tokens_per_second"] > 0
    # Each token has a row of 128 bf16 each way at each of 5 layers: messages are on the wire, and not in the memory that both hosts share.
    assert row["wire_bytes"] > row["tokens"] * 2 * 5 * 128 * 2
    assert 0 < row["wire_seconds"] and 0 < row["share_waiting"] < 1
    left = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True).stdout
    assert "tandem-" not in left, "the namespaces are removed"
