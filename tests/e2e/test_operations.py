"""What an operator sets: API keys, TLS, web pages (CORS), limits of bodies, readiness, request ids, an end that lets replies end."""

import json
import shutil
import signal
import ssl
import subprocess
import threading
import time
import urllib.error
import urllib.request

import anthropic
import openai
import pytest

from tests.conftest import ARITH, BINARY, WAIT_LIMIT_S, TandemServer
from tests.e2e.conftest import MODEL, user

CHAT = {"model": MODEL, "messages": user("7"), "max_tokens": 3}


@pytest.fixture(scope="module")
def guarded(tmp_path_factory):
    folder = tmp_path_factory.mktemp("keys")
    (folder / "keys").write_text("# of the team\nteam-key\n\nother-key  \n")
    server = TandemServer(["serve", "--model", str(ARITH), "--port", "0", "--log-level", "warning", "--api-key-file", str(folder / "keys"),
                           "--allowed-origins", "https://chat.example.org,http://localhost:3000", "--max-body-bytes", "4096"],
                          folder, environment={"TANDEM_API_KEY": "mine,yours"})
    yield server.wait_ready()
    assert server.stop() == 0


@pytest.mark.parametrize("key", ["team-key", "other-key", "mine", "yours"])
def test_keys(guarded, key):
    client = openai.OpenAI(base_url=f"{guarded.url}/v1", api_key=key, max_retries=0)
    assert client.chat.completions.create(**CHAT).choices
    messages = anthropic.Anthropic(base_url=guarded.url, api_key=key, max_retries=0)
    assert messages.messages.create(**CHAT).content


@pytest.mark.parametrize("key", ["team-ke", "team-key2", "# of the team", "mine,yours", "x", "team-keyteam-key"])
def test_wrong_keys(guarded, key):
    with pytest.raises(openai.AuthenticationError) as caught:
        openai.OpenAI(base_url=f"{guarded.url}/v1", api_key=key, max_retries=0).chat.completions.create(**CHAT)
    assert caught.value.code == "invalid_api_key" and "Authorization: Bearer" in caught.value.message
    with pytest.raises(anthropic.AuthenticationError) as caught:
        anthropic.Anthropic(base_url=guarded.url, api_key=key, max_retries=0).messages.create(**CHAT)
    assert caught.value.body["error"]["type"] == "authentication_error"


def test_a_prefix_cache_outlives_a_crash(tmp_path):
    """The file is written while the server runs."""
    def start(name):
        (tmp_path / name).mkdir()
        return TandemServer(["serve", "--model", str(ARITH), "--port", "0", "--log-level", "warning", "--prefix-cache-dir", str(tmp_path / "kept"),
                             "--prefix-cache-save-interval-s", "1"], tmp_path / name).wait_ready()

    def ask(server):
        body = {"model": MODEL, "prompt": "Tom has 12 apples. " * 12, "max_tokens": 4, "temperature": 0, "logprobs": 1}
        reply = server.request("POST", "/v1/completions", body).json()
        return reply["choices"][0], reply["usage"]["prompt_tokens_details"]["cached_tokens"]

    first = start("first")
    computed, cached = ask(first)
    assert cached == 0
    end = time.monotonic() + WAIT_LIMIT_S
    while not list((tmp_path / "kept").glob("*.prefixes")):
        assert time.monotonic() < end, first.describe()
        time.sleep(0.05)
    first.process.kill()
    first.process.wait()
    second = start("second")
    again, cached = ask(second)
    assert cached > 0 and again == computed
    assert second.stop() == 0


def test_what_needs_a_key(guarded):
    for path in ("/health", "/ready", "/metrics"):
        assert guarded.request("GET", path).status == 200, path
    for method, path in (("GET", "/v1/models"), ("GET", "/props"), ("GET", "/openapi.json"), ("POST", "/tokenize"), ("GET", "/nothing"),
                         ("GET", "/health/x")):
        reply = guarded.request(method, path, {} if method == "POST" else None)
        assert reply.status == 401 and reply.headers["www-authenticate"] == "Bearer", path
    assert guarded.request("GET", "/v1/models", headers={"authorization": "BEARER mine"}).status == 200
    assert guarded.request("GET", "/v1/models", headers={"authorization": "Basic mine"}).status == 401
    assert guarded.request("GET", "/v1/models", headers={"authorization": "Bearer "}).status == 401


