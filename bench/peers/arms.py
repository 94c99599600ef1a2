"""The engines: which command lines measure what, and how each one's output is read. An arm runs one process a command, and a process
may measure several cells. What is missing is named before anything runs."""

import dataclasses
import json
import pathlib
import random
import sys

import outputs
from table import TANDEM

HERE = pathlib.Path(__file__).resolve().parent
PREFILL, CONTEXT, GENERATED, BATCHES = (512, 2048), 256, 32, (1, 8, 32)
GGUF_TYPES = {16: "bf16", 8: "q8_0", 4: "q4_0"}
TANDEM_WEIGHTS = {16: "auto", 8: "int8", 4: "mxfp4"}


@dataclasses.dataclass
class Command:
    engine: str
    words: list
    parse: object  # text of standard output -> {cell: tokens a second}
    prepares: bool = False  # it loads, prints "ready", and measures once a line comes


def prompts(path, vocab_size, lengths):
    """Prompts of random tokens, other ones for each line, as `tandem generate --prompts-file` takes them."""
    random.seed(len(lengths) * 100003 + lengths[-1])
    lines = [json.dumps({"prompt_ids": [random.randrange(1, vocab_size) for _ in range(length)]}) for length in lengths]
    path.write_text("\n".join(lines) + "\n")
    return str(path)


class Tandem:
    name = TANDEM

    def __init__(self, binary, scratch):
        self.binary, self.scratch = binary, scratch

    def missing(self, _model, _bits):
        return None if pathlib.Path(self.binary).exists() else f"Tandem: {self.binary} is not there; build this tree"

    def commands(self, model, bits, threads):
        vocab = json.loads((model / "config.json").read_text())["vocab_size"]
        base = [self.binary, "generate", "--model", str(model), "--threads", str(threads), "--weights", TANDEM_WEIGHTS[bits],
                "--ignore-eos", "--json", "--max-context-tokens", "4096", "--log-level", "error"]
        # The first prompt warms up, with steps of full size as the other engines do; of prompts of one length the last one counts.
        lengths = [PREFILL[1], *PREFILL, CONTEXT]
        yield Command(self.name, [*base, "--prompts-file", prompts(self.scratch / f"{model.name}-1", vocab, lengths), "--one-by-one",
                                  "--max-num-batched-tokens", str(max(PREFILL)), "--max-tokens", str(GENERATED)],
                      outputs.tandem_one_by_one)
        for batch in BATCHES[1:]:
            # Prompts are prefilled 1024 tokens a step, and the first ones decode meanwhile: that much more, so that GENERATED are common.
            meanwhile = batch * CONTEXT // 1024 + 1
            yield Command(self.name, [*base, "--prompts-file", prompts(self.scratch / f"{model.name}-{batch}", vocab, [CONTEXT] * batch),
                                      "--max-num-batched-tokens", "1024", "--max-tokens", str(GENERATED + meanwhile)],
                          outputs.tandem_batch)


class Gguf:
    """An engine that reads MODEL-TYPE.gguf from a folder (gguf_files.py makes them)."""

    def __init__(self, name, folder):
        self.name, self.folder = name, folder

    def file(self, model, bits):
        return self.folder / f"{model.name}-{GGUF_TYPES[bits]}.gguf"

    def missing(self, model, bits):
        file = self.file(model, bits)
        return None if file.exists() else f"{self.name}: {file} is not there; make it with gguf_files.py"


class LlamaFamily(Gguf):
    """llama.cpp or ik_llama.cpp. `driver`: gguf_bench.cc against its library; `bench`: its own llama-bench, for prefill where it is given."""

    def __init__(self, name, driver, bench, folder, repack=False):
        super().__init__(name, folder)
        self.driver, self.bench, self.repack = driver, bench, repack

    def commands(self, model, bits, threads):
        file = str(self.file(model, bits))
        words = [self.driver, file, str(threads), str(int(self.repack))]
        lengths = list(map(str, PREFILL))
        if self.bench:
            mode = ["-rtr", "1", "-mmp", "0"] if self.repack else []
            yield Command(self.name, [self.bench, "-m", file, "-t", str(threads), "-p", ",".join(lengths), "-n", "0", "-r", "1", "-fa",
                                      "1", *mode, "-o", "json"], outputs.llama_bench)
        else:
            yield Command(self.name, [*words, "prefill", *lengths], outputs.worker, prepares=True)
        for batch in BATCHES:
            yield Command(self.name, [*words, "decode", str(CONTEXT), str(GENERATED), str(batch)], outputs.worker, prepares=True)


class Worker:
    """An engine of Python: workers/NAME_worker.py in an environment that environments.py made. bf16 only."""

    def __init__(self, name, script, environments):
        self.name, self.script = name, HERE / "workers" / f"{script}_worker.py"
        self.python = environments / script / "bin" / "python"

    def missing(self, _model, bits):
        if bits != 16:
            return f"{self.name}: measured in bf16 only; its checkpoints of {bits} bits need tools of their own"
        return None if self.python.exists() else f"{self.name}: {self.python} is not there; make it with environments.py"

    def commands(self, model, _bits, threads):
        words = [str(self.python), "-B", str(self.script), str(model), str(threads)]
        yield Command(self.name, [*words, "prefill", *map(str, PREFILL)], outputs.worker, prepares=True)
        for batch in BATCHES:
            yield Command(self.name, [*words, "decode", str(CONTEXT), str(GENERATED), str(batch)], outputs.worker, prepares=True)


def make(options):
    """The arms that the options name, and for the others a line that says what would add them."""
    folder, arms, absent = pathlib.Path(options.gguf), [Tandem(options.tandem, options.scratch)], []

    def add(condition, arm, hint):
        arms.append(arm()) if condition else absent.append(hint)

    # Each mode (weights as in the file, or repacked at load) is an engine of its own in the table: users pick the better one.
    for repack in (True, False):
        add(options.ik_driver,
            lambda repack=repack: LlamaFamily("ik_llama.cpp" + (", repacked" if repack else ""), options.ik_driver,
                                              options.ik_llama_bench, folder, repack),
            "ik_llama.cpp: give --ik-driver PATH, built from gguf_bench.cc")
    add(options.llama_driver, lambda: LlamaFamily("llama.cpp", options.llama_driver, options.llama_bench, folder),
        "llama.cpp: give --llama-driver PATH, built from gguf_bench.cc")
    for name, script in (("vLLM CPU", "vllm"), ("transformers", "transformers"), ("fastllm", "fastllm")):
        add(options.environments and (pathlib.Path(options.environments) / script / "bin" / "python").exists(),
            lambda name=name, script=script: Worker(name, script, pathlib.Path(options.environments)),
            f"{name}: give --environments FOLDER, made with environments.py FOLDER {script}")
    return arms, list(dict.fromkeys(absent))


if __name__ == "__main__":
    sys.exit("arms.py is used by run.py")
