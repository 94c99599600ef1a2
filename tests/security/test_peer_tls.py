"""Certificates between ranks, made as docs/security.md says."""

import subprocess

import pytest

from tests.conftest import ARITH, BINARY, FfnRank, TandemServer


def run(*arguments, cwd):
    subprocess.run(arguments, cwd=cwd, check=True, capture_output=True)


def certificates(directory, name):
    """The flags of a rank whose CA is `name`."""
    curve = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-noenc")
    run("openssl", "req", "-x509", *curve, "-days", "2", "-keyout", f"{name}-ca.key", "-out", f"{name}-ca.pem", "-subj", "/CN=tandem CA", cwd=directory)
    run("openssl", "req", *curve, "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", "/CN=tandem rank", cwd=directory)
    run("openssl", "x509", "-req", "-in", f"{name}.csr", "-CA", f"{name}-ca.pem", "-CAkey", f"{name}-ca.key", "-CAcreateserial", "-days", "2",
        "-out", f"{name}.pem", cwd=directory)
    return ("--peer-tls-certificate", str(directory / f"{name}.pem"), "--peer-tls-key", str(directory / f"{name}.key"),
            "--peer-tls-ca", str(directory / f"{name}-ca.pem"))


def answer(server):
    reply = server.request("POST", "/v1/completions", {"model": "arith", "prompt": "What is 17 plus 25?", "max_tokens": 24, "temperature": 0})
    assert reply.status == 200, reply.body
    return reply.json()["choices"][0]["text"]


def test_ranks_with_certificates_of_one_ca_serve_and_others_are_refused(tmp_path):
    ours, theirs = certificates(tmp_path, "ours"), certificates(tmp_path, "theirs")
    ffn = FfnRank("tcp://127.0.0.1:0", tmp_path, "--deterministic", *ours)
    try:
        for flags, said in ((theirs, "its certificate is refused ("), ((), "the other side speaks TLS; give this side --peer-tls-certificate")):
            refused = subprocess.run([BINARY, "attention", "--model", str(ARITH), "--ffn", ffn.address, "--port", "0", "--deterministic", *flags],
                                     capture_output=True, text=True, timeout=120)
            assert refused.returncode == 2 and said in refused.stderr and ffn.address in refused.stderr, refused.stderr
        encrypted = TandemServer(["attention", "--model", str(ARITH), "--ffn", ffn.address, "--port", "0", "--deterministic", *ours], tmp_path)
        try:
            text = answer(encrypted.wait_ready())
        finally:
            encrypted.stop()
    finally:
        ffn.close()
    plain = TandemServer(["serve", "--model", str(ARITH), "--port", "0", "--deterministic"], tmp_path)
    try:
        assert answer(plain.wait_ready()) == text
    finally:
        plain.stop()


def test_up_gives_its_ranks_the_certificates(tmp_path):
    done = subprocess.run([BINARY, "up", "--model", str(ARITH), "--attention", "2", "--ffn", "2", "--transport", "tcp", "--once",
                           *certificates(tmp_path, "ours")], capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stderr
    assert "tokens/s" in done.stdout


@pytest.mark.parametrize("changed, said", [
    ({"--peer-tls-ca": None}, "TLS between ranks without afd.peer_tls_ca"),
    ({"--peer-key-file": "peer.key"}, "afd.peer_key_file with afd.peer_tls_certificate"),
    ({"--up-transport": "ucx"}, "afd.peer_tls_certificate with ucx"),
])
def test_what_does_not_go_together_is_refused(changed, said):
    flags = {"--peer-tls-certificate": "a.pem", "--peer-tls-key": "a.key", "--peer-tls-ca": "ca.pem", **changed}
    transport = flags.pop("--up-transport", "tcp")
    given = [f"{flag}={value}" for flag, value in flags.items() if value is not None]
    done = subprocess.run([BINARY, "up", "--model", str(ARITH), "--transport", transport, "--once", *given],
                          capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and said in done.stderr, done.stderr
