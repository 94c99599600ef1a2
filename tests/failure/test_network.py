"""The network between attention and FFN loses packets without a word, or is another one than was meant. Each test runs a scenario
of network_scenarios.py in namespaces of its own; skipped by name where the machine does not permit them."""

import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
IN_NAMESPACE = ("unshare", "--user", "--map-root-user", "--net", "--mount")


@pytest.fixture(scope="module", autouse=True)
def namespaces():
    needed = "mount -t sysfs sysfs /sys && ip link add wire0 type veth peer name wire1"
    try:
        tried = subprocess.run([*IN_NAMESPACE, "sh", "-c", needed], capture_output=True, text=True)
        reason = tried.stderr.strip() if tried.returncode != 0 else None
    except FileNotFoundError as error:
        reason = str(error)
    if reason is not None:
        pytest.skip(f"no user and network namespaces here: {reason}")


def run(*scenario):
    done = subprocess.run([*IN_NAMESPACE, sys.executable, "-m", "tests.failure.network_scenarios", *scenario], cwd=ROOT, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=90)
    print(done.stdout)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("sides", (("here",), ("there",), ("here", "there")), ids=("to-ffn", "from-ffn", "both"))
@pytest.mark.parametrize("transport", ("tcp", "ucx"))
def test_packets_that_vanish_are_a_loss_idle_and_in_work(transport, sides):
    run("silence", transport, *sides)


@pytest.mark.parametrize("sides", (("here",), ("there",), ("here", "there")), ids=("to-ffn", "from-ffn", "both"))
def test_messages_that_go_on_do_not_hide_a_control_connection_that_is_lost(sides):
    run("silence_beside_memory", "ucx", *sides)


@pytest.mark.parametrize("transport", ("tcp", "ucx"))
def test_a_network_that_does_not_join_the_hosts_is_not_taken(transport):
    run("bridge", transport)


@pytest.mark.parametrize("transport", ("tcp", "ucx"))
def test_an_address_that_nobody_answers_ends_the_wait_by_name(transport):
    run("wrong_address", transport)
