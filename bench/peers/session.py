"""An engine's process that holds a model while others are measured: a line in, a line of JSON out, and idle in between."""

import collections
import json
import os
import select
import subprocess
import time

ANSWER_LIMIT_S = 900  # loading 6 GB, repacking it and a prefill of 32 x 256 rows on two slow cores


class Session:
    """`keys`: an answer is the first line that is a JSON object with one of them; engines log to the same stream. Every failure is
    a ValueError with the last words of the process."""

    def __init__(self, words, keys, scratch):
        self.keys, self.rest, self.lines = keys, b"", collections.deque()
        self.errors = open(scratch / f"errors-{time.monotonic_ns()}", "w+b")  # noqa: SIM115  (it lives as long as the process)
        try:
            self.process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors)
        except OSError as error:
            raise ValueError(str(error)) from None

    def ask(self, line):
        try:
            self.process.stdin.write(line.encode() + b"\n")
            self.process.stdin.flush()
        except OSError:
            self._fail("ended")
        deadline = time.monotonic() + ANSWER_LIMIT_S
        while True:
            answer = self._object(self._line(deadline))
            if "error" in answer:
                raise ValueError(answer["error"])
            if any(key in answer for key in self.keys):
                return answer

    def _line(self, deadline):
        while not self.lines:
            stdout = self.process.stdout.fileno()
            if not select.select([stdout], [], [], max(0, deadline - time.monotonic()))[0]:
                self._fail(f"no answer in {ANSWER_LIMIT_S} s")
            piece = os.read(stdout, 1 << 16)
            if not piece:
                self._fail("ended")
            *lines, self.rest = (self.rest + piece).split(b"\n")
            self.lines += lines
        return self.lines.popleft().decode(errors="replace").strip()

    @staticmethod
    def _object(line):
        try:
            answer = json.loads(line) if line.startswith("{") else {}
        except json.JSONDecodeError:
            answer = {}
        return answer

    def _fail(self, what):
        self.close()
        raise ValueError(f"{what}, status {self.process.returncode}: {self.last_words}")

    def close(self):
        """Ends it; its input is closed first, so that it may end by itself."""
        if self.process.returncode is not None:
            return
        try:
            self.process.stdin.close()
        except OSError:
            pass  # it had gone, with a line unread
        try:
            self.process.wait(5)  # seconds: freeing some GB takes one
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.errors.seek(0)
        self.last_words = self.errors.read().decode(errors="replace").strip()[-600:]
        self.errors.close()
