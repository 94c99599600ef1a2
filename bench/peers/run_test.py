"""The harness as a command: what is missing is named, engines that print figures end in the table. Engines are scripts that print recorded
lines; the models are folders with a config alone."""

import json
import pathlib
import random
import subprocess
import sys
import types

import numpy as np
import pytest

import arms
import environments
import make_checkpoints
import run
import session
import shapes

HERE = pathlib.Path(__file__).resolve().parent


def script(path, text):
    path.write_text("#!/bin/sh\n" + text)
    path.chmod(0o755)
    return str(path)


def harness(*words):
    return subprocess.run([sys.executable, "-B", str(HERE / "run.py"), *map(str, words)], capture_output=True, text=True, check=False)


@pytest.fixture
def models(tmp_path):
    (tmp_path / "models" / "M1").mkdir(parents=True)
    (tmp_path / "models" / "M1" / "config.json").write_text(json.dumps({"vocab_size": 1000}))
    return tmp_path / "models"


def program(path, text):
    path.write_text(f"#!{sys.executable}\n" + text)
    path.chmod(0o755)
    return str(path)


ROOFS = {"tables": [{"in_use": True, "bf16_dot": {"all_threads": 900},
                     "read": {"small_pages": {"all_threads": 40}, "huge_pages": {"all_threads": 44}}}]}


def fake_tandem(path):
    """Half a second for the first token, 20 ms for each more; it has no memory for 32 sequences, and remembers prompts as a prefix cache."""
    return program(path, f"""import json, sys
if "roofs" in sys.argv:
    print({json.dumps(ROOFS)!r})
    sys.exit()
if "--prompts-file" not in sys.argv:
    sys.exit("tandem: unknown command")
seen = set()
for line in sys.stdin:
    prompts = json.loads(line)
    prompts = prompts if isinstance(prompts, list) else [prompts]
    if len(prompts) == 32:
        sys.exit("tandem: out of memory")
    answers = [{{"prompt_tokens": len(prompt["prompt_ids"]), "first_token_seconds": 0.5, "cached_tokens": 16 * (str(prompt["prompt_ids"]) in seen),
                 "token_seconds": [0.5 + 0.02 * i for i in range(prompt["max_tokens"])]}} for prompt in prompts]
    seen |= {{str(prompt["prompt_ids"]) for prompt in prompts}}
    print(json.dumps({{"answers": answers}}), flush=True)
""")


DRIVER = """import json, sys
rates = {"prefill 512": 500.0, "prefill 2048": 5000.0, "decode 256 32 1": 25.0}
prepared = None
for line in sys.stdin:
    verb, cell = line.strip().split(" ", 1)
    if verb == "prepare":
        prepared = cell
        if cell.endswith(" 8"):
            sys.exit("no memory")
        print("a line of its log\\n{not json}")
        print(json.dumps({"prepared": cell}), flush=True)
    elif cell == prepared:
        print(json.dumps({"cell": cell, "tokens_per_second": rates[cell]}), flush=True)
"""


