"""What test_network.py runs in a user and network namespace of its own (`unshare --user --map-root-user --net --mount`), so that no
privilege is needed and the machine's network stays as it is. Attention is here, the FFN rank in a second network namespace behind
a veth pair. Run as a module with the name of a scenario; prints what it saw."""

import concurrent.futures
import os
import pathlib
import subprocess
import sys
import tempfile
import time

from tests.conftest import ARITH, BINARY, FfnRank, TandemServer
from tests.failure.test_ffn_loss import PATIENCE_S, answer, ask_until_lost, wait_for_health

# Local addresses, so that a frame for any other is dropped by whoever gets it.
MACS = {"here": "02:00:00:00:00:01", "there": "02:00:00:00:00:02"}
NOBODY = "02:00:00:00:00:99"
ADDRESSES = {"here": "10.77.0.1", "there": "10.77.0.2"}
MOUNT_SYS = ("mount", "-t", "sysfs", "sysfs", "/sys")
DEVICE = "wire0"  # on either side
LEAST_BYTES_OF_AN_ANSWER = 10_000  # of each side; heartbeats alone are far below


class Wire:
    """A veth pair between this namespace and a new one, and frames of either direction that vanish on it."""

    def __init__(self):
        self.prefixes = {"here": ()}
        # UCX looks for devices in /sys, which shows those of the namespace that mounted it.
        self.run("here", *MOUNT_SYS)
        self.holder = subprocess.Popen(["unshare", "--net", "--mount", "sh", "-c", " ".join(MOUNT_SYS) + " && echo made && exec cat"],
                                       stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.holder.stdout.readline() == "made\n"
        there = f"/proc/{self.holder.pid}/ns"
        self.prefixes["there"] = ("nsenter", f"--net={there}/net", f"--mount={there}/mnt", f"--wd={os.getcwd()}")
        self.run("here", "ip", "link", "add", DEVICE, "type", "veth", "peer", "name", DEVICE, "netns", str(self.holder.pid))
        for side in ADDRESSES:
            self.run(side, "ip", "link", "set", "lo", "up")
            self.run(side, "ip", "link", "set", DEVICE, "address", MACS[side])
            self.run(side, "ip", "address", "add", ADDRESSES[side] + "/24", "dev", DEVICE)
            self.run(side, "ip", "link", "set", DEVICE, "up")
        for side in ADDRESSES:  # UCX takes no device without a carrier
            end = time.monotonic() + PATIENCE_S
            while self.read(side, f"/sys/class/net/{DEVICE}/operstate") != "up":
                assert time.monotonic() < end, f"no carrier {side}"
                time.sleep(0.05)
        self.heal()

    def read(self, side, path):
        return subprocess.run([*self.prefixes[side], "cat", path], check=True, capture_output=True, text=True).stdout.strip()

    def sent_bytes(self):
        return {side: int(self.read(side, f"/sys/class/net/{DEVICE}/statistics/tx_bytes")) for side in ADDRESSES}

    def run(self, side, *command):
        subprocess.run([*self.prefixes[side], *command], check=True)

    def send_to(self, side, mac):
        """What `side` sends to the other from now on goes to this hardware address. No FIN, no RST, no ICMP."""
        other = "there" if side == "here" else "here"
        self.run(side, "ip", "neighbour", "replace", ADDRESSES[other], "lladdr", mac, "dev", DEVICE, "nud", "permanent")

    def drop(self, *sides):
        for side in sides:
            self.send_to(side, NOBODY)

    def heal(self):
        self.send_to("here", MACS["there"])
        self.send_to("there", MACS["here"])

    def close(self):
        self.holder.communicate()


def wait_for_text(path, text, count):
    end = time.monotonic() + PATIENCE_S
    while path.read_text().count(text) < count:
        assert time.monotonic() < end, f"'{text}' {count} times in {path.read_text()}"
        time.sleep(0.02)


def silence(wire, directory, transport, *sides):
    """Packets vanish while nothing is in work, and while eight requests are; both ends notice, and it all comes back."""
    ffn = FfnRank(f"{transport}://{ADDRESSES['there']}:0", directory, "--insecure", prefix=wire.prefixes["there"])
    attention = TandemServer(["attention", "--model", str(ARITH), "--ffn", ffn.address, "--port", "0"], directory)
    try:
        attention.wait_ready()
        before = answer(attention)

        idle_since = time.monotonic()
        wire.drop(*sides)
        degraded = wait_for_health(attention, 503, idle_since)
        print(f"idle: degraded {time.monotonic() - idle_since:.2f} s after the last packet: {degraded.body}")
        assert "FFN rank 0" in degraded.body and ffn.address in degraded.body, degraded.body
        wait_for_text(pathlib.Path(ffn.log.name), " left (", 1)
        refused = attention.request("POST", "/v1/completions", {"model": "arith", "prompt": "x", "max_tokens": 2})
        assert refused.status == 503 and ffn.address in refused.json()["error"]["message"], refused.body
        wire.heal()
        wait_for_health(attention, 200, time.monotonic())
        assert answer(attention) == before

        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            requests = [pool.submit(ask_until_lost, attention, i) for i in range(8)]
            attention.wait_metrics(lambda metrics: metrics.get("tandem_requests_running", 0) >= 8)
            lost_at = time.monotonic()
            wire.drop(*sides)
            outcomes = [request.result(timeout=PATIENCE_S) for request in requests]
        print(f"in work: every request ended {time.monotonic() - lost_at:.2f} s after the last packet: {outcomes[0][1]}")
        errors = [error for _, error in outcomes if error is not None]
        assert len(errors) == 8, outcomes
        assert all("FFN rank 0" in error and ffn.address in error for error in errors), errors
        wait_for_text(pathlib.Path(ffn.log.name), " left (", 2)
        wire.heal()
        wait_for_health(attention, 200, time.monotonic())
        assert answer(attention) == before
        assert attention.metrics()["tandem_kv_blocks_used"] == 0
        assert attention.process.poll() is None and ffn.process.poll() is None
    finally:
        wire.heal()  # so that both may say goodbye
        attention.stop()
        ffn.close()


def silence_beside_memory(wire, directory, transport, *sides):
    """As an operator can tell UCX to: messages go through the memory of this machine, and only the control connection over the wire. Who
    is silent there is lost, however many messages still come."""
    os.environ["UCX_TLS"] = "sm,self"
    silence(wire, directory, transport, *sides)


def add_bridge(wire):
    """Both sides have a second network as hosts of containers do: the same address on each, and no way between them."""
    for side in ADDRESSES:
        wire.run(side, "ip", "link", "add", "bridge0", "type", "veth", "peer", "name", "bridge1")
        wire.run(side, "ip", "address", "add", "172.17.0.1/16", "dev", "bridge0")
        for name in ("bridge0", "bridge1"):
            wire.run(side, "ip", "link", "set", name, "up")


def bridge(wire, directory, transport):
    """A network that both have and that does not join them is not taken, nor the memory of the machine that both are on: data flows
    over the address that was given."""
    add_bridge(wire)
    ffn = FfnRank(f"{transport}://{ADDRESSES['there']}:0", directory, "--insecure", prefix=wire.prefixes["there"])
    attention = TandemServer(["attention", "--model", str(ARITH), "--ffn", ffn.address, "--port", "0"], directory)
    try:
        attention.wait_ready()
        before = wire.sent_bytes()
        assert answer(attention)
        after = wire.sent_bytes()
        print(f"{ {side: after[side] - before[side] for side in after} } bytes over the wire")
        for side in after:
            assert after[side] - before[side] > LEAST_BYTES_OF_AN_ANSWER, side
    finally:
        attention.stop()
        ffn.close()


def wrong_address(wire, directory, transport):
    """An address that nobody has and one of a network without a way out: the wait ends, and names whom it was for."""
    add_bridge(wire)
    cases = (("10.77.0.9", f"to {transport}://10.77.0.1:"), ("172.17.0.9", f"to {transport}://172.17.0.1:"), ("192.0.2.1", "unreachable"),
             (ADDRESSES["there"], "start the peer first"))
    for host, reason in cases:
        address = f"{transport}://{host}:7000"
        done = subprocess.run([BINARY, "attention", "--model", str(ARITH), "--ffn", address, "--port", "0", "--connect-timeout-s", "2"],
                              capture_output=True, text=True, timeout=60)
        message = done.stderr.splitlines()[-1]
        print(message)
        assert done.returncode == 1, done
        assert f"FFN rank 0 at {address}" in message and reason in message, done.stderr


SCENARIOS = {
    "silence": silence,
    "silence_beside_memory": silence_beside_memory,
    "bridge": bridge,
    "wrong_address": wrong_address,
}


def main(name, transport, *sides):
    wire = Wire()
    with tempfile.TemporaryDirectory() as directory:
        try:
            SCENARIOS[name](wire, pathlib.Path(directory), transport, *sides)
        finally:
            wire.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
