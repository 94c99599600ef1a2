"""Settings that differ end both sides of a start: status 2, and one line with the key, both values and both hosts."""

import contextlib
import os
import pathlib
import socket
import subprocess
import threading

import pytest

from tests.conftest import ARITH, BINARY, FfnRank, TandemServer
from tests.failure import fake_peer
from tests.golden import wire

FIXTURES = pathlib.Path(__file__).resolve().parents[1] / "fixtures"
HANG_S = 60  # a hang, not a wait: loading takes seconds on a busy machine


def free_address(transport, directory):
    if transport == "shm":
        return f"shm://{directory}/ffn.sock"
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"tcp://127.0.0.1:{probe.getsockname()[1]}"


class Side:
    def __init__(self, arguments, directory, environment=None):
        self.log_path = directory / f"{arguments[0]}.log"
        self.log = self.log_path.open("w")
        self.process = subprocess.Popen([BINARY, *arguments], stdout=subprocess.PIPE, stderr=self.log, text=True,
                                        env={**os.environ, **(environment or {})})

    def wait_for(self, word):
        for line in self.process.stdout:
            if line.startswith(word):
                return line
        raise AssertionError(f"no {word}: {self.log_path.read_text()}")

    def end(self):
        """(status, the one line that says why)."""
        status = self.process.wait(HANG_S)
        lines = [line for line in self.log_path.read_text().splitlines() if line.startswith("tandem: ")]
        assert len(lines) == 1, self.log_path.read_text()
        return status, lines[0]

    def close(self):
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()
        self.log.close()


@contextlib.contextmanager
def two_sides(transport, first, directory, ffn=(), attention=(), both=(), ffn_model=ARITH, ffn_environment=None):
    address = free_address(transport, directory)
    commands = {
        "ffn": (["ffn", "--model", str(ffn_model), "--listen", address, *both, *ffn], ffn_environment),
        "attention": (["attention", "--model", str(ARITH), "--ffn", address, "--port", "0", *both, *attention], None),
    }
    sides = {}
    try:
        for name in (first, "attention" if first == "ffn" else "ffn"):
            arguments, environment = commands[name]
            sides[name] = Side(arguments, directory, environment)
            if len(sides) == 1:
                sides[name].wait_for("ready" if name == "ffn" else "listening")
        yield sides
    finally:
        for side in sides.values():
            side.close()


CASES = {
    "gate": (dict(ffn=["--compute-gate-on-attention"]), "gate", "attention", "ffn"),
    "shared": (dict(attention=["--compute-shared-experts-on-attention", "true"]), "shared_experts", "ffn", "attention"),
    "routing": (dict(ffn=["--balanced-routing"]), "routing", "balanced", "model"),
    "token-ids": (dict(ffn=["--send-token-ids"]), "token_ids", "yes", "no"),
    "compute-dtype": (dict(attention=["--compute-dtype", "float32"]), "compute_dtype", "bf16", "f32"),
    "weights": (dict(ffn=["--weights", "dequantized"]), "weights", "dequantized", "as stored"),
    "activation-dtype": (dict(both=["--compute-gate-on-attention"], ffn=["--activation-dtype", "fp8"]), "activation_dtype", "fp8", "bf16"),
    "deterministic": (dict(ffn=["--deterministic"]), "deterministic", "yes", "no"),
    "model": (dict(ffn_model=FIXTURES / "mixtral"), "hidden_size", "48", "128"),
    "numerics": (dict(both=["--deterministic"], ffn_environment={"TANDEM_ISA": "scalar"}), "numerics_id", None, None),
}


def check_line(line, key, ffn_value, attention_value):
    host = socket.gethostname()
    assert f"{key} is " in line, line
    assert f"FFN rank 0 ({host}:" in line and f"attention rank 0 ({host}:" in line, line
    if ffn_value is not None:
        assert f"{ffn_value} on FFN rank 0 ({host}:" in line and f"{attention_value} on attention rank 0 ({host}:" in line, line
    assert "both sides" in line, line