def test_a_run_makes_the_table_and_names_what_failed(models, tmp_path):
    held = script(tmp_path / "held", f'echo "$1" >> {tmp_path / "prefixed"}; exec "$@"\n')
    (tmp_path / "gguf").mkdir()
    (tmp_path / "gguf" / "M1-bf16.gguf").write_text("")
    done = harness("--models", models, "--only", "M1", "--repetitions", 2, "--output", tmp_path / "peers", "--tandem",
                   fake_tandem(tmp_path / "tandem"), "--gguf", tmp_path / "gguf", "--llama-driver", program(tmp_path / "driver", DRIVER),
                   "--prefix", held)
    assert done.returncode == 1, done.stderr
    assert "M1, 16 bits, Tandem: ended, status 1: tandem: out of memory" in done.stderr
    assert "M1, 16 bits, llama.cpp: ended, status 1: no memory" in done.stderr
    assert "not compared: ik_llama.cpp: give --ik-driver PATH" in done.stderr
    assert "not compared: vLLM CPU: give --environments FOLDER" in done.stderr
    rows = {row["cell"]: row for row in json.loads((tmp_path / "peers.json").read_text())["table"]}
    assert rows["prefill 512"]["ratio"] == pytest.approx(1024 / 500) and rows["prefill 512"]["verdict"] == "won, goal met"
    assert rows["prefill 2048"]["verdict"] == "lost"
    assert rows["decode b1"]["ratio"] == pytest.approx(2.0)
    assert rows["decode b8"]["engines"]["Tandem"] == {"tokens_per_second": pytest.approx(400), "read_gigabytes_per_second": 44, "runs": 2}
    assert "decode b32" not in rows
    assert (tmp_path / "peers.md").read_text() in done.stdout
    assert (tmp_path / "prefixed").read_text() == "sh\n" * 10  # one for each round


def test_a_prefix_that_cannot_run_a_command_is_named(models, tmp_path):
    done = harness("--models", models, "--only", "M1", "--tandem", fake_tandem(tmp_path / "tandem"), "--output", tmp_path / "peers",
                   "--prefix", "false")
    assert done.returncode == 1 and "false ended with status 1 before it ran a command" in done.stderr


def test_tandem_is_measured_with_as_many_others_as_memory_allows():
    engines = [types.SimpleNamespace(name=name) for name in ("Tandem", "a", "b", "c")]
    assert [[arm.name for arm in group] for group in run.groups(engines, 2)] == [["Tandem", "a", "b"], ["Tandem", "c"]]
    assert [[arm.name for arm in group] for group in run.groups(engines[1:], 3)] == [["a", "b", "c"]]
    assert [[arm.name for arm in group] for group in run.groups(engines[:1], 1)] == [["Tandem"]]


def test_models_and_files_that_are_not_there_are_named(models, tmp_path):
    done = harness("--models", models, "--only", "M2", "--tandem", fake_tandem(tmp_path / "tandem"), "--output", tmp_path / "peers")
    assert done.returncode == 1 and "M2 has no config.json; write it with make_checkpoints.py" in done.stderr
    done = harness("--models", models, "--only", "M1", "--repetitions", 1, "--tandem", tmp_path / "none", "--gguf", tmp_path,
                   "--llama-driver", "x", "--output", tmp_path / "peers")
    assert f"not compared: Tandem: {tmp_path / 'none'} is not there; build this tree" in done.stderr
    assert "M1-bf16.gguf is not there; make it with gguf_files.py" in done.stderr


def test_workers_are_measured_in_bf16_only(tmp_path):
    worker = arms.Worker("vLLM CPU", "vllm", tmp_path)
    assert "bf16 only" in worker.missing(None, 8)
    assert "make it with environments.py" in worker.missing(None, 16)


def test_prompts_of_a_batch_differ_and_stay_the_same_in_each_round(models, tmp_path):
    tandem = arms.Tandem("unused")
    asked = []
    session = types.SimpleNamespace(ask=lambda line: asked.append(json.loads(line)) or {
        "answers": [{"prompt_tokens": 1, "cached_tokens": 0, "first_token_seconds": 1, "token_seconds": list(range(20))}] * 8})
    tandem.vocab_size, tandem.random, tandem.batches = 50000, random.Random(1), {}
    cell = arms.Cell(256, 16, 8)
    tandem.prepare(session, cell)
    tandem.measure(session, cell)
    tandem.measure(session, cell)
    prompts = [[prompt["prompt_ids"] for prompt in line] for line in asked]
    assert len({str(ids) for ids in prompts[0]}) == 8 and all(len(ids) == 256 for ids in prompts[0])
    assert prompts[0] == prompts[1] == prompts[2]


