"""What the tests under load share: health beside the load, memory of a server, an idle engine, streams of the official client."""

import asyncio
import dataclasses
import json
import pathlib
import random
import subprocess
import sys
import threading
import time
import urllib.parse

import openai

from tests.e2e.conftest import MODEL, QUESTION, user

IDLE = ("tandem_requests_running", "tandem_requests_waiting", "tandem_kv_blocks_used")

# In a process of its own: the clients' threads would make it wait for the interpreter, not for the server.
POLL = """
import http.client, json, select, sys, time
connection = http.client.HTTPConnection(sys.argv[1], int(sys.argv[2]), timeout=60)
latencies, statuses = [], set()
print("polling", flush=True)
while not select.select([sys.stdin], [], [], 0.01)[0]:
    begin = time.monotonic()
    connection.request("GET", "/health")
    reply = connection.getresponse()
    reply.read()
    latencies.append(time.monotonic() - begin)
    statuses.add(reply.status)
print(json.dumps([latencies, sorted(statuses)]))
"""


class HealthPoller:
    def __init__(self, server):
        parts = urllib.parse.urlsplit(server.url)
        self.command = [sys.executable, "-c", POLL, parts.hostname, str(parts.port)]

    def __enter__(self):
        self.process = subprocess.Popen(self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout.readline() == "polling\n"
        return self

    def __exit__(self, *_):
        self.latencies, statuses = json.loads(self.process.communicate("stop\n", timeout=60)[0])
        self.statuses = set(statuses)

    def describe(self):
        ordered = sorted(self.latencies)
        p99 = ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)]
        return f"/health: {len(ordered)} polls, median {ordered[len(ordered) // 2] * 1e3:.1f} ms, p99 {p99 * 1e3:.1f} ms, slowest {ordered[-1] * 1e3:.1f} ms"


def wait_idle(server):
    """The engine has let go of everything."""
    return server.wait_metrics(lambda metrics: all(metrics[name] == 0 for name in IDLE))


def resident_mib(pid):
    """Of a process and its children: what /proc says that they hold of memory of their own, in MiB. Pages of files do not count."""
    try:
        status = pathlib.Path(f"/proc/{pid}/status").read_text()
        children = pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except FileNotFoundError:
        return 0
    own = [int(line.split()[1]) / 1024 for line in status.splitlines() if line.startswith(("RssAnon:", "RssShmem:"))]
    return sum(own) + sum(resident_mib(child) for child in children)


class MemoryWatch:
    """A reading each half second, in a thread of its own."""

    def __init__(self, server):
        self.pid, self.readings, self._stop = server.process.pid, [], threading.Event()
        self._thread = threading.Thread(target=self._read, daemon=True)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._stop.set()
        self._thread.join()

    def _read(self):
        while not self._stop.wait(0.5):
            self.readings.append(resident_mib(self.pid))

    def thirds(self):
        """The most memory in the first third of the time and in the last one."""
        third = max(1, len(self.readings) // 3)
        return max(self.readings[:third]), max(self.readings[-third:])


@dataclasses.dataclass(frozen=True)
class Question:
    """A request that has one answer, whenever and however it is asked: greedy or seeded."""

    chat: bool
    text: str
    arguments: str  # JSON: hashable

    def call(self, client, stream):
        arguments = json.loads(self.arguments)
        if self.chat:
            return client.chat.completions.create(model=MODEL, messages=user(self.text), stream=stream, **arguments)
        return client.completions.create(model=MODEL, prompt=self.text, stream=stream, **arguments)

    def choices(self):
        return json.loads(self.arguments).get("n", 1)

    async def whole(self, client):
        """(text, finish_reason) of each choice, in one reply."""
        reply = await self.call(client, False)
        return tuple((choice.message.content if self.chat else choice.text, choice.finish_reason) for choice in reply.choices)

    async def streamed(self, client, leave_after=None):
        """The same, put together from a stream. `leave_after`: chunks after which the client goes away; then None."""
        texts, ends = [""] * self.choices(), [None] * self.choices()
        stream, chunks = await self.call(client, True), 0
        async with stream:
            async for chunk in stream:
                chunks += 1
                for choice in chunk.choices:
                    texts[choice.index] += (choice.delta.content if self.chat else choice.text) or ""
                    ends[choice.index] = choice.finish_reason or ends[choice.index]
                if leave_after is not None and chunks >= leave_after:
                    return None
        return tuple(zip(texts, ends, strict=True))


def plain_question(number, shortest=40, longest=240):
    """Greedy and seeded ones, chats and completions, of different lengths."""
    rng = random.Random(number)
    text = QUESTION.replace("12", str(10 + number)).replace("7", str(2 + number % 7))
    sampling = {"temperature": 0} if number % 2 == 0 else {"temperature": 0.8, "seed": number}
    arguments = {"max_tokens": rng.randrange(shortest, longest), "extra_body": {"ignore_eos": True}, **sampling}
    return Question(number % 4 < 2, text, json.dumps(arguments))


def make_async_client(server):
    # No retries, as in make_client; a limit that only a hang reaches.
    return openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=120)


async def ask_whole(client, questions, at_once=8):
    """Unstreamed answers: question -> (text, finish_reason) of each choice."""
    places = asyncio.Semaphore(at_once)

    async def ask(question):
        async with places:
            return question, await question.whole(client)

    return dict(await asyncio.gather(*(ask(question) for question in questions)))


async def stream_for(client, questions, seconds):
    """A stream of each question at once, again and again until the time is over; then the last ones end. All answers."""
    deadline = time.monotonic() + seconds
    answers = {question: [] for question in questions}

    async def ask(question):
        while True:
            answers[question].append(await question.streamed(client))
            if time.monotonic() >= deadline:
                return

    await asyncio.gather(*(ask(question) for question in questions))
    return answers