@pytest.mark.parametrize("case", CASES)
def test_both_sides_end_with_status_2_and_one_line(case, tmp_path):
    difference, key, ffn_value, attention_value = CASES[case]
    if key == "numerics_id" and "CPU runs scalar)" in subprocess.run([BINARY, "doctor"], capture_output=True, text=True).stdout:
        pytest.skip("this CPU has one kind of kernels")
    with two_sides("tcp", "ffn", tmp_path, **difference) as sides:
        for name in ("attention", "ffn"):
            status, line = sides[name].end()
            assert status == 2, line
            check_line(line, key, ffn_value, attention_value)


@pytest.mark.parametrize("first", ("ffn", "attention"))
@pytest.mark.parametrize("transport", ("tcp", "shm"))
def test_in_either_order_over_either_transport(transport, first, tmp_path):
    with two_sides(transport, first, tmp_path, attention=["--compute-gate-on-attention"]) as sides:
        for name in ("attention", "ffn"):
            status, line = sides[name].end()
            assert status == 2, line
            check_line(line, "gate", "ffn", "attention")


def other_slots(transport):
    """The first bytes of a peer whose slots are twice as large, as a model of another size makes them."""
    terms = {"slot_bytes": 2 * 262144, "carrier": 1 if transport == "ucx" else 0}
    return wire.carrier_hello(**terms) if transport == "shm" else fake_peer.stream_hello(**terms)


def check_slots(side, address):
    status, line = side.end()
    assert status == 2, line
    assert "slot_bytes differs: 262144 at " in line and "(this side), 524288 at " in line and address in line, line
    assert "load the same model folder on both sides" in line, line


@pytest.mark.parametrize("transport", ("tcp", "ucx", "shm"))
def test_slots_of_another_size_end_an_ffn_rank(transport, tmp_path):
    listen = f"shm://{tmp_path}/ffn.sock" if transport == "shm" else f"{transport}://127.0.0.1:0"
    side = Side(["ffn", "--model", str(ARITH), "--listen", listen], tmp_path)
    try:
        address = side.wait_for("ready").split()[1]
        where = address.split("://")[1]
        kind = (socket.AF_UNIX, socket.SOCK_SEQPACKET) if transport == "shm" else (socket.AF_INET, socket.SOCK_STREAM)
        with socket.socket(*kind) as peer:
            peer.connect(where if transport == "shm" else (where.split(":")[0], int(where.split(":")[1])))
            peer.sendall(other_slots(transport))
            check_slots(side, address)
    finally:
        side.close()


@pytest.mark.parametrize("transport", ("tcp", "ucx", "shm"))
def test_slots_of_another_size_end_attention(transport, tmp_path):
    if transport == "shm":
        server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        server.bind(str(tmp_path / "ffn.sock"))
        server.listen()
        address = f"shm://{tmp_path}/ffn.sock"
    else:
        server = socket.create_server(("127.0.0.1", 0))
        address = f"{transport}://127.0.0.1:{server.getsockname()[1]}"
    with server:
        side = Side(["attention", "--model", str(ARITH), "--ffn", address, "--port", "0"], tmp_path)
        try:
            server.settimeout(HANG_S)
            peer, _ = server.accept()
            with peer:
                peer.sendall(other_slots(transport))
                check_slots(side, address)
        finally:
            side.close()


def misfit_attention(address, directory):
    side = Side(["attention", "--model", str(ARITH), "--ffn", address, "--port", "0", "--compute-gate-on-attention"], directory)
    try:
        status, line = side.end()
        assert status == 2 and "gate is ffn on FFN rank 0" in line, line
    finally:
        side.close()


