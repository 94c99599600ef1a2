"""Minutes of load in short, and in full where `--long` asks for it: everything ends, says the same as alone, and leaves nothing behind."""

import asyncio
import json
import random

import openai
import pytest

from tests.conftest import ARITH, TandemServer
from tests.e2e.conftest import MODEL, QUESTION
from tests.e2e.load import (HealthPoller, MemoryWatch, Question, ask_whole, make_async_client, plain_question, stream_for, wait_idle)

LONG = pytest.mark.long
PLACEMENTS = {
    "serve": ["serve"],
    "shm": ["up", "--attention", "1", "--ffn", "1", "--transport", "shm"],
    "front": ["up", "--attention", "2", "--ffn", "2", "--connector", "m2n", "--compute-gate-on-attention"],
}
# What a server may grow by after its first third: allocators keep some free pages for each thread that was busy at once.
GROWTH_MIB = 16


@pytest.fixture
def start(tmp_path):
    """start(placement, *flags): a server of this test alone, so that its memory and its counts are the test's own."""
    servers = []

    def ready(placement, *flags):
        servers.append(TandemServer([*PLACEMENTS[placement], "--model", str(ARITH), "--port", "0", "--log-level", "warning", *flags], tmp_path))
        return servers[-1].wait_ready()

    yield ready
    assert [server.stop() for server in servers] == [0] * len(servers), "servers end with status 0 on SIGTERM"


def fill_the_pool(server, prompt_tokens, context_tokens, count):
    """Sequences that take every block of the pool together: they fit at once, as on a fresh server, and nobody makes way."""
    before = server.metrics()["tandem_engine_preempted_total"]

    async def fill():
        async with make_async_client(server) as client:
            return await asyncio.gather(*(
                client.completions.create(model=MODEL, prompt=[number + 3] * prompt_tokens, max_tokens=context_tokens - prompt_tokens,
                                          temperature=0, extra_body={"ignore_eos": True}) for number in range(count)))

    replies = asyncio.run(fill())
    assert [reply.usage.completion_tokens for reply in replies] == [context_tokens - prompt_tokens] * count
    assert server.metrics()["tandem_engine_preempted_total"] == before
    wait_idle(server)


def check_memory(watch):
    early, late = watch.thirds()
    print(f"memory: {early:.1f} MiB at most in the first third of the time, {late:.1f} in the last")
    assert late <= early + GROWTH_MIB, watch.readings


@pytest.mark.parametrize("placement, streams, seconds", [
    ("serve", 64, 12),
    pytest.param("serve", 256, 300, marks=LONG),
    pytest.param("shm", 64, 60, marks=LONG),
])
def test_streams_without_end(start, placement, streams, seconds):
    server = start(placement, "--max-num-seqs", str(streams), "--kv-cache-tokens", "32768")
    fresh = wait_idle(server)
    questions = [plain_question(number) for number in range(streams)]

    async def load():
        async with make_async_client(server) as client:
            return await stream_for(client, questions, seconds)

    with HealthPoller(server) as poller, MemoryWatch(server) as watch:
        answers = asyncio.run(load())
    idle = wait_idle(server)
    total = sum(map(len, answers.values()))
    tokens = idle["tandem_completion_tokens_total"] - fresh["tandem_completion_tokens_total"]
    print(f"{streams} streams: {total} answers, {tokens:.0f} tokens\n{poller.describe()}")
    assert poller.statuses == {200}
    assert idle["tandem_kv_blocks"] == fresh["tandem_kv_blocks"]
    assert idle["tandem_engine_failed_total"] == idle["tandem_engine_cancelled_total"] == idle["tandem_http_disconnects_total"] == 0
    assert idle["tandem_engine_finished_total"] - fresh["tandem_engine_finished_total"] == total
    check_memory(watch)

    async def alone():
        async with make_async_client(server) as client:
            return await ask_whole(client, questions)

    whole = asyncio.run(alone())
    for question, streamed in answers.items():
        assert set(streamed) == {whole[question]}, question
        assert [end for _, end in whole[question]] == ["length"], question
    wait_idle(server)
    fill_the_pool(server, prompt_tokens=1024, context_tokens=2048, count=16)


PERSON = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 8}, "age": {"type": "integer", "minimum": 0, "maximum": 99}},
          "required": ["name", "age"]}


