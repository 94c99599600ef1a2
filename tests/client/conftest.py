"""`tandem ffn` processes for clients, and numpy's own computation of the experts that they hold."""

import json
import pathlib
import signal
import socket
import struct
import subprocess
import sys
import time

import numpy as np
import pytest

from tests.client.installation import Installation
from tests.conftest import ARITH, BINARY, ROOT, send_signal

sys.path.insert(0, str(ROOT / "client" / "python"))

FIXTURES = ROOT / "tests" / "fixtures"
MODELS = {"arith": ARITH, **{name: FIXTURES / name for name in ("deepseek_v2_lite", "deepseek_v3", "qwen3_moe", "mixtral")}}


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def needs(flag):
    """Skips a test where `tandem ffn` does not know a flag."""
    known = subprocess.run([BINARY, "ffn", "--help"], capture_output=True, text=True, check=False).stdout
    return pytest.mark.skipif(flag not in known, reason=f"this tandem has no {flag}")


class Pool:
    """The FFN ranks of a deployment, over tcp. `port`: of the only rank; 0: the system's choice."""

    def __init__(self, model, directory, *flags, ranks=1, port=0):
        self.model, self.processes = MODELS[model], []
        addresses = [f"tcp://127.0.0.1:{port}"] if ranks == 1 else [f"tcp://127.0.0.1:{free_port()}" for _ in range(ranks)]
        try:
            for rank, address in enumerate(addresses):
                several = ["--num-ffn-ranks", str(ranks), "--ffn-rank", str(rank), "--ffn", ",".join(addresses)] if ranks > 1 else []
                self.log = directory / f"ffn-{time.monotonic_ns()}.log"
                command = [BINARY, "ffn", "--model", str(self.model), "--listen", address, "--json", "--threads", "1", *several, *flags]
                with self.log.open("w") as log:
                    self.processes.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True))
            self.addresses = [json.loads(process.stdout.readline())["address"] for process in self.processes]
        except BaseException:
            self.close()
            raise
        self.address = ",".join(self.addresses)

    def signal(self, number, rank=0):
        send_signal(self.processes[rank], number)

    def close(self):
        for process in self.processes:
            process.send_signal(signal.SIGCONT)  # a stopped one cannot end
            process.kill()
            process.wait()
            process.stdout.close()


@pytest.fixture(scope="session")
def pool(tmp_path_factory):
    """pool(model, *flags, ranks=1): shared by all who ask for the same one; nobody may harm it."""
    pools = {}

    def start(model, *flags, ranks=1):
        key = (model, ranks, *flags)
        if key not in pools:
            pools[key] = Pool(model, tmp_path_factory.mktemp("pool"), *flags, ranks=ranks)
        return pools[key]

    yield start
    for one in pools.values():
        one.close()


@pytest.fixture
def own_pool(tmp_path):
    """The same, for a test that ends, stops or spoils it."""
    pools = []

    def start(model, *flags, ranks=1, port=0):
        pools.append(Pool(model, tmp_path, *flags, ranks=ranks, port=port))
        return pools[-1]

    yield start
    for one in pools:
        one.close()


@pytest.fixture(scope="session")
def installed(tmp_path_factory):
    """libtandem_client and the C programs."""
    return Installation(tmp_path_factory.mktemp("installed"))


class Weights:
    """Tensors of a checkpoint in float64, by name."""

    def __init__(self, folder):
        self._tensors = {}
        for path in sorted(pathlib.Path(folder).glob("model*.safetensors")):
            data = path.read_bytes()
            length = struct.unpack("<Q", data[:8])[0]
            for name, entry in json.loads(data[8:8 + length]).items():
                if name != "__metadata__":
                    begin, end = entry["data_offsets"]
                    self._tensors[name] = (entry["dtype"], entry["shape"], data[8 + length + begin:8 + length + end])

    def __getitem__(self, name):
        dtype, shape, data = self._tensors[name]
        if dtype == "BF16":
            return (np.frombuffer(data, "<u2").astype(np.uint32) << 16).view(np.float32).reshape(shape).astype(np.float64)
        assert dtype == "F32", dtype
        return np.frombuffer(data, "<f4").reshape(shape).astype(np.float64)

    def __contains__(self, name):
        return name in self._tensors


def mlp(rows, gate, up, down):
    inner = rows @ gate.T
    return (inner / (1 + np.exp(-inner)) * (rows @ up.T)) @ down.T


def expected_sums(weights, layer, rows, ids, scores, shared):
    """What the experts make of rows [rows, hidden] with a final routing [rows, top_k], in float64; `shared`: with the shared experts."""
    prefix = f"model.layers.{layer}."
    out = np.zeros_like(rows, np.float64)
    for row in range(len(rows)):
        for expert, weight in zip(ids[row], scores[row], strict=True):
            if f"{prefix}block_sparse_moe.experts.{expert}.w1.weight" in weights:
                names = [f"{prefix}block_sparse_moe.experts.{expert}.{part}.weight" for part in ("w1", "w3", "w2")]
            else:
                names = [f"{prefix}mlp.experts.{expert}.{part}_proj.weight" for part in ("gate", "up", "down")]
            out[row] += weight * mlp(rows[row:row + 1], *(weights[name] for name in names))[0]
    if shared and f"{prefix}mlp.shared_experts.up_proj.weight" in weights:
        out += mlp(rows, *(weights[f"{prefix}mlp.shared_experts.{part}_proj.weight"] for part in ("gate", "up", "down")))
    return out
