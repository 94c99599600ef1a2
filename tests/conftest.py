"""Shared by all Python tests: the binary, and servers that run as long as the tests that use them."""

import http.client
import json
import os
import pathlib
import signal
import subprocess
import threading
import time
import urllib.parse

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[1]
BINARY = os.environ.get("TANDEM_BINARY", str(ROOT / "build" / "tandem"))
ARITH = ROOT / "models" / "arith"

# A hang is a failure, not a wait: loading the bundled model takes seconds even on a busy machine.
START_LIMIT_S = 180
STOP_LIMIT_S = 60
WAIT_LIMIT_S = 60


def pytest_configure(config):
    config.addinivalue_line("markers", "long: takes minutes; run with scripts/test.sh --long")


class Reply:
    def __init__(self, status, headers, body):
        self.status, self.headers, self.body = status, headers, body

    def json(self):
        return json.loads(self.body, parse_constant=lambda name: pytest.fail(f"{name} is not JSON: {self.body[:200]}"))


class TandemServer:
    """A running `tandem`: its URL once it is ready, and raw requests to it."""

    def __init__(self, arguments, directory, environment=None):
        self.arguments = [BINARY, *arguments]
        self.log_path = directory / "stderr.log"
        self.log = self.log_path.open("w")
        self.process = subprocess.Popen(self.arguments, stdout=subprocess.PIPE, stderr=self.log, text=True,
                                        env={**os.environ, **(environment or {})})
        self.stdout = []
        self.url = None
        self.listening_url = None
        self._ready = threading.Event()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self):
        for line in self.process.stdout:
            self.stdout.append(line)
            if line.startswith("listening "):
                self.listening_url = line.split()[1]
            if line.startswith("ready "):
                self.url = line.split()[1]
                self._ready.set()
        self._ready.set()

    def wait_ready(self):
        assert self._ready.wait(START_LIMIT_S), f"not ready: {self.describe()}"
        assert self.url, f"ended before it was ready: {self.describe()}"
        return self

    def describe(self):
        self.log.flush()
        tail = self.log_path.read_text()[-2000:]
        return f"{' '.join(self.arguments)}\nstdout: {''.join(self.stdout)[-1000:]}\nstderr: {tail}"

    def connection(self):
        parts = urllib.parse.urlsplit(self.url or self.listening_url)
        return http.client.HTTPConnection(parts.hostname, parts.port, timeout=120)

    def request(self, method, path, body=None, headers=None):
        """`body`: bytes as they are, or a value that becomes JSON."""
        connection = self.connection()
        try:
            if body is not None and not isinstance(body, bytes):
                body = json.dumps(body).encode()
            connection.request(method, path, body, {"content-type": "application/json", **(headers or {})})
            response = connection.getresponse()
            return Reply(response.status, dict(response.getheaders()), response.read().decode())
        finally:
            connection.close()

    def metrics(self):
        """Samples without labels: name -> value."""
        values = {}
        for line in self.request("GET", "/metrics").body.splitlines():
            if not line.startswith("#") and "{" not in line:
                name, value = line.split()
                values[name] = float(value)
        return values

    def wait_metrics(self, holds):
        """Polls until `holds(metrics)`; these metrics."""
        deadline = time.monotonic() + WAIT_LIMIT_S
        while not holds(metrics := self.metrics()):
            assert time.monotonic() < deadline, f"{metrics}\n{self.describe()}"
        return metrics

    def stop(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            status = self.process.wait(STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise AssertionError(f"did not stop on SIGTERM: {self.describe()}") from None
        finally:
            self._reader.join(STOP_LIMIT_S)
            self.process.stdout.close()
            self.log.close()
        return status


def send_signal(process, number):
    """Sends it; SIGSTOP until all threads stand still: a signal is no call, and meanwhile a request may still be answered."""
    process.send_signal(number)
    if number != signal.SIGSTOP:
        return
    tasks = pathlib.Path(f"/proc/{process.pid}/task")
    while any(task.joinpath("stat").read_text().rpartition(")")[2].split()[0] != "T" for task in tasks.iterdir()):
        time.sleep(0.001)


# What FFN ranks and attention ranks share when there are several FFN ranks.
M2N = ("--connector", "m2n", "--compute-gate-on-attention")


class FfnRank:
    """`tandem ffn` on a given address, as an operator starts it by hand; with `ranks` above 1, one of so many. `prefix`: what to
    start it under."""

    def __init__(self, address, directory, *flags, rank=0, ranks=1, prefix=()):
        if ranks > 1:
            flags = (*M2N, "--num-ffn-ranks", str(ranks), "--ffn-rank", str(rank), *flags)
        self.rank, self.flags = rank, flags
        self.log = (directory / f"ffn-{time.monotonic_ns()}.log").open("w")
        self.process = subprocess.Popen([*prefix, BINARY, "ffn", "--model", str(ARITH), "--listen", address, "--json", *flags],
                                        stdout=subprocess.PIPE, stderr=self.log, text=True)
        self.facts = json.loads(self.process.stdout.readline())
        self.address = self.facts["address"]
        assert self.facts["rank"] == rank

    def kill(self, how=signal.SIGKILL):
        send_signal(self.process, how)

    def close(self):
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()
        self.log.close()


def start_ffn_ranks(transport, count, directory, *flags):
    """All of a deployment, in order of rank."""
    return [FfnRank(f"{transport}://127.0.0.1:0" if transport in ("tcp", "ucx") else f"shm://{directory}/ffn{rank}.sock", directory, *flags,
                    rank=rank, ranks=count) for rank in range(count)]


@pytest.fixture(scope="session")
def tandem_server(tmp_path_factory):
    """tandem_server("serve" | "inproc" | "shm" | "tcp" | "ucx", *flags): a ready server, shared by all who ask for the same one."""
    servers = {}

    def start(placement="serve", *flags, model=ARITH):
        key = (placement, str(model), *flags)
        if key not in servers:
            command = ["serve"] if placement == "serve" else ["up", "--attention", "1", "--ffn", "1", "--transport", placement]
            servers[key] = TandemServer(
                [*command, "--model", str(model), "--port", "0", "--log-level", "warning", *flags],
                tmp_path_factory.mktemp("server"),
            )
        return servers[key].wait_ready()

    yield start
    statuses = {key: server.stop() for key, server in servers.items()}
    assert set(statuses.values()) <= {0}, f"servers must end with status 0 on SIGTERM: {statuses}"