def mixed_question(number):
    """Short and long prompts (of a few beginnings), one or three answers, stops, forms: what a scheduler meets on a day."""
    rng = random.Random(f"mixed {number}")
    kind = number % 6
    if kind < 2:
        return plain_question(number, 20, 400)
    sampling = {"temperature": 0} if rng.random() < 0.5 else {"temperature": 1.0, "seed": number}
    if kind == 2:  # up to most of a context
        text = " ".join([f"{number % 4}", *(str(rng.randrange(10, 99)) for _ in range(rng.randrange(20, 250)))])
        return Question(False, text, json.dumps({"max_tokens": rng.randrange(1, 300), "extra_body": {"ignore_eos": True}, **sampling}))
    if kind == 3:
        arguments = {"max_tokens": rng.randrange(20, 150), "n": 3, "extra_body": {"ignore_eos": True}, **sampling}
        return Question(True, f"{QUESTION} {number}", json.dumps(arguments))
    if kind == 4:
        form = {"type": "json_schema", "json_schema": {"name": "person", "strict": True, "schema": PERSON}}
        return Question(True, f"{QUESTION} {number}", json.dumps({"max_tokens": 120, "response_format": form, **sampling}))
    return Question(True, f"{QUESTION} {number}", json.dumps({"max_tokens": 200, "stop": [str(number % 10)], **sampling}))


async def mixed_load(server, requests, questions, at_once):
    """`requests` requests from `at_once` clients: streamed, whole, left in the middle, left at any time. Outcomes by kind; answers."""
    counts = {"answered": 0, "left": 0, "rejected": 0}
    answers = {question: set() for question in questions}
    numbers = iter(range(requests))

    async def one(client, number):
        rng = random.Random(number)
        question, way = rng.choice(questions), rng.random()
        try:
            if way < 0.5:
                answer = await question.streamed(client)
            elif way < 0.7:
                answer = await question.whole(client)
            elif way < 0.85:
                answer = await question.streamed(client, leave_after=rng.randrange(1, 40))
            else:
                # Wherever it is by then: on its way, in the queue, in a prompt, in an answer.
                ask = question.streamed if way < 0.95 else question.whole
                answer = await asyncio.wait_for(ask(client), rng.uniform(0.001, 0.5))
        except TimeoutError:
            counts["left"] += 1
        except openai.RateLimitError as error:
            counts["rejected"] += 1
            await asyncio.sleep(int(error.response.headers["retry-after"]) * rng.random())
        else:
            counts["left" if answer is None else "answered"] += 1
            if answer is not None:
                answers[question].add(answer)

    async def ask():
        async with make_async_client(server) as client:
            for number in numbers:
                await one(client, number)

    await asyncio.gather(*(ask() for _ in range(at_once)))
    return counts, answers


@pytest.mark.parametrize("placement, requests", [
    ("serve", 250),
    pytest.param("serve", 2000, marks=LONG),
    pytest.param("front", 2000, marks=LONG),
])
def test_mixed_requests_with_cancels_rejections_and_preemptions(start, placement, requests):
    ranks = 2 if placement == "front" else 1
    server = start(placement, "--max-num-seqs", "16", "--max-queue", "8", "--kv-cache-tokens", "2048", "--max-num-batched-tokens", "64")
    fresh = wait_idle(server)
    questions = [mixed_question(number) for number in range(60)]
    with HealthPoller(server) as poller, MemoryWatch(server) as watch:
        counts, answers = asyncio.run(mixed_load(server, requests, questions, at_once=32 * ranks))
        idle = wait_idle(server)

    def grown(name):
        return int(idle[name] - fresh[name])

    print(f"{counts}, {grown('tandem_engine_preempted_total')} preemptions, {grown('tandem_engine_cancelled_total')} cancelled sequences, "
          f"{grown('tandem_engine_generated_tokens_total')} tokens\n{poller.describe()}")
    assert sum(counts.values()) == requests and min(counts.values()) > 0
    assert grown("tandem_engine_preempted_total") > 0 and grown("tandem_engine_cancelled_total") > 0
    assert grown("tandem_engine_failed_total") == 0
    assert poller.statuses == {200}
    assert idle["tandem_kv_blocks"] == fresh["tandem_kv_blocks"]
    check_memory(watch)

    async def alone():
        async with make_async_client(server) as client:
            return await ask_whole(client, questions, at_once=2)

    whole = asyncio.run(alone())
    for question, given in answers.items():
        assert given <= {whole[question]}, question
    wait_idle(server)
    fill_the_pool(server, prompt_tokens=1024, context_tokens=2048, count=ranks)
