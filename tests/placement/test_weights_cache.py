"""Packed weights from a cache: the bits of the first start, in every placement, whatever happened to the files."""

import json
import os
import shutil
import subprocess

import pytest

from .test_bit_equality import BINARY, MODELS, generate, outcome, prompts  # noqa: F401: prompts is a fixture


def files(cache):
    return sorted(path for path in cache.iterdir())


def log_of(model, cache, *flags):
    command = [BINARY, "generate", "--model", str(model), "--weights-cache", str(cache), "--prompt=1+1=",
               "--max-tokens", "2", "--max-context-tokens", "128", "--kv-cache-tokens", "256", *flags]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return [line.split("weights cache: ", 1)[1] for line in done.stderr.splitlines() if "weights cache: " in line], done.stdout


@pytest.mark.parametrize("model", ("arith", "deepseek_v3", "deepseek_v4", "granitemoe"))
def test_second_start_has_the_bits_of_the_first(model, prompts, tmp_path):  # noqa: F811
    plain = generate(model, prompts)
    for start in (1, 2):
        assert outcome(generate(model, prompts, "--weights-cache", str(tmp_path))) == outcome(plain), start
    assert len(files(tmp_path)) == 1


def test_ranks_have_files_of_their_own_and_the_bits_of_one_process(prompts, tmp_path):  # noqa: F811
    plain = generate("deepseek_v3", prompts)
    for placement, count in (("expert", 3), ("slice", 5)):
        for start in (1, 2):
            split = generate("deepseek_v3", prompts, "--ffn", "2", "--transport", "shm", "--placement", placement, "--weights-cache", str(tmp_path))
            assert outcome(split) == outcome(plain), (placement, start)
            assert len(files(tmp_path)) == count, files(tmp_path)  # attention's stays the same


def test_the_log_says_what_was_done_and_why(tmp_path):
    model, cache = tmp_path / "arith", tmp_path / "cache"
    shutil.copytree(MODELS["arith"], model)
    first, text = log_of(model, cache)
    [file] = files(cache)
    assert len(first) == 2 and first[0] == f"{file} is not there yet" and f" written to {file} in " in first[1]
    [second], same = log_of(model, cache)
    assert f"mapped from {file}" in second and same == text

    with file.open("r+b") as damaged:
        damaged.seek(-1000, os.SEEK_END)
        damaged.write(b"x")
    refused, same = log_of(model, cache)
    assert refused[0].startswith(f"{file} is damaged in the 2097152 bytes from ") and refused[0].endswith("; packing the weights again")
    assert "written to" in refused[1] and same == text
    assert "mapped from" in log_of(model, cache)[0][0]

    shard = next(model.glob("*.safetensors"))
    os.utime(shard, (1, 1))
    changed, _ = log_of(model, cache)
    assert "the checkpoint has changed" in changed[0] and "written to" in changed[1]
    other, _ = log_of(model, cache, "--compute-dtype", "float32")
    assert "is not there yet" in other[0] and len(files(cache)) == 2


def test_a_folder_that_takes_no_files_costs_nothing_and_a_file_is_refused(tmp_path):
    lines, _ = log_of(MODELS["arith"], "/proc/self/cache")
    assert lines[-1].endswith("the next start packs again")
    (tmp_path / "file").write_text("")
    done = subprocess.run([BINARY, "generate", "--model", str(MODELS["arith"]), "--weights-cache", str(tmp_path / "file"), "--prompt", "1"],
                          capture_output=True, text=True, timeout=120)
    assert done.returncode != 0 and f"engine.weights_cache: {tmp_path / 'file'} is not a folder; name one, or off" in done.stderr


def test_many_processes_may_share_one_folder(tmp_path):
    command = [BINARY, "generate", "--model", str(MODELS["arith"]), "--weights-cache", str(tmp_path), "--prompt", "1+1=", "--json", "--deterministic",
               "--max-tokens", "2", "--max-context-tokens", "128", "--kv-cache-tokens", "256", "--threads", "1"]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(4)]
    done = [process.communicate(timeout=120) for process in running]
    assert all(process.returncode == 0 for process in running), done
    assert len({json.loads(out)["logits_hash"] for out, _ in done}) == 1
    assert len(files(tmp_path)) == 1
