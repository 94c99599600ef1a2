"""One FFN pool and three kinds of attention at the same time: Tandem's own worker, the C example, and Python: numpy alone, or
transformers through the adapter. All generate the same tokens."""

import concurrent.futures
import contextlib
import importlib.util
import re
import threading
import urllib.request

import pytest

import tandem_client
from tests.client.worker import heldout_prompts, start_worker, worker_tokens
from tests.conftest import ARITH, ROOT, WAIT_LIMIT_S, FfnRank

QUESTIONS = 4
MAX_TOKENS = 64
ROUNDS = 20  # who meets whom is up to the machine, but they do not miss each other for ever
LOOK_S = 0.005  # between looks at the pool's counters


@contextlib.contextmanager
def numpy_attention(address):
    path = ROOT / "client" / "python" / "examples" / "generate_numpy.py"
    spec = importlib.util.spec_from_file_location("generate_numpy", path)
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    with tandem_client.Client(address) as experts:
        attention = example.Attention(ARITH, experts)
        yield lambda prompt: attention.generate(prompt, MAX_TOKENS)


@contextlib.contextmanager
def transformers_attention(address):
    from tests.client.test_adapter import generated, tandem_adapter  # skips by name where there is no torch

    model, experts = tandem_adapter.load(ARITH, address)
    with experts:
        yield lambda prompt: generated(model, prompt, MAX_TOKENS)


class Watch:
    """Looks at the pool's counters while its clients work."""

    def __init__(self, pool):
        self.url, self.before = pool.facts["metrics"], {}
        self.most = 0  # sessions that were open at once and all had rows computed meanwhile
        self.shared = 0  # clients in calls, beyond the first of each

    def look(self):
        text = urllib.request.urlopen(self.url).read().decode()
        rows = dict(re.findall(r'^tandem_ffn_rank_client_rows_total{client="[^"]*",session="([^"]*)"} (\S+)$', text, re.M))
        self.most = max(self.most, sum(float(count) > float(self.before.get(session, count)) for session, count in rows.items()))
        self.before = rows
        values = {name: float(value) for name, value in re.findall(r"^(tandem_ffn_rank_\w+) (\S+)$", text, re.M)}
        self.shared = values["tandem_ffn_rank_clients_per_call_sum"] - values["tandem_ffn_rank_calls_total"]

    def until(self, done):
        while not done.wait(LOOK_S):
            self.look()


def together(clients, prompts):
    """[clients][prompts]: what each generates; all begin a prompt together."""
    start = threading.Barrier(len(clients), timeout=WAIT_LIMIT_S)

    def run(generate):
        try:
            return [generate(prompt) for prompt in prompts if start.wait() >= 0]
        except BaseException:
            start.abort()
            raise

    with concurrent.futures.ThreadPoolExecutor(len(clients)) as threads:
        return list(threads.map(run, clients))


@pytest.mark.parametrize("in_python", [numpy_attention, transformers_attention])
def test_three_kinds_of_attention_generate_the_same_tokens_at_once(in_python, installed, tmp_path):
    pool = FfnRank("tcp://127.0.0.1:0", tmp_path, "--threads", "1", "--metrics-listen", "127.0.0.1:0")
    worker = start_worker(pool.address, tmp_path)
    done = threading.Event()
    try:
        prompts = heldout_prompts(worker, QUESTIONS)
        alone = [worker_tokens(worker, prompt, MAX_TOKENS) for prompt in prompts]
        assert all("####" in text for text, _ in alone), "answers to the end"
        wanted = [tokens for _, tokens in alone]
        with in_python(pool.address) as generate, concurrent.futures.ThreadPoolExecutor(1) as aside:
            clients = [lambda prompt: worker_tokens(worker, prompt, MAX_TOKENS)[1],
                       lambda prompt: installed.generate(pool.address, prompt, MAX_TOKENS), generate]
            watch = Watch(pool)
            watching = aside.submit(watch.until, done)
            try:
                for _ in range(ROUNDS):
                    assert together(clients, prompts) == [wanted] * 3
                    if watch.most == 3 and watch.shared > 0:
                        break
            finally:
                done.set()
            watching.result()
            assert watch.most == 3, "three sessions at once, each with rows computed between two looks"
            assert watch.shared > 0, "calls with rows of more than one of them"
    finally:
        worker.stop()
        pool.close()