def test_cors(guarded):
    asked = {"origin": "https://chat.example.org", "access-control-request-method": "POST",
             "access-control-request-headers": "authorization,content-type,x-stainless-os"}
    reply = guarded.request("OPTIONS", "/v1/chat/completions", headers=asked)
    assert reply.status == 204 and reply.body == "" and "content-length" not in reply.headers
    assert reply.headers["access-control-allow-origin"] == asked["origin"] and reply.headers["vary"] == "origin"
    assert reply.headers["access-control-allow-headers"] == asked["access-control-request-headers"]
    assert "POST" in reply.headers["access-control-allow-methods"]
    key = {"authorization": "Bearer mine"}
    assert guarded.request("GET", "/v1/models", headers={**key, "origin": "http://localhost:3000"}).headers[
        "access-control-allow-origin"] == "http://localhost:3000"
    # A page must be able to read why it was refused, and others must not read anything.
    assert guarded.request("GET", "/v1/models", headers={"origin": "http://localhost:3000"}).headers["access-control-allow-origin"]
    for origin in ("https://evil.example.org", "null", "https://chat.example.org.evil.org"):
        assert "access-control-allow-origin" not in guarded.request("GET", "/v1/models", headers={**key, "origin": origin}).headers
        assert guarded.request("OPTIONS", "/v1/models", headers={**asked, "origin": origin}).status == 401


def test_large_bodies(guarded):
    reply = guarded.request("POST", "/v1/messages", {"messages": "x" * 5000}, headers={"authorization": "Bearer mine"})
    assert reply.status == 413 and reply.json()["error"]["type"] == "request_too_large"
    assert guarded.request("POST", "/v1/completions", {"prompt": "x" * 5000}).json()["error"]["message"].startswith("the body is larger than 4096")


def test_request_ids(server):
    assert server.request("GET", "/health", headers={"x-request-id": "abc-1"}).headers["x-request-id"] == "abc-1"
    made = {server.request("GET", "/health").headers["x-request-id"] for _ in range(3)}
    assert len(made) == 3 and all(name.startswith("req-") for name in made)


def test_ready(server):
    assert server.request("GET", "/ready").json() == {"status": "ready"}


def make_certificate(folder):
    openssl = shutil.which("openssl")
    assert openssl, "scripts/install.sh --tests installs it"
    certificate, key = folder / "cert.pem", folder / "key.pem"
    subprocess.run([openssl, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", str(key), "-out", str(certificate), "-days", "2",
                    "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"], check=True, capture_output=True)
    return certificate, key


def eventually(holds):
    deadline = time.monotonic() + WAIT_LIMIT_S
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_keys_and_certificate_are_read_again(tmp_path):
    certificate, key = make_certificate(tmp_path)
    keys = tmp_path / "keys"
    keys.write_text("first\n")
    server = TandemServer(["serve", "--model", str(ARITH), "--port", "0", "--api-key-file", str(keys), "--ssl-certfile", str(certificate),
                           "--ssl-keyfile", str(key)], tmp_path).wait_ready()
    address = ("127.0.0.1", int(server.url.rsplit(":", 1)[1]))
    unchecked = ssl.create_default_context()
    unchecked.check_hostname, unchecked.verify_mode = False, ssl.CERT_NONE

    def status(key):
        request = urllib.request.Request(f"{server.url}/v1/models", headers={"authorization": f"Bearer {key}"})
        try:
            return urllib.request.urlopen(request, context=unchecked, timeout=60).status
        except urllib.error.HTTPError as error:
            return error.code

    try:
        before = ssl.get_server_certificate(address)
        assert status("first") == 200 and status("second") == 401
        keys.write_text("second key\nsecond\n")
        eventually(lambda: status("second") == 200)
        assert status("first") == 401
        keys.write_text("# none is left\n")
        eventually(lambda: "stay as they were" in server.describe())
        assert status("second") == 200, "what cannot be used changes nothing"
        keys.write_text("third\n")
        make_certificate(tmp_path)
        eventually(lambda: ssl.get_server_certificate(address) != before)
        eventually(lambda: status("third") == 200)
    finally:
        assert server.stop() == 0


def test_settings_are_read_again(tmp_path):
    """At SIGHUP the file is: what can be taken is, all or none, and flags still go before it."""
    file = tmp_path / "tandem.yaml"

    def ask():
        body = {"model": MODEL, "prompt": "7", "max_tokens": 400, "ignore_eos": True, "temperature": 0}
        return server.request("POST", "/v1/completions", body, headers=key).status

    def reread(text, said):
        before = server.log_path.stat().st_size
        file.write_text(text)
        server.process.send_signal(signal.SIGHUP)
        eventually(lambda: said in server.log_path.read_text()[before:])

    key = {"authorization": "Bearer one"}
    file.write_text("engine: {log_level: error}\nserving: {api_key: one, drain_s: 3}\n")
    server = TandemServer(["serve", "--model", str(ARITH), "--port", "0", "--config", str(file), "--drain-s", "20"], tmp_path).wait_ready()
    try:
        assert ask() == 200
        reread("engine: {log_level: warning}\nserving: {api_key: two, drain_s: 4, request_timeout_s: 0.001}\n",
               "engine.log_level error, now warning; serving.api_key; serving.request_timeout_s 0, now 0.001\n")
        assert "two" not in server.log_path.read_text(), "a key is no matter of a log"
        assert ask() == 401
        key = {"authorization": "Bearer two"}
        assert ask() in (429, 504)
        reread("serving: {api_key: three, max_num_seqs: 3}\n", "settings stay as they were: serving.max_num_seqs 64, now 3: this needs a restart")
        assert ask() in (429, 504), "none of it was taken"
        reread("serving: [\n", "settings stay as they were: ")
        reread("serving: {api_key: two, api_key_file: /nowhere}\n", "settings stay as they were: serving.api_key_file: ")
        assert ask() in (429, 504)
        reread("serving: {api_key: two}\n", "serving.request_timeout_s 0.001, now 0\n")
        assert ask() == 200
        reread("serving: {api_key: two}\n", "nothing has changed")
    finally:
        assert server.stop() == 0


