#!/usr/bin/env python3
"""Runs one command between two readings of the machine's roofs and prints one JSON object. run.py starts it, under --prefix if there is
one, so that whatever keeps the machine quiet holds for all three.

    beside.py TIMEOUT_S 'ROOF COMMAND' COMMAND..."""

import json
import shlex
import subprocess
import sys
import time


def run(words, timeout):
    start = time.monotonic()
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=timeout, errors="replace")
        status, out, err = done.returncode, done.stdout, done.stderr
    except subprocess.TimeoutExpired:
        status, out, err = -1, "", f"ended after {timeout} s"
    except OSError as error:
        status, out, err = -1, "", str(error)
    return {"status": status, "out": out, "err": err[-2000:], "seconds": time.monotonic() - start}


def main():
    timeout, roof = float(sys.argv[1]), shlex.split(sys.argv[2])
    before = run(roof, timeout)
    engine = run(sys.argv[3:], timeout)
    print(json.dumps({"roofs": [before, run(roof, timeout)], "engine": engine}))


if __name__ == "__main__":
    main()
