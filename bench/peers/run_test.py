"""The harness as a command: what is missing is named, engines that print figures end in the table. Engines are scripts that print recorded
lines; the models are folders with a config alone."""

import json
import pathlib
import subprocess
import sys
import types

import numpy as np
import pytest

import arms
import environments
import make_checkpoints
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


def fake_tandem(path):
    roofs = {"tables": [{"in_use": True, "bf16_dot": {"all_threads": 900},
                         "read": {"small_pages": {"all_threads": 40}, "huge_pages": {"all_threads": 44}}}]}
    times = [0.5 + 0.02 * i for i in range(40)]
    one_by_one = {"answers": [{"prompt_tokens": n, "first_token_seconds": 0.5, "token_seconds": times} for n in (512, 512, 2048, 256)]}
    batch = {"answers": [{"prompt_tokens": 256, "first_token_seconds": 0.5, "token_seconds": times}] * 8}
    return script(path, f"""case "$*" in
bench*roofs*) echo '{json.dumps(roofs)}' ;;
*--one-by-one*) echo '{json.dumps(one_by_one)}' ;;
*-8' '*) echo '{json.dumps(batch)}' ;;
*) echo 'tandem: out of memory' >&2; exit 1 ;;
esac
""")


def test_a_run_makes_the_table_and_names_what_failed(models, tmp_path):
    tandem = fake_tandem(tmp_path / "tandem")
    driver = script(tmp_path / "driver", """[ "$4 $7" = "decode 32" ] && { echo 'no memory' >&2; exit 3; }
echo ready; read line; [ "$line" = go ] || exit 4
case "$4 $7" in
prefill*) echo '{"cell": "prefill 512", "tokens_per_second": 500.0}'; echo '{"cell": "prefill 2048", "tokens_per_second": 5000.0}' ;;
"decode 1") echo '{"cell": "decode b1", "tokens_per_second": 25.0}' ;;
esac
""")
    (tmp_path / "gguf").mkdir()
    (tmp_path / "gguf" / "M1-bf16.gguf").write_text("")
    output = tmp_path / "peers"
    done = harness("--models", models, "--only", "M1", "--repetitions", 1, "--output", output, "--tandem", tandem,
                   "--gguf", tmp_path / "gguf", "--llama-driver", driver)
    assert done.returncode == 1, done.stderr
    assert "M1, 16 bits, Tandem: status 1: tandem: out of memory" in done.stderr
    assert "M1, 16 bits, llama.cpp: status 3 before it was ready: no memory" in done.stderr
    assert "M1, 16 bits, llama.cpp: no line with a cell" in done.stderr  # batch 8: it ended without a figure
    assert "not compared: ik_llama.cpp: give --ik-driver PATH" in done.stderr
    assert "not compared: vLLM CPU: give --environments FOLDER" in done.stderr
    rows = {row["cell"]: row for row in json.loads((tmp_path / "peers.json").read_text())["table"]}
    assert rows["prefill 512"]["ratio"] == pytest.approx(1024 / 500) and rows["prefill 512"]["verdict"] == "won, goal met"
    assert rows["prefill 2048"]["verdict"] == "lost"
    assert rows["decode b1"]["ratio"] == pytest.approx(2.0)
    assert rows["decode b8"]["engines"]["Tandem"]["read_gigabytes_per_second"] == 44
    assert (tmp_path / "peers.md").read_text() in done.stdout


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


def test_prompts_of_a_batch_differ(tmp_path):
    lines = pathlib.Path(arms.prompts(tmp_path / "p", 50000, [256] * 8)).read_text().splitlines()
    assert len(lines) == len(set(lines)) == 8
    assert all(len(json.loads(line)["prompt_ids"]) == 256 for line in lines)


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
    options = types.SimpleNamespace(gguf=tmp_path, tandem="t", scratch=tmp_path, ik_driver="a", ik_llama_bench=None, llama_driver=None,
                                    llama_bench=None, environments=None)
    engines, absent = arms.make(options)
    assert [arm.name for arm in engines] == ["Tandem", "ik_llama.cpp, repacked", "ik_llama.cpp"]
    assert any(line.startswith("llama.cpp: give --llama-driver PATH") for line in absent)


def test_a_given_llama_bench_measures_the_prefill(tmp_path):
    arm = arms.LlamaFamily("ik_llama.cpp, repacked", "driver", "llama-bench", tmp_path, repack=True)
    commands = list(arm.commands(pathlib.Path("M1"), 8, 2))
    assert commands[0].words[:3] == ["llama-bench", "-m", str(tmp_path / "M1-q8_0.gguf")] and "-rtr" in commands[0].words
    assert not commands[0].prepares and [command.words[4] for command in commands[1:]] == ["decode"] * 3
