#!/usr/bin/env python3
"""Two hosts on one machine: network namespaces joined by a veth pair with limited rate and delay. `tandem ffn` runs in one,
`tandem attention` and a client in the other; per transport and rate: tokens a second, and the share of the exchange that was on the
wire (round trip minus residence in the FFN rank) of the step time.

    sudo bench/two_hosts.py [--rates 1,10] [--transports tcp,ucx] [--requests 64] [--max-tokens 400] [--model models/arith] [--json]

Needs root and iproute2; says what is missing and ends with status 77 otherwise. A kernel without netem has no delay: that is said, and
the round trip that there is (of a tcp ping-pong) is measured and printed either way. All traffic stays inside the two namespaces, which
are removed at the end."""

import argparse
import concurrent.futures
import contextlib
import ctypes
import http.client
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
BINARY = os.environ.get("TANDEM_BINARY", str(ROOT / "build" / "tandem"))
ATTENTION_HOST, FFN_HOST = "10.231.77.1", "10.231.77.2"
FFN_PORT, HTTP_PORT, PING_PORT = 7000, 8000, 7001
SKIPPED = 77  # the status that test drivers read as "skipped"


def command(*words, check=True):
    return subprocess.run(words, capture_output=True, text=True, check=check)


def missing():
    """Why this machine cannot do it; None when it can."""
    if os.geteuid() != 0:
        return "not root: network namespaces need it"
    for tool in ("ip", "tc"):
        if shutil.which(tool) is None:
            return f"no {tool}: install iproute2"
    probe = f"tandem-probe-{os.getpid()}"
    made = command("ip", "netns", "add", probe, check=False)
    if made.returncode != 0:
        return f"network namespaces are not permitted here: {made.stderr.strip()}"
    command("ip", "netns", "del", probe)
    return None


@contextlib.contextmanager
def two_hosts():
    names = [f"tandem-{side}-{os.getpid()}" for side in ("attention", "ffn")]
    try:
        for name in names:
            command("ip", "netns", "add", name)
        command("ip", "link", "add", "eth-tandem", "netns", names[0], "type", "veth", "peer", "name", "eth-tandem", "netns", names[1])
        for name, host in zip(names, (ATTENTION_HOST, FFN_HOST)):
            command("ip", "-n", name, "address", "add", f"{host}/24", "dev", "eth-tandem")
            command("ip", "-n", name, "link", "set", "eth-tandem", "up")
            command("ip", "-n", name, "link", "set", "lo", "up")
        # The kernel looks at links once a second; until then UCX does not take one for running.
        while any(json.loads(command("ip", "-j", "-n", name, "link", "show", "eth-tandem").stdout)[0]["operstate"] != "UP" for name in names):
            time.sleep(0.1)
        yield names
    finally:
        for name in names:
            command("ip", "netns", "del", name, check=False)


def limit(names, gigabits):
    """Rate and 0.05 ms each way on both ends. Returns what was not possible, or None."""
    without = None
    for name in names:
        command("ip", "netns", "exec", name, "tc", "qdisc", "del", "dev", "eth-tandem", "root", check=False)
        netem = command("ip", "netns", "exec", name, "tc", "qdisc", "add", "dev", "eth-tandem", "root", "netem", "delay", "0.05ms",
                        "rate", f"{gigabits}gbit", check=False)
        if netem.returncode != 0:
            without = "no delay: this kernel has no netem; rate by tbf"
            # A burst of one timer tick at the rate, at least one offloaded segment of 64 KiB.
            burst = max(131072, int(gigabits * 1e9 / 8 / 1000))
            command("ip", "netns", "exec", name, "tc", "qdisc", "add", "dev", "eth-tandem", "root", "tbf", "rate", f"{gigabits}gbit",
                    "burst", str(burst), "latency", "20ms")
    return without


def enter(namespace):
    # os.setns is younger than the Python of Debian 12.
    new_network = 0x40000000
    if ctypes.CDLL(None, use_errno=True).setns(namespace, new_network) != 0:
        raise OSError(ctypes.get_errno(), "setns")


@contextlib.contextmanager
def inside(name):
    """This thread's new sockets and children belong to the namespace."""
    here = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    there = os.open(f"/var/run/netns/{name}", os.O_RDONLY)
    try:
        enter(there)
        yield
    finally:
        enter(here)
        os.close(here)
        os.close(there)


