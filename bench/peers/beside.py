#!/usr/bin/env python3
"""Runs one measurement between two readings of the machine's roofs and prints one JSON object. run.py starts it, under --prefix if there is
one, so that whatever keeps the machine quiet holds for all three.

    beside.py TIMEOUT_S 'ROOF COMMAND' run COMMAND...
    beside.py TIMEOUT_S 'ROOF COMMAND' tell PID FIFO OUTPUT    # a process that is ready: told to measure, and waited for"""

import json
import pathlib
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


def ended(pid):
    """Gone, or waiting for its parent to look."""
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def tell(pid, fifo, output, timeout):
    start = time.monotonic()
    with open(fifo, "w") as file:
        file.write("go\n")
    while not ended(pid):
        if time.monotonic() - start > timeout:
            return {"status": -1, "out": "", "err": f"not done {timeout} s after it was told", "seconds": timeout}
        time.sleep(0.05)  # seldom beside a measurement of seconds
    out = pathlib.Path(output).read_text(errors="replace")
    # Its status is its parent's to see; without figures the output is refused.
    return {"status": 0, "out": out, "err": "", "seconds": time.monotonic() - start}


def main():
    timeout, roof, mode, words = float(sys.argv[1]), shlex.split(sys.argv[2]), sys.argv[3], sys.argv[4:]
    before = run(roof, timeout)
    engine = run(words, timeout) if mode == "run" else tell(*words, timeout)
    print(json.dumps({"roofs": [before, run(roof, timeout)], "engine": engine}))


if __name__ == "__main__":
    main()