def test_ranks_read_their_settings_again_and_others_end(tmp_path):
    file = tmp_path / "tandem.yaml"
    file.write_text("serving: {max_num_seqs: 8}\n")
    server = TandemServer(["ffn", "--model", str(ARITH), "--config", str(file), "--listen", f"shm://{tmp_path}/ffn"], tmp_path)
    try:
        eventually(lambda: any(line.startswith("ready ") for line in server.stdout))
        # The other role's settings may change.
        file.write_text("engine: {log_level: error}\nserving: {max_num_seqs: 9}\n")
        server.process.send_signal(signal.SIGHUP)
        eventually(lambda: "settings were read again: engine.log_level info, now error\n" in server.describe())
    finally:
        assert server.stop() == 0
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # under nohup it would be ignored here and in children
    try:
        without = TandemServer(["serve", "--model", str(ARITH), "--port", "0", "--log-level", "warning"], tmp_path).wait_ready()
    finally:
        signal.signal(signal.SIGHUP, before)
    without.process.send_signal(signal.SIGHUP)
    without.process.wait(WAIT_LIMIT_S)
    assert without.stop() == -signal.SIGHUP


def test_tls(tmp_path):
    certificate, key = make_certificate(tmp_path)
    server = TandemServer(["serve", "--model", str(ARITH), "--port", "0", "--log-level", "warning", "--ssl-certfile", str(certificate),
                           "--ssl-keyfile", str(key)], tmp_path).wait_ready()
    try:
        assert server.url.startswith("https://")
        trusted = ssl.create_default_context(cafile=str(certificate))

        def post(body):
            request = urllib.request.Request(f"{server.url}/v1/chat/completions", json.dumps(body).encode(), {"content-type": "application/json"})
            with urllib.request.urlopen(request, context=trusted, timeout=60) as reply:
                return reply.read().decode()

        whole = json.loads(post({**CHAT, "temperature": 0}))["choices"][0]["message"]["content"]
        events = [event.removeprefix("data: ") for event in post({**CHAT, "temperature": 0, "stream": True}).split("\n\n")]
        assert events[-2] == "[DONE]"
        assert "".join(json.loads(event)["choices"][0]["delta"].get("content", "") for event in events[:-2]) == whole
        # A large body, many records; and several connections at once.
        with pytest.raises(urllib.error.HTTPError) as caught:
            post({**CHAT, "messages": user("x " * 200000)})
        assert caught.value.code == 400
        threads = [threading.Thread(target=post, args=(CHAT,)) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        with pytest.raises(urllib.error.URLError):
            urllib.request.urlopen(f"{server.url}/health", timeout=60)  # not trusted
        with pytest.raises((urllib.error.URLError, ConnectionError)):
            urllib.request.urlopen(server.url.replace("https", "http") + "/health", timeout=60)  # no TLS
        assert urllib.request.urlopen(f"{server.url}/ready", context=trusted, timeout=60).status == 200
    finally:
        assert server.stop() == 0


@pytest.mark.parametrize(("flags", "part"), [
    (["--ssl-certfile", "/nowhere"], "serving.ssl_certfile: one file without serving.ssl_keyfile"),
    (["--ssl-certfile", "/nowhere", "--ssl-keyfile", "/nowhere"], "serving.ssl_certfile: no certificate can be read from /nowhere"),
    (["--api-key-file", "/nowhere"], "serving.api_key_file: "),
])  # fmt: skip
def test_refused(flags, part):
    ran = subprocess.run([BINARY, "serve", "--model", str(ARITH), "--port", "0", *flags], capture_output=True, text=True, timeout=60)
    assert ran.returncode == 2 and part in ran.stderr, ran.stderr


def test_open_replies_end_before_the_server(tmp_path):
    """SIGTERM while an answer streams: nothing new is taken, the answer comes to its end, the status is 0."""
    server = TandemServer(["serve", "--model", str(ARITH), "--port", "0", "--log-level", "warning", "--drain-s", "60"], tmp_path).wait_ready()
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=60)
    stream = iter(client.completions.create(model=MODEL, prompt="7", max_tokens=300, stream=True, extra_body={"ignore_eos": True}))
    next(stream)
    ended = threading.Thread(target=lambda: statuses.append(server.stop()))
    statuses = []
    ended.start()
    chunks = list(stream)
    assert chunks[-1].choices[0].finish_reason == "length"
    ended.join()
    assert statuses == [0]
    with pytest.raises(openai.APIConnectionError):
        client.models.list()