def ping(names, rounds=200):
    """Median round trip of one byte over tcp, in milliseconds, and the rate of 64 MiB one way in Gbit/s."""
    with inside(names[1]):
        listener = socket.create_server((FFN_HOST, PING_PORT))
    with inside(names[0]):
        client = socket.create_connection((FFN_HOST, PING_PORT))
    server, _ = listener.accept()
    for end in (client, server):
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        client.sendall(b"x")
        server.recv(1)
        server.sendall(b"y")
        client.recv(1)
        times.append(time.perf_counter() - start)
    total, got = 64 << 20, 0
    start = time.perf_counter()
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        sending = pool.submit(client.sendall, bytes(total))
        while got < total:
            got += len(server.recv(1 << 20))
        sending.result()
    rate = total * 8 / (time.perf_counter() - start) / 1e9
    for end in (client, server, listener):
        end.close()
    return 1000 * sorted(times)[rounds // 2], rate


def metric(connection, name):
    connection.request("GET", "/metrics")
    text = connection.getresponse().read().decode()
    found = re.search(rf"^{name}(?:{{[^}}]*}})? (\S+)$", text, re.MULTILINE)
    if not found:
        raise SystemExit(f"two_hosts.py: /metrics has no {name}")
    return float(found.group(1))


def wire_bytes(names):
    """Bytes that both hosts have sent on the wire."""
    links = [json.loads(command("ip", "-j", "-s", "-n", name, "link", "show", "eth-tandem").stdout)[0] for name in names]
    return sum(link["stats64"]["tx"]["bytes"] for link in links)


def wait_ready(attention):
    for _ in range(600):
        if attention.poll() is not None:
            raise SystemExit(f"two_hosts.py: tandem attention ended with status {attention.returncode}")
        with contextlib.suppress(OSError):
            connection = http.client.HTTPConnection(ATTENTION_HOST, HTTP_PORT, timeout=60)
            connection.request("GET", "/health")
            response = connection.getresponse()
            response.read()
            if response.status == 200:
                return connection
        time.sleep(0.1)
    raise SystemExit("two_hosts.py: tandem attention did not become ready")


def ask(name, model, index, max_tokens):
    # Each thread has a network namespace of its own: the one that it enters.
    with inside(name):
        connection = http.client.HTTPConnection(ATTENTION_HOST, HTTP_PORT, timeout=300)
        body = {"model": model, "prompt": f"Tom has {index} apples and buys {index + 3} more.", "max_tokens": max_tokens,
                "temperature": 0, "ignore_eos": True}
        connection.request("POST", "/v1/completions", json.dumps(body), {"content-type": "application/json"})
        answer = json.loads(connection.getresponse().read())
        return answer["usage"]["completion_tokens"]


def measure(names, transport, arguments):
    common = ["--model", arguments.model, "--log-level", "warning", "--threads", "1"]
    address = f"{transport}://{FFN_HOST}:{FFN_PORT}"
    processes = []
    try:
        processes.append(subprocess.Popen(["ip", "netns", "exec", names[1], BINARY, "ffn", *common, "--listen", address, "--insecure"],
                                          stdout=subprocess.DEVNULL))
        processes.append(subprocess.Popen(["ip", "netns", "exec", names[0], BINARY, "attention", *common, "--ffn", address, "--host",
                                           ATTENTION_HOST, "--port", str(HTTP_PORT)], stdout=subprocess.DEVNULL))
        with inside(names[0]):
            connection = wait_ready(processes[1])
            connection.request("GET", "/v1/models")
            model = json.loads(connection.getresponse().read())["data"][0]["id"]
            keys = {key: f"tandem_{key}_seconds_total" for key in ("ffn_wait", "ffn_round_trip", "ffn_residence", "engine_step")}
            before = {key: metric(connection, name) for key, name in keys.items()}
            bytes_before = wire_bytes(names)
            start = time.perf_counter()
            with concurrent.futures.ThreadPoolExecutor(arguments.requests) as pool:
                tokens = sum(pool.map(lambda index: ask(names[0], model, index, arguments.max_tokens), range(arguments.requests)))
            seconds = time.perf_counter() - start
            bytes_sent = wire_bytes(names) - bytes_before
            total = {key: metric(connection, name) - before[key] for key, name in keys.items()}
        wire = total["ffn_round_trip"] - total["ffn_residence"]
        return {"transport": transport, "tokens": tokens, "tokens_per_second": tokens / seconds, "wire_bytes": bytes_sent,
                "step_seconds": total["engine_step"],
                "ffn_wait_seconds": total["ffn_wait"], "wire_seconds": wire, "share_waiting": total["ffn_wait"] / total["engine_step"],
                "share_on_the_wire": wire / total["engine_step"]}
    finally:
        for process in reversed(processes):
            process.terminate()
        for process in processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(10)
            process.kill()
            process.wait()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rates", default="1,10", help="Gbit/s, separated by commas")
    parser.add_argument("--transports", default="tcp,ucx")
    parser.add_argument("--requests", type=int, default=64, help="all at once")
    parser.add_argument("--max-tokens", type=int, default=400)
    parser.add_argument("--model", default=str(ROOT / "models" / "arith"))
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("two_hosts.py: terminated"))  # so that namespaces and processes are removed
    if why := missing():
        print(f"two_hosts.py: skipped: {why}", file=sys.stderr)
        return SKIPPED
    rows = []
    with two_hosts() as names:
        for rate in (float(word) for word in arguments.rates.split(",")):
            without = limit(names, rate)
            round_trip_ms, measured_rate = ping(names)
            for transport in arguments.transports.split(","):
                row = measure(names, transport, arguments)
                row.update(gigabits=rate, measured_gigabits=measured_rate, round_trip_ms=round_trip_ms, note=without or "")
                rows.append(row)
                if not arguments.json:
                    print(f"{rate:5g} Gbit/s ({measured_rate:.2f} measured), round trip {round_trip_ms:.3f} ms  {transport:4}"
                          f"{row['tokens_per_second']:9.1f} tokens/s, {100 * row['share_waiting']:5.1f} % of the step time waiting for "
                          f"experts, {100 * row['share_on_the_wire']:5.1f} % on the wire{'  (' + without + ')' if without else ''}", flush=True)
    if arguments.json:
        print(json.dumps(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
