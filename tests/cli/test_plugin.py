"""Both halves started with the JSON of vLLM's AFD plugin, and what it says refused by name."""

import json
import socket
import subprocess

import pytest

from tests.conftest import ARITH, BINARY, TandemServer

ASK = {"model": "arith", "prompt": "2+2=", "max_tokens": 8, "temperature": 0}


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def start(role, directory, port, *flags, **block):
    (directory / role).mkdir()
    config = {"afd": {"role": role, "host": "127.0.0.1", "port": port, **block}}
    return TandemServer(["serve", str(ARITH), "--port", "0", "--additional-config", json.dumps(config), *flags], directory / role)


@pytest.mark.parametrize("block", (
    {"connector": "P2pNcclAFDConnector"},
    {"afd_connector": "CAMAsyncAFDConnector", "async": True, "compute_gate_on_attention": True, "connector_extra_config": {"dynamicQuant": 0}},
), ids=("p2p", "m2n"))
def test_one_command_serves_either_half(block, tandem_server, tmp_path):
    expected = tandem_server().request("POST", "/v1/completions", ASK).json()["choices"]
    port = free_port()
    attention = start("attention", tmp_path, port, "--enforce-eager", **block)
    ffn = start("ffn", tmp_path, port, "--enforce-eager", **block)
    try:
        reply = attention.wait_ready().request("POST", "/v1/completions", ASK)
        assert reply.status == 200 and reply.json()["choices"] == expected
        log = attention.log_path.read_text()
        assert f"connector {block.get('connector') or block['afd_connector']} is " in log
        assert f"afd.ffn tcp://127.0.0.1:{port}" in log
        assert attention.stop() == 0
        assert "no HTTP" in ffn.log_path.read_text()
        assert ffn.stop() == 0
    finally:
        for server in (attention, ffn):
            if server.process.poll() is None:
                server.process.kill()


@pytest.mark.parametrize("arguments,expected", (
    (["serve", "--additional-config", '{"afd": {"connector": "dummy"}}'], "afd.connector: dummy is not supported; use local"),
    (["serve", "--additional-config", '{"afd": {"prot": 1}}'], "unknown key 'afd.prot'; did you mean 'port'?"),
    (["attention", "--additional-config", '{"afd": {"role": "ffn"}}'], "afd.role: ffn with tandem attention"),
    (["serve", "--compilation-config", '{"cudagraph_mode": "PIECEWISE"}'], "PIECEWISE is not supported; use FULL_DECODE_ONLY"),
    (["serve", "--enforce-eager", "--execution", "graph"], "vllm.enforce_eager: true with afd.execution graph"),
    (["up", "--additional-config", "{}"], "--additional-config"),
))
def test_what_is_wrong_is_status_2_and_one_line(arguments, expected):
    done = subprocess.run([BINARY, arguments[0], "--model", str(ARITH), *arguments[1:]], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2, done.stderr
    lines = [line for line in done.stderr.splitlines() if line.startswith("tandem:")]
    assert len(lines) == 1 and expected in lines[0], done.stderr
