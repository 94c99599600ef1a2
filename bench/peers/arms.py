"""The engines: the process that holds each one's model, what it is asked, and how its answers are read. What is missing is named before
anything runs."""

import dataclasses
import json
import pathlib
import random
import sys

import outputs
from session import Session
from table import TANDEM

HERE = pathlib.Path(__file__).resolve().parent
GGUF_TYPES = {16: "bf16", 8: "q8_0", 4: "q4_0"}
TANDEM_WEIGHTS = {16: "auto", 8: "int8", 4: "mxfp4"}


@dataclasses.dataclass(frozen=True)
class Cell:
    """Prefill of one prompt of `length` tokens (batch 0), or decode of `generated` tokens by `batch` sequences behind prompts of
    `length` tokens."""

    length: int
    generated: int = 0
    batch: int = 0

    @property
    def name(self):
        return f"decode b{self.batch}" if self.batch else f"prefill {self.length}"

    @property
    def words(self):
        return f"decode {self.length} {self.generated} {self.batch}" if self.batch else f"prefill {self.length}"


# A batch reads most experts in every step, so that fewer steps are as steady.
CELLS = [Cell(512), Cell(2048), Cell(256, 32, 1), Cell(256, 16, 8), Cell(256, 16, 32)]


class Tandem:
    """`generate --prompts-file -`. The prompts of a batch come again in each round: the prefix cache keeps their prefill, which
    no other engine's measurement contains either, out of it. Prompts whose prefill is measured are new ones."""

    name = TANDEM

    def __init__(self, binary):
        self.binary = binary

    def missing(self, _model, _bits):
        return None if pathlib.Path(self.binary).exists() else f"Tandem: {self.binary} is not there; build this tree"

    def start(self, model, bits, threads, scratch):
        self.vocab_size = json.loads((model / "config.json").read_text())["vocab_size"]
        self.random, self.batches = random.Random(20261130), {}
        return Session([self.binary, "generate", "--model", str(model), "--threads", str(threads), "--weights", TANDEM_WEIGHTS[bits],
                        "--prompts-file", "-", "--ignore-eos", "--json", "--max-context-tokens", "4096", "--max-num-batched-tokens", "2048",
                        "--log-level", "error"], ("answers",), scratch)

    def prompt(self, length, max_tokens):
        return {"prompt_ids": [self.random.randrange(1, self.vocab_size) for _ in range(length)], "max_tokens": max_tokens}

    def prepare(self, session, cell):
        self.batches[cell] = [self.prompt(cell.length, 2) for _ in range(cell.batch or 1)]
        session.ask(json.dumps(self.batches[cell]))

    def measure(self, session, cell):
        if not cell.batch:
            return outputs.tandem_prefill(session.ask(json.dumps(self.prompt(cell.length, 1))))
        tokens = cell.generated + 2  # two steps that are not counted: prompts not wholly cached begin one after the other
        return outputs.tandem_decode(session.ask(json.dumps([prompt | {"max_tokens": tokens} for prompt in self.batches[cell]])))


class Peer:
    """A process with the protocol of workers/measuring.py."""

    def prepare(self, session, cell):
        session.ask("prepare " + cell.words)

    def measure(self, session, cell):
        return session.ask("measure " + cell.words)["tokens_per_second"]


class Gguf(Peer):
    """llama.cpp or ik_llama.cpp: `driver` is gguf_bench.cc against its library; it reads MODEL-TYPE.gguf from a folder."""

    def __init__(self, name, driver, folder, repack=False):
        self.name, self.driver, self.folder, self.repack = name, driver, folder, repack

    def file(self, model, bits):
        return self.folder / f"{model.name}-{GGUF_TYPES[bits]}.gguf"

    def missing(self, model, bits):
        file = self.file(model, bits)
        return None if file.exists() else f"{self.name}: {file} is not there; make it with gguf_files.py"

    def start(self, model, bits, threads, scratch):
        words = [self.driver, str(self.file(model, bits)), str(threads), str(int(self.repack))]
        return Session(words, ("prepared", "tokens_per_second"), scratch)


class Worker(Peer):
    """An engine of Python: workers/NAME_worker.py in an environment that environments.py made. bf16 only."""

    def __init__(self, name, script, environments):
        self.name, self.script = name, HERE / "workers" / f"{script}_worker.py"
        self.python = environments / script / "bin" / "python"

    def missing(self, _model, bits):
        if bits != 16:
            return f"{self.name}: measured in bf16 only; its checkpoints of {bits} bits need tools of their own"
        return None if self.python.exists() else f"{self.name}: {self.python} is not there; make it with environments.py"

    def start(self, model, _bits, threads, scratch):
        return Session([str(self.python), "-B", str(self.script), str(model), str(threads)], ("prepared", "tokens_per_second"), scratch)


def make(options):
    """The arms that the options name, Tandem first, and for the others a line that says what would add them."""
    folder, arms, absent = pathlib.Path(options.gguf), [Tandem(options.tandem)], []

    def add(condition, arm, hint):
        arms.append(arm()) if condition else absent.append(hint)

    # Each mode (weights as in the file, or repacked at load) is an engine of its own in the table: users pick the better one.
    for repack in (True, False):
        add(options.ik_driver,
            lambda repack=repack: Gguf("ik_llama.cpp" + (", repacked" if repack else ""), options.ik_driver, folder, repack),
            "ik_llama.cpp: give --ik-driver PATH, built from gguf_bench.cc")
    add(options.llama_driver, lambda: Gguf("llama.cpp", options.llama_driver, folder),
        "llama.cpp: give --llama-driver PATH, built from gguf_bench.cc")
    for name, script in (("vLLM CPU", "vllm"), ("transformers", "transformers"), ("fastllm", "fastllm")):
        add(options.environments and (pathlib.Path(options.environments) / script / "bin" / "python").exists(),
            lambda name=name, script=script: Worker(name, script, pathlib.Path(options.environments)),
            f"{name}: give --environments FOLDER, made with environments.py FOLDER {script}")
    return arms, list(dict.fromkeys(absent))


if __name__ == "__main__":
    sys.exit("arms.py is used by run.py")