def test_requirements_of_a_cpu_wheel_name_the_plain_torch():
    needed = environments.requirements("\n".join([
        "Requires-Dist: numpy", "Requires-Dist: torchvision", 'Requires-Dist: pytest; extra == "test"',
        'Requires-Dist: torch==2.13.0+cpu; platform_machine == "x86_64"', 'Requires-Dist: torch==2.13.0; platform_system == "Darwin"']))
    assert needed == ["numpy", "torch==2.13.0"]


@pytest.mark.parametrize("name", list(shapes.MODELS))
def test_checkpoints_have_the_bytes_of_the_originals(name):
    # Parameters: 1.33 B of GraniteMoE-1b; 6 of 27 and 4 of 48 layers of the others, with the small vocabulary.
    total = sum(int(np.prod(shape)) for tensors in shapes.files(shapes.MODELS[name]) for shape in tensors.values())
    assert total == pytest.approx({"M1": 1.335e9, "M2": 3.13e9, "M3": 2.62e9}[name], rel=0.01)


def test_a_small_checkpoint_is_read_back(tmp_path):
    config = dict(shapes.MODELS["M3"], num_hidden_layers=1, hidden_size=16, vocab_size=300, num_experts=2, moe_intermediate_size=8,
                  num_attention_heads=2, num_key_value_heads=1, head_dim=8)
    make_checkpoints.write_model(tmp_path, config)
    raw = (tmp_path / "model-00001-of-00002.safetensors").read_bytes()
    size = int.from_bytes(raw[:8], "little")
    entry = json.loads(raw[8:8 + size])["model.layers.0.mlp.experts.1.down_proj.weight"]
    begin, end = (8 + size + offset for offset in entry["data_offsets"])
    values = (np.frombuffer(raw[begin:end], np.uint16).astype(np.uint32) << 16).view(np.float32)
    assert entry["shape"] == [16, 8] and values.size == 128
    assert 0.2 < values.std() < 0.5  # 8 ** -0.5 is 0.35
    vocab = json.loads((tmp_path / "tokenizer.json").read_text())["model"]["vocab"]
    assert sorted(vocab.values()) == list(range(300))
    assert len({make_checkpoints.tensor(n, (4, 4)).tobytes() for n in "abab"}) == 2


def test_options_decide_the_arms(tmp_path):
    options = types.SimpleNamespace(gguf=tmp_path, tandem="t", ik_driver="a", llama_driver=None, environments=None)
    engines, absent = arms.make(options)
    assert [arm.name for arm in engines] == ["Tandem", "ik_llama.cpp, repacked", "ik_llama.cpp"]
    assert any(line.startswith("llama.cpp: give --llama-driver PATH") for line in absent)


def test_workers_speak_the_protocol(tmp_path):
    """measuring.py itself, with an engine that takes a second for each token of a prompt."""
    (tmp_path / "config.json").write_text('{"vocab_size": 100}')
    worker = tmp_path / "worker.py"
    worker.write_text(f"""import sys
sys.path.insert(0, {str(HERE / "workers")!r})
import measuring
measuring.serve(prefill=lambda prompt: float(len(prompt)), prepare_decode=lambda prompts: prompts,
                decode=lambda prompts, generated: len(set(map(str, prompts))) * generated)
""")
    engine = session.Session([sys.executable, "-B", str(worker), str(tmp_path), "2"], ("prepared", "tokens_per_second"), tmp_path)
    peer = arms.Peer()
    peer.prepare(engine, arms.Cell(512))
    assert peer.measure(engine, arms.Cell(512)) == 1.0
    for _ in range(2):
        peer.prepare(engine, arms.Cell(256, 16, 8))
        assert peer.measure(engine, arms.Cell(256, 16, 8)) == peer.measure(engine, arms.Cell(256, 16, 8)) == 128
    with pytest.raises(ValueError, match="(?s)ended, status 1: .*KeyError"):
        peer.measure(engine, arms.Cell(256, 16, 32))
