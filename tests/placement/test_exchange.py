"""FFN ranks that exchange rows equal colocated, bit for bit in deterministic mode: {gate} x {shared experts} x {allgather,
alltoall} x {p2p, auto, m2n} for each model; number of ranks and transport go round, so that each meets every connector."""

import itertools
import json
import random
import subprocess

import pytest

from tests.conftest import ARITH, BINARY, ROOT

MODELS = {"arith": ARITH, "deepseek_v3": ROOT / "tests" / "fixtures" / "deepseek_v3"}
SHAPES = ((1, 2), (1, 3), (2, 2))
TRANSPORTS = ("shm", "tcp", "ucx", "inproc")


def cells():
    """(connector, exchange, gate on attention, shared experts on attention, (attention ranks, FFN ranks), transport)"""
    wanted = list(itertools.product(("p2p", "auto"), ("alltoall", "allgather"), (False, True), (False, True)))
    wanted += [("m2n", "auto", True, shared) for shared in (False, True)]
    return [(*cell, SHAPES[i % 3], TRANSPORTS[i // 2 % 4]) for i, cell in enumerate(wanted)]


@pytest.fixture(scope="module")
def prompts(tmp_path_factory):
    files = {}
    for name, folder in MODELS.items():
        vocab = json.loads((folder / "config.json").read_text())["vocab_size"]
        rng = random.Random(11)
        files[name] = tmp_path_factory.mktemp("prompts") / f"{name}.jsonl"
        lines = [json.dumps({"prompt_ids": [rng.randrange(vocab) for _ in range(length)]}) for length in (1, 2, 7, 17, 33, 48, 64)]
        files[name].write_text("\n".join(lines) + "\n")
    return files


def generate(model, prompts, *flags):
    command = [BINARY, "generate", "--model", str(MODELS[model]), "--prompts-file", str(prompts[model]), "--deterministic", "--json",
               "--ignore-eos", "--max-tokens", "5", "--max-context-tokens", "96", "--threads", "1", "--log-level", "error", *flags]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def colocated(prompts):
    return {model: generate(model, prompts)["logits_hash"] for model in MODELS}


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("connector,exchange,gate,shared,shape,transport", cells())
def test_exchanged_rows_equal_colocated(model, connector, exchange, gate, shared, shape, transport, prompts, colocated):
    attention, ffn = shape
    split = generate(model, prompts, "--attention", str(attention), "--ffn", str(ffn), "--transport", transport, "--connector", connector,
                     "--exchange", exchange, f"--compute-gate-on-attention={str(gate).lower()}",
                     f"--compute-shared-experts-on-attention={str(shared).lower()}")
    assert [rank["role"] for rank in split["ranks"]] == ["attention"] * attention + ["ffn"] * ffn
    assert split["logits_hash"] == colocated[model]


GRAPH = ("--execution", "graph", "--capture-sizes", "2,8", "--micro-batches", "2")


def graph_cells():
    """(model, exchange, placement of the experts, gate on attention, (attention ranks, FFN ranks), transport), under p2p"""
    wanted = itertools.product(("alltoall", "allgather"), ("expert", "slice"), (False, True))
    return [(tuple(MODELS)[i % 2], *cell, SHAPES[i % 3], TRANSPORTS[i % 4]) for i, cell in enumerate(wanted)]


@pytest.mark.parametrize("model,exchange,placement,gate,shape,transport", graph_cells())
def test_replayed_exchange_equals_colocated(model, exchange, placement, gate, shape, transport, prompts, colocated):
    """Seven prompts on two lanes: most steps are padded in the program of eight, the last ones fit the one of two."""
    attention, ffn = shape
    split = generate(model, prompts, "--attention", str(attention), "--ffn", str(ffn), "--transport", transport, "--connector", "p2p",
                     "--exchange", exchange, "--placement", placement, f"--compute-gate-on-attention={str(gate).lower()}", *GRAPH)
    assert split["logits_hash"] == colocated[model]
    if attention == 1:  # a front does not know how its ranks' steps ran
        assert split["execution"]["graph_replays"] > 0 and split["execution"]["graph_misses"] == 0


def free_port_addresses(transport, count, directory):
    if transport == "shm":
        return [f"shm://{directory}/ffn{rank}.sock" for rank in range(count)]
    import socket

    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return [f"tcp://127.0.0.1:{port}" for port in ports]


@pytest.mark.parametrize("order", ("ffn first", "attention first"))
@pytest.mark.parametrize("transport", ("shm", "tcp"))
def test_one_file_starts_every_role_by_hand_in_either_order(order, transport, prompts, colocated, tmp_path):
    """The FFN ranks know each other by the list that attention reads, and each listens at its own entry of it."""
    addresses = free_port_addresses(transport, 2, tmp_path)
    config = tmp_path / "cluster.yaml"
    config.write_text("engine:\n  deterministic: true\n  threads: 1\nafd:\n  connector: p2p\n  ffn: [" + ", ".join(addresses) + "]\n")
    from tests.conftest import TandemServer

    def start_ffn(rank):
        return subprocess.Popen([BINARY, "ffn", "--model", str(ARITH), "--config", str(config), "--ffn-rank", str(rank), "--json"],
                                stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)

    def start_attention():
        return TandemServer(["attention", "--model", str(ARITH), "--config", str(config), "--port", "0"], tmp_path)

    ranks, server = [], None
    try:
        if order == "attention first":
            server = start_attention()
        ranks = [start_ffn(1), start_ffn(0)]
        for rank, process in zip((1, 0), ranks):
            facts = json.loads(process.stdout.readline())
            assert (facts["rank"], facts["address"]) == (rank, addresses[rank])
        server = (server or start_attention()).wait_ready()
        body = {"model": "arith", "prompt": "Tom has 3 apples and", "max_tokens": 8, "temperature": 0}
        assert server.request("POST", "/v1/completions", body).status == 200
    finally:
        if server is not None:
            server.stop()
        for process in ranks:
            process.terminate()
            process.wait(60)
            process.stdout.close()
