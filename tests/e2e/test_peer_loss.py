"""The FFN process is killed under load: every open request ends with an error that names it, health says degraded, and a
restarted one is taken back without restarting attention."""

import subprocess
import threading
import time

import openai
import pytest

from conftest import ARITH, BINARY, START_LIMIT_S, TandemServer
from e2e.conftest import MODEL, QUESTION, make_client, user


class FfnProcess:
    def __init__(self, address, directory):
        self.log = (directory / "ffn.log").open("a")
        self.process = subprocess.Popen([BINARY, "ffn", "--model", str(ARITH), "--listen", address, "--log-level", "warning"],
                                        stdout=subprocess.PIPE, stderr=self.log, text=True)
        watchdog = threading.Timer(START_LIMIT_S, self.process.kill)
        watchdog.start()
        self.address = next((line.split()[1] for line in self.process.stdout if line.startswith("ready ")), None)
        watchdog.cancel()
        assert self.address, (directory / "ffn.log").read_text()

    def kill(self):
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()
        self.log.close()


@pytest.fixture
def split(tmp_path, request):
    ffn = FfnProcess("tcp://127.0.0.1:0" if request.param == "tcp" else f"shm://{tmp_path}/ffn.sock", tmp_path)
    server = TandemServer(["attention", "--model", str(ARITH), "--ffn", ffn.address, "--port", "0", "--log-level", "error"], tmp_path)
    parts = {"ffn": ffn, "server": server}
    try:
        server.wait_ready()
        yield parts
    finally:
        parts["ffn"].kill()
        server.stop()


def wait_health(server, status):
    deadline = time.monotonic() + 60
    while (reply := server.request("GET", "/health")).status != status:
        assert time.monotonic() < deadline, reply.body
        time.sleep(0.02)
    return reply.json()


@pytest.mark.parametrize("split", ["tcp", "shm"], indirect=True)
def test_a_killed_ffn_process(split, tmp_path):
    server, address = split["server"], split["ffn"].address
    client = make_client(server)

    def ask():
        return client.chat.completions.create(model=MODEL, messages=user(QUESTION), temperature=0).choices[0].message.content

    before = ask()
    errors, took, started = {}, {}, threading.Barrier(9)
    killed_at = [None]

    def run(i):
        fields = {"model": MODEL, "prompt": "7", "max_tokens": 2000, "extra_body": {"ignore_eos": True}}
        try:
            if i % 2 == 0:
                stream = client.completions.create(**fields, stream=True)
                next(stream)
                started.wait(60)
                for _ in stream:
                    pass
            else:
                started.wait(60)
                client.completions.create(**fields)
        except openai.APIError as error:
            errors[i] = error
            took[i] = time.monotonic() - killed_at[0]

    threads = [threading.Thread(target=run, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    started.wait(60)
    server.wait_metrics(lambda metrics: metrics["tandem_requests_running"] == 8)
    killed_at[0] = time.monotonic()
    split["ffn"].process.kill()
    for thread in threads:
        thread.join(60)
    print("slowest end after the kill:", f"{max(took.values()) * 1e3:.0f} ms")
    assert sorted(errors) == list(range(8)), "every open request ends with an error"
    for i, error in errors.items():
        assert address in str(error), (i, error)
        if i % 2 == 1:
            assert isinstance(error, openai.InternalServerError) and error.status_code == 503

    degraded = wait_health(server, 503)
    assert degraded["status"] == "degraded" and address in degraded["reason"]
    with pytest.raises(openai.InternalServerError) as caught:
        ask()
    assert caught.value.status_code == 503 and address in str(caught.value)
    metrics = server.metrics()
    assert metrics["tandem_requests_running"] == metrics["tandem_kv_blocks_used"] == metrics["tandem_engine_healthy"] == 0

    split["ffn"].kill()
    split["ffn"] = FfnProcess(address, tmp_path)
    assert wait_health(server, 200) == {"status": "ok"}
    assert ask() == before