def test_a_rank_that_has_served_stays_and_its_clients_with_it(tmp_path):
    ffn = FfnRank("tcp://127.0.0.1:0", tmp_path)
    attention = TandemServer(["attention", "--model", str(ARITH), "--ffn", ffn.address, "--port", "0"], tmp_path)
    (tmp_path / "misfit").mkdir()
    try:
        attention.wait_ready()
        ask = {"model": "arith", "prompt": "2+2=", "max_tokens": 8, "temperature": 0}
        before = attention.request("POST", "/v1/completions", ask)
        assert before.status == 200
        misfit_attention(ffn.address, tmp_path / "misfit")
        after = attention.request("POST", "/v1/completions", ask)
        assert after.status == 200 and after.json()["choices"] == before.json()["choices"]
        attention.stop()
        misfit_attention(ffn.address, tmp_path / "misfit")  # nobody is there now, but somebody was
        assert ffn.process.poll() is None
        ffn.log.flush()
        assert "gate is ffn on FFN rank 0" in pathlib.Path(ffn.log.name).read_text()
    finally:
        if attention.process.poll() is None:
            attention.stop()
        ffn.close()


def test_keep_serving_outlives_a_first_client_that_does_not_fit(tmp_path):
    ffn = FfnRank("tcp://127.0.0.1:0", tmp_path, "--keep-serving")
    (tmp_path / "misfit").mkdir()
    try:
        misfit_attention(ffn.address, tmp_path / "misfit")
        attention = TandemServer(["attention", "--model", str(ARITH), "--ffn", ffn.address, "--port", "0"], tmp_path)
        attention.wait_ready()
        assert attention.stop() == 0
        assert ffn.process.poll() is None
    finally:
        ffn.close()


def refused_text(connection):
    message = connection.receive()
    assert message[8] == fake_peer.REFUSE
    return fake_peer.payload(message, fake_peer.ERROR_TEXT).decode()


@pytest.mark.parametrize("what", ("setting", "frame"))
def test_an_ffn_rank_ends_when_attention_speaks_another_protocol(what, tmp_path):
    """The version as a setting of the hello (a minor difference), and in the frame's header (a major one)."""
    side = Side(["ffn", "--model", str(ARITH), "--listen", "tcp://127.0.0.1:0"], tmp_path)
    try:
        connection = fake_peer.connect(side.wait_for("ready").split()[1])
        lines = [*fake_peer.identity("attention"), ("protocol", "9.5")]
        connection.send(fake_peer.settings_frame(fake_peer.HELLO, lines, major=9 if what == "frame" else 1))
        expected = "protocol is 1.0 on FFN rank 0" if what == "setting" else "protocol 9.0 there, 1.0 here"
        assert expected in refused_text(connection)
        status, line = side.end()
        assert status == 2 and expected in line, line
        assert ("9.5 on attention rank 0 (elsewhere:1)" if what == "setting" else "127.0.0.1:") in line
        assert f"FFN rank 0 ({socket.gethostname()}:" in line and "same release" in line
    finally:
        side.close()


@pytest.mark.parametrize("what", ("setting", "frame"))
def test_attention_ends_when_its_ffn_rank_speaks_another_protocol(what, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as server:
        refusals = []

        def answer():
            connection = fake_peer.Connection(server.accept()[0], greets_first=False)
            hello = fake_peer.payload(connection.receive(), fake_peer.SETTINGS).decode()
            settings = [line.split("=", 1) for line in hello.splitlines() if not line.startswith("peer.")]
            settings = [(key, "9.5" if key == "protocol" else value) for key, value in settings]
            connection.send(fake_peer.settings_frame(fake_peer.HELLO_ACK, [*fake_peer.identity("ffn"), *settings],
                                                     major=9 if what == "frame" else 1, session=3, incarnation=7))
            with contextlib.suppress(EOFError):
                refusals.append(refused_text(connection))

        thread = threading.Thread(target=answer)
        thread.start()
        address = f"tcp://127.0.0.1:{server.getsockname()[1]}"
        side = Side(["attention", "--model", str(ARITH), "--ffn", address, "--port", "0"], tmp_path)
        try:
            status, line = side.end()
            thread.join(HANG_S)
            assert status == 2 and address in line, line
            if what == "setting":
                assert "protocol is 1.0 on attention rank 0" in line and "9.5 on FFN rank 0 (elsewhere:1)" in line, line
                assert "also different" not in line
                assert refusals and "9.5 on FFN rank 0" in refusals[0], "the other side must be able to end as well"
            else:
                assert "protocol 9.0 there, 1.0 here: run the same release" in line, line
        finally:
            side.close()
