"""What a flood of strangers costs those who are connected: times of requests through an attention rank and an FFN rank with a key, with and
without connections to the FFN rank that say nothing, half of a handshake, or prove another key. The arms run in turn.

    python bench/peer_flood.py [--rounds 3] [--requests 120] [--tokens 16] [--rate 1000] [--json]
"""

import argparse
import collections
import http.client
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.security import peer  # noqa: E402

BINARY = os.environ.get("TANDEM_BINARY", str(ROOT / "build" / "tandem"))
MODEL = str(ROOT / "models" / "arith")
HELD = 300  # connections that a stranger keeps open at once


class Flood:
    """Opens connections at `rate` a second, as far as the other side takes them."""

    def __init__(self, address, hello, rate):
        self.address, self.hello, self.rate = address, hello, rate
        self.made = 0
        self.stop = threading.Event()
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self):
        held = collections.deque()
        begin = time.monotonic()
        while not self.stop.is_set():
            if self.made >= (time.monotonic() - begin) * self.rate:
                time.sleep(0.001)
                continue
            stranger = peer.RawPeer(self.address)
            held.append(stranger)
            if self.made % 3 != 0:
                stranger.send(peer.frame(peer.HELLO, self.hello))
            if self.made % 3 == 2:
                stranger.send(peer.frame(peer.NONCE, bytes(32)) + peer.frame(peer.PROOF, os.urandom(32)))
            self.made += 1
            if len(held) > HELD:
                held.popleft().close()
        self.seconds = time.monotonic() - begin
        for stranger in held:
            stranger.close()

    def end(self):
        self.stop.set()
        self.thread.join()


def percentile(values, share):
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def main():
    options = argparse.ArgumentParser()
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--requests", type=int, default=120)
    options.add_argument("--tokens", type=int, default=16)
    options.add_argument("--rate", type=float, default=1000)
    options.add_argument("--json", action="store_true")
    args = options.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        key = pathlib.Path(folder) / "peer.key"
        key.write_bytes(os.urandom(16).hex().encode())
        key.chmod(0o600)
        common = ["--model", MODEL, "--peer-key-file", str(key), "--threads", "1", "--log-level", "error"]
        ffn = subprocess.Popen([BINARY, "ffn", "--listen", "tcp://127.0.0.1:0", "--json", *common], stdout=subprocess.PIPE, text=True)
        server = None
        try:
            address = json.loads(ffn.stdout.readline())["address"]
            server = subprocess.Popen([BINARY, "attention", "--ffn", address, "--port", "0", *common], stdout=subprocess.PIPE, text=True)
            url = next(line.split()[1] for line in server.stdout if line.startswith("ready "))
            parts = urllib.parse.urlsplit(url)
            connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=60)
            body = json.dumps({"model": "arith", "prompt": "What is 17 plus 25?", "max_tokens": args.tokens, "temperature": 0, "ignore_eos": True})

            def ask():
                begin = time.monotonic()
                connection.request("POST", "/v1/completions", body, {"content-type": "application/json"})
                reply = connection.getresponse()
                text = reply.read()
                assert reply.status == 200, text
                return 1e3 * (time.monotonic() - begin)

            for _ in range(20):
                ask()
            hello = peer.hello_of(address)
            times, made, seconds = {"alone": [], "flood": []}, 0, 0.0
            for _ in range(args.rounds):
                times["alone"] += [ask() for _ in range(args.requests)]
                flood = Flood(address, hello, args.rate)
                times["flood"] += [ask() for _ in range(args.requests)]
                flood.end()
                made, seconds = made + flood.made, seconds + flood.seconds
        finally:
            for process in (server, ffn):
                if process is not None:
                    process.terminate()
                    process.wait()
    row = {"connections_per_second": made / seconds}
    for arm, values in times.items():
        row[arm] = {"requests": len(values), "p50_ms": statistics.median(values), "p99_ms": percentile(values, 0.99)}
    row["p50_ratio"] = row["flood"]["p50_ms"] / row["alone"]["p50_ms"]
    row["p99_ratio"] = row["flood"]["p99_ms"] / row["alone"]["p99_ms"]
    if args.json:
        print(json.dumps(row))
        return
    for arm in ("alone", "flood"):
        print(f"{arm}: {row[arm]['requests']} requests, p50 {row[arm]['p50_ms']:.1f} ms, p99 {row[arm]['p99_ms']:.1f} ms")
    print(f"{row['connections_per_second']:.0f} connections/s of strangers: p50 x {row['p50_ratio']:.2f}, p99 x {row['p99_ratio']:.2f}")


if __name__ == "__main__":
    main()
