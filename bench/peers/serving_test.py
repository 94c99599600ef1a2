"""The serving comparison against the real server with the bundled model, twice under two names, and its table."""

import os
import pathlib
import subprocess
import sys

import pytest

import serving

ROOT = pathlib.Path(__file__).resolve().parents[2]
BINARY = os.environ.get("TANDEM_BINARY", str(ROOT / "build" / "tandem"))


def run(server, concurrency, rate, latency):
    times = {"p50": latency, "p99": 2 * latency}
    return {"server": server, "concurrency": concurrency, "report": {"output_throughput": rate, "ttft_ms": times, "itl_ms": times}}


def test_the_table_has_medians_and_says_what_is_lost():
    runs = [run("Tandem", 8, rate, 10) for rate in (100, 300, 200)] + [run("llama-server", 8, 150, 9), run("vLLM CPU", 8, 40, 30)]
    lines = serving.markdown(serving.rows(runs)).splitlines()
    assert lines[0] == "| at once | figure | Tandem | llama-server | vLLM CPU | |"
    assert lines[2] == "| 8 | output tokens/s | 200 | 150 | 40.0 | won |"
    assert lines[3] == "| 8 | TTFT p50, ms | 10.0 | 9.0 | 30.0 | lost |"
    assert serving.markdown(serving.rows(runs[:1])).splitlines()[2].endswith("| 100 | – |")


def test_a_gguf_is_asked_for(tmp_path):
    with pytest.raises(SystemExit, match="--llama-server needs --gguf FILE"):
        serving.servers(serving.parse(["--model", str(tmp_path), "--llama-server", "x"]), 8)


def test_a_server_that_ends_is_named_with_its_last_words(tmp_path):
    with pytest.raises(SystemExit, match=r"(?s)vLLM CPU: status 3 before it answered: no such module"), \
            serving.running("vLLM CPU", ["sh", "-c", "echo no such module; exit 3"], {}, tmp_path):
        pass


@pytest.mark.skipif(not pathlib.Path(BINARY).exists(), reason="needs the binary")
def test_two_servers_are_loaded(tmp_path):
    # What stands for llama-server takes its flags and is Tandem behind them.
    other = tmp_path / "other"
    other.write_text(f"""#!/bin/sh
while [ "$1" != --port ]; do shift; done
exec {BINARY} serve --model {ROOT / "models" / "arith"} --served-model-name peer --port "$2" --threads 1
""")
    other.chmod(0o755)
    done = subprocess.run([sys.executable, "-B", str(pathlib.Path(serving.__file__)), "--model", str(ROOT / "models" / "arith"), "--tandem", BINARY,
                           "--llama-server", str(other), "--gguf", "x", "--concurrency", "1,2", "--rounds", "1", "--input-tokens", "16",
                           "--output-tokens", "8", "--threads", "1", "--output", str(tmp_path / "out")], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    lines = (tmp_path / "out.md").read_text().splitlines()
    assert len(lines) == 2 + 2 * len(serving.FIGURES) and "Tandem | llama-server" in lines[0]
    assert all(line.endswith(("| won |", "| lost |")) for line in lines[2:])
