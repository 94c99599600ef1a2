"""A container's /dev/shm of 64 KiB. Skipped by name where the machine does not permit a mount namespace."""

import os
import pathlib
import subprocess

import pytest

from tests.conftest import ARITH, BINARY

IN_NAMESPACE = ("unshare", "--user", "--map-root-user", "--mount", "sh", "-c")
MOUNT = "mount -t tmpfs -o size=64k tmpfs /dev/shm"


@pytest.fixture(scope="module", autouse=True)
def namespaces():
    try:
        tried = subprocess.run([*IN_NAMESPACE, MOUNT], capture_output=True, text=True)
        reason = tried.stderr.strip() if tried.returncode != 0 else None
    except FileNotFoundError as error:
        reason = str(error)
    if reason is not None:
        pytest.skip(f"no user and mount namespaces here: {reason}")


def test_shm_needs_no_dev_shm_and_leaves_nothing_behind(tmp_path):
    """A deployment is killed when it is ready; the next runs find room, and a clean folder."""
    up = f"{BINARY} up --model {ARITH} --transport shm"
    script = f"""{MOUNT} || exit 1
{up} --port 0 >{tmp_path}/first.out 2>&1 & killed=$!
until grep -q "^ready" {tmp_path}/first.out; do kill -0 $killed || exit 2; sleep 0.05; done
ffn=$(sed -n 's/^ffn *[0-9]* *\\([0-9]*\\).*/\\1/p' {tmp_path}/first.out)
kill -9 $killed $ffn; wait $killed
ls -A /dev/shm >{tmp_path}/left
for run in 1 2; do {up} --once --question "What is 2 plus 3?" || exit 3; done
ls -A /dev/shm >>{tmp_path}/left
"""
    done = subprocess.run([*IN_NAMESPACE, script], capture_output=True, text=True, timeout=120, env={**os.environ, "TMPDIR": str(tmp_path)})
    first = pathlib.Path(tmp_path / "first.out").read_text()
    assert done.returncode == 0, f"{first}\n{done.stdout}\n{done.stderr}"
    assert done.stdout.count("A: ") == 2, done.stdout
    assert (tmp_path / "left").read_text() == "", "something is left in /dev/shm"
    assert not list(tmp_path.glob("tandem-*"))


def test_ucx_says_what_it_needs_and_stops(tmp_path):
    """UCX reserves in /dev/shm when it connects: no SIGBUS at the first touch, and a line that names the folder and what would do."""
    command = f"{MOUNT} && {BINARY} up --model {ARITH} --transport ucx --once --question x --connect-timeout-s 1"
    done = subprocess.run([*IN_NAMESPACE, command], capture_output=True, text=True, timeout=60, env={**os.environ, "TMPDIR": str(tmp_path)})
    assert done.returncode == 1, done
    message = done.stderr.splitlines()[-1]
    assert "no FFN rank within 1 s" in message and "it needs shared memory (/dev/shm)" in message and "or use tcp://" in message, done.stderr
