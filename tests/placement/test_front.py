"""One endpoint in front of several attention ranks: by hand over tcp in reverse order, from one command, and as the processes
of a launcher. Every answer has the probabilities of the colocated server, bit for bit in deterministic mode."""

import concurrent.futures
import json
import os
import socket
import subprocess
import time

import openai
import pytest

from tests.conftest import ARITH, BINARY, M2N, WAIT_LIMIT_S, TandemServer
from tests.placement.test_several_ranks import QUESTIONS, answer, expected  # noqa: F401 (a fixture)

SHARED = ("--deterministic", "--threads", "1", *M2N)


def free_ports(count):
    """Ports that are free now; several processes must know them before any of them runs."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


class Ranks:
    """Processes in their own folders, stopped in the order in which they must leave: front first."""

    def __init__(self, directory):
        self.directory, self.processes = directory, []

    def start(self, name, *arguments, environment=None):
        folder = self.directory / name
        folder.mkdir()
        self.processes.append(TandemServer([*arguments], folder, environment))
        return self.processes[-1]

    def stop(self):
        for process in self.processes:
            process.stop()


@pytest.fixture
def ranks(tmp_path):
    started = Ranks(tmp_path)
    yield started
    started.stop()


def check_answers(front, expected):
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda question: answer(front, question), QUESTIONS)) == expected


def finished_by_rank(front):
    lines = front.request("GET", "/metrics").body.splitlines()
    return [float(line.split()[1]) for line in lines if line.startswith("tandem_attention_rank_finished_total{")]


def test_five_processes_by_hand_in_reverse_order(ranks, expected):
    a0, a1, f0, f1 = (f"tcp://127.0.0.1:{port}" for port in free_ports(4))
    front = ranks.start("front", "serve", "--model", str(ARITH), "--attention", f"{a0},{a1}", "--port", "0")
    for rank, address in ((1, a1), (0, a0)):
        ranks.start(f"attention{rank}", "attention", "--model", str(ARITH), "--ffn", f"{f0},{f1}", "--attention-listen", address,
                    "--attention-rank", str(rank), "--num-attention-ranks", "2", *SHARED)
    for rank, address in ((1, f1), (0, f0)):
        ranks.start(f"ffn{rank}", "ffn", "--model", str(ARITH), "--listen", address, "--num-ffn-ranks", "2", "--ffn-rank", str(rank),
                    *SHARED)
    front.wait_ready()
    check_answers(front, expected)
    deadline = time.monotonic() + WAIT_LIMIT_S
    while min(finished_by_rank(front)) == 0:  # counts come every 100 ms
        assert time.monotonic() < deadline, "one rank got nothing"
        time.sleep(0.05)
    health = front.request("GET", "/health").json()
    assert health["status"] == "ok" and [rank["ready"] for rank in health["ranks"]] == [True, True]

    client = openai.OpenAI(base_url=front.url + "/v1", api_key="none")
    stream = client.completions.create(model="arith", prompt=QUESTIONS[0], max_tokens=24, temperature=0, stream=True, echo=True)
    assert "".join(chunk.choices[0].text for chunk in stream if chunk.choices) == expected[0][0]
    with pytest.raises(openai.BadRequestError, match="context"):
        client.completions.create(model="arith", prompt="word " * 5000, max_tokens=4)


def is_free(port):
    with socket.socket() as probe:
        try:
            probe.bind(("0.0.0.0", port))
        except OSError:
            return False
        return True


# Two attention and two FFN processes that know from their launcher who they are.
LAUNCHERS = {
    "slurm": lambda rank: {"SLURM_PROCID": str(rank), "SLURM_NTASKS": "4"},
    "openmpi": lambda rank: {"OMPI_COMM_WORLD_RANK": str(rank), "OMPI_COMM_WORLD_SIZE": "4"},
}


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_ranks_of_a_launcher(launcher, ranks, expected, tmp_path):
    a0, a1, f0, f1 = (f"tcp://127.0.0.1:{port}" for port in free_ports(4))
    cluster = tmp_path / "cluster.yaml"
    cluster.write_text(json.dumps({
        "model": str(ARITH),
        "engine": {"deterministic": True, "threads": 1},
        "afd": {"attention": [a0, a1], "ffn": [f0, f1], "connector": "m2n", "compute_gate_on_attention": True},
        "serving": {"port": 0},
    }))
    front = ranks.start("front", "serve", "--config", str(cluster))
    processes = [ranks.start(f"process{rank}", "rank", "--config", str(cluster), environment=LAUNCHERS[launcher](rank)) for rank in range(4)]
    front.wait_ready()
    check_answers(front, expected)
    ready = ["".join(process.wait_ready().stdout) for process in processes]
    for text, role, address in zip(ready, ("attention", "attention", "ffn", "ffn"), (a0, a1, f0, f1)):
        assert role in text and address in text, text


def test_ranks_of_a_launcher_find_their_ffn_ranks_by_the_node_list(ranks, expected, tmp_path):
    """Nobody lists the FFN ranks: two tasks on each of two nodes, which here are two addresses of the loopback."""
    a0, a1 = (f"tcp://127.0.0.1:{port}" for port in free_ports(2))
    first = next(port for port in range(20000 + os.getpid() % 9700, 60000, 97) if all(is_free(each) for each in (port, port + 1)))
    cluster = tmp_path / "cluster.yaml"
    cluster.write_text(json.dumps({
        "model": str(ARITH),
        "engine": {"deterministic": True, "threads": 1},
        "afd": {"attention": [a0, a1], "num_ffn_ranks": 2, "ffn_address_pattern": f"tcp://{{node}}:{first}", "insecure": True,
                "connector": "m2n", "compute_gate_on_attention": True},
        "serving": {"port": 0},
    }))
    front = ranks.start("front", "serve", "--config", str(cluster))
    step = {"SLURM_NTASKS": "4", "SLURM_JOB_NODELIST": "127.0.0.[1-2]", "SLURM_TASKS_PER_NODE": "2(x2)"}
    processes = [ranks.start(f"process{rank}", "rank", "--config", str(cluster),
                             environment={**step, "SLURM_PROCID": str(rank), "SLURM_NODEID": str(rank // 2)}) for rank in range(4)]
    front.wait_ready()
    check_answers(front, expected)
    ready = ["".join(process.wait_ready().stdout) for process in processes]
    for text, role, address in zip(ready, ("attention", "attention", "ffn", "ffn"),
                                   (a0, a1, f"tcp://0.0.0.0:{first}", f"tcp://0.0.0.0:{first + 1}")):
        assert role in text and address in text, text

    wrong = {**step, "SLURM_PROCID": "0", "SLURM_NODEID": "0"}
    for change, message in (({"SLURM_JOB_NODELIST": "127.0.0.[1-2"}, "SLURM_JOB_NODELIST: '127.0.0.[1-2': '[' is not closed"),
                            ({"SLURM_NODEID": "1"}, "SLURM_NODEID: 1, and in blocks over SLURM_JOB_NODELIST")):
        done = subprocess.run([BINARY, "rank", "--config", str(cluster)], env={**wrong, **change}, capture_output=True, text=True, timeout=60)
        assert done.returncode == 2 and message in done.stderr, done.stderr


def test_a_rank_that_cannot_be_is_refused_by_name(tmp_path):
    cluster = tmp_path / "cluster.yaml"
    cluster.write_text(json.dumps({"model": str(ARITH), "afd": {"attention": ["a:1", "a:2"], "ffn": ["b:1"]}}))
    for environment, message in (
        ({"SLURM_PROCID": "1", "SLURM_NTASKS": "4"}, "SLURM_PROCID 1 of 4: 2A1F takes 3 processes"),
        ({"JOB_COMPLETION_INDEX": "3"}, "JOB_COMPLETION_INDEX 3: 2A1F has ranks 0..2"),
    ):
        done = subprocess.run([BINARY, "rank", "--config", str(cluster)], env=environment, capture_output=True, text=True, timeout=60)
        assert done.returncode != 0 and message in done.stderr, done.stderr
    done = subprocess.run([BINARY, "up", "--model", str(ARITH), "--attention", "2", "--ffn", "0", "--once"], capture_output=True, text=True,
                          timeout=60)
    assert done.returncode == 2 and "up.attention: 2 with up.ffn 0" in done.stderr, done.stderr


def test_a_front_refuses_ranks_in_the_wrong_order_and_of_another_model(ranks, tmp_path):
    a0, f0 = (f"tcp://127.0.0.1:{port}" for port in free_ports(2))
    ranks.start("ffn", "ffn", "--model", str(ARITH), "--listen", f0)
    ranks.start("attention", "attention", "--model", str(ARITH), "--ffn", f0, "--attention-listen", a0, "--attention-rank", "1",
                "--num-attention-ranks", "2").wait_ready()
    front = [BINARY, "serve", "--model", str(ARITH), "--attention", a0, "--port", "0"]
    done = subprocess.run(front, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and "says that it is attention rank 1" in done.stderr, done.stderr

    other = tmp_path / "other"
    other.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        if (ARITH / name).exists():
            (other / name).write_bytes((ARITH / name).read_bytes())
    (other / "tokenizer.json").write_bytes((other / "tokenizer.json").read_bytes() + b"\n")
    done = subprocess.run([BINARY, "serve", "--model", str(other), "--attention", a0, "--port", "0"], capture_output=True, text=True,
                          timeout=60)
    assert done.returncode == 2 and "tokenizer is" in done.stderr, done.stderr


def test_a_front_refuses_ranks_that_round_keys_differently(ranks):
    a0, a1, f0 = (f"tcp://127.0.0.1:{port}" for port in free_ports(3))
    ranks.start("ffn", "ffn", "--model", str(ARITH), "--listen", f0)
    for rank, (address, dtype) in enumerate(((a0, "auto"), (a1, "fp8"))):
        ranks.start(f"attention{rank}", "attention", "--model", str(ARITH), "--ffn", f0, "--attention-listen", address, "--attention-rank",
                    str(rank), "--num-attention-ranks", "2", "--kv-cache-dtype", dtype).wait_ready()
    done = subprocess.run([BINARY, "serve", "--model", str(ARITH), "--attention", f"{a0},{a1}", "--port", "0"], capture_output=True, text=True,
                          timeout=60)
    assert done.returncode == 2 and "engine.kv_cache_dtype is bf16" in done.stderr and "f8_e4m3" in done.stderr, done.stderr


@pytest.mark.parametrize("attention,ffn,transport", ((2, 1, "shm"), (1, 3, "tcp"), (1, 4, "shm"), (3, 2, "inproc"), (4, 4, "shm")))
def test_one_command_equals_colocated(attention, ffn, transport, tmp_path):
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": question}) + "\n" for question in QUESTIONS))

    def run(*flags):
        done = subprocess.run([BINARY, "generate", "--model", str(ARITH), "--prompts-file", str(prompts), "--max-tokens", "12", "--json",
                               "--deterministic", *flags], capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    split = run("--attention", str(attention), "--ffn", str(ffn), "--transport", transport, *M2N)
    assert split["logits_hash"] == run()["logits_hash"]
    assert [(rank["role"], rank["rank"]) for rank in split["ranks"]] == (
        [("attention", rank) for rank in range(attention)] + [("ffn", rank) for rank in range(ffn)])
