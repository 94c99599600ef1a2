"""`tandem eval perplexity` against the reference's logits in float64, in windows, and in every placement."""

import json
import math
import shutil
import struct
import subprocess

import numpy
import pytest

from tests.conftest import ARITH, BINARY, ROOT

FIXTURES = ROOT / "tests" / "fixtures"
FIRST = 0x4E00  # the character of token 0: three bytes each


def score(model, text, *flags, status=0):
    done = subprocess.run([BINARY, "eval", "perplexity", "--model", str(model), "--text", str(text), "--json", "--log-level", "error", *map(str, flags)],
                          capture_output=True, text=True, timeout=120)
    assert done.returncode == status, (done.returncode, done.stderr)
    return json.loads(done.stdout) if status == 0 else done.stderr


def read_tensor(path, name):
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    entry = json.loads(data[8:8 + length])[name]
    begin, end = (8 + length + offset for offset in entry["data_offsets"])
    dtype = {"F32": numpy.float32, "I32": numpy.int32}[entry["dtype"]]
    return numpy.frombuffer(data[begin:end], dtype).reshape(entry["shape"])


def with_tokenizer(fixture, folder):
    """A copy of the fixture whose tokenizer has one character for each token."""
    shutil.copytree(FIXTURES / fixture, folder)
    size = json.loads((folder / "config.json").read_text())["vocab_size"]
    vocabulary = {chr(FIRST + token): token for token in range(size - 1)} | {"<unk>": size - 1}
    model = {"type": "BPE", "dropout": None, "unk_token": "<unk>", "continuing_subword_prefix": None, "end_of_word_suffix": None,
             "fuse_unk": False, "byte_fallback": False, "ignore_merges": False, "vocab": vocabulary, "merges": []}
    (folder / "tokenizer.json").write_text(json.dumps({
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None, "pre_tokenizer": None,
        "post_processor": None, "decoder": {"type": "Sequence", "decoders": [{"type": "Fuse"}]}, "model": model}))
    return folder


@pytest.mark.parametrize("fixture", ("mixtral", "deepseek_v3", "qwen3_moe"))
def test_it_is_the_reference_s_in_float64(fixture, tmp_path):
    folder = with_tokenizer(fixture, tmp_path / fixture)
    parity = folder / "parity.safetensors"
    last = len(json.loads((folder / "parity.json").read_text())["prompts"]) - 1
    ids = read_tensor(parity, f"prompt.{last}.ids")
    logits = read_tensor(parity, f"prompt.{last}.logits").astype(numpy.float64)[:-1]
    nats = numpy.logaddexp.reduce(logits, axis=1) - logits[numpy.arange(len(ids) - 1), ids[1:]]
    text = tmp_path / "text.txt"
    text.write_text("".join(chr(FIRST + token) for token in ids), encoding="utf-8")
    found = score(folder, text, "--compute-dtype", "float32", "--deterministic")
    assert (found["tokens"], found["scored_tokens"], found["bytes"], found["windows"]) == (len(ids), len(ids) - 1, 3 * len(ids), 1)
    assert found["nats_per_token"] == pytest.approx(nats.mean(), abs=2e-4)
    assert found["perplexity"] == pytest.approx(math.exp(nats.mean()), rel=3e-4)
    assert found["bits_per_token"] == pytest.approx(nats.mean() / math.log(2), abs=3e-4)
    assert found["bits_per_byte"] == pytest.approx(nats.sum() / math.log(2) / found["bytes"], abs=1e-4)


@pytest.fixture(scope="module")
def story(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "story.txt"
    lines = (ARITH / "heldout.jsonl").read_text().splitlines()[:12]
    path.write_text("\n".join(json.loads(line)["question"] for line in lines), encoding="utf-8")
    return path


def total(found):
    return found["nats_per_token"] * found["scored_tokens"]


def test_windows_score_each_token_once_with_its_context(tmp_path):
    """A window's new tokens are what it scores less what its context alone does."""
    folder = with_tokenizer("mixtral", tmp_path / "mixtral")
    ids = read_tensor(folder / "parity.safetensors", "prompt.3.ids")
    text = tmp_path / "text.txt"

    def of(begin, end, *flags):
        text.write_text("".join(chr(FIRST + token) for token in ids[begin:end]), encoding="utf-8")
        return score(folder, text, "--compute-dtype", "float32", "--deterministic", *flags)

    count, window, stride = len(ids), 32, 12
    found = of(0, count, "--window", window, "--stride", stride)
    assert found["scored_tokens"] == count - 1
    expected, done, begin = total(of(0, window)), window, 0
    while done < count:
        begin += stride
        end = min(begin + window, count)
        expected += total(of(begin, end)) - total(of(begin, done))
        done = end
    assert total(found) == pytest.approx(expected, abs=1e-3)
    assert found["windows"] == 1 + begin // stride
    # More context, other figures: the windows are felt.
    assert abs(total(of(0, count)) - total(found)) > 1e-3
    assert of(0, count, "--window", 10, "--stride", 10)["scored_tokens"] == count - 7


def test_every_placement_says_the_same(story):
    flags = ("--window", 64, "--stride", 32, "--deterministic")
    colocated = score(ARITH, story, *flags)
    assert colocated["windows"] > 5 and colocated["scored_tokens"] >= colocated["tokens"] - 1
    # The model knows such stories: a token of its vocabulary by chance would be log2(512) = 9 bits.
    assert colocated["bits_per_token"] < 4
    for placement in (("--ffn", 1, "--transport", "shm", "--concurrency", 3), ("--attention", 2, "--ffn", 1, "--transport", "tcp")):
        split = score(ARITH, story, *flags, *placement)
        assert split["nats_per_token"] == colocated["nats_per_token"], placement


@pytest.mark.parametrize("flags,expected", [
    ((), "eval.text: no file; name one with --text"),
    (("--text", "/nonexistent"), "eval.text: /nonexistent cannot be read, or is empty"),
    (("--text", "STORY", "--window", "5000"), "eval.window: 5000 tokens; this model and its settings allow 2047"),
    (("--text", "STORY", "--window", "16", "--stride", "17"), "eval.stride: 17 is longer than the window of 16"),
    (("--text", "STORY", "--balanced-routing"), "engine.balanced_routing: true with eval perplexity is not supported"),
])
def test_refused_by_name(flags, expected, story):
    flags = [str(story) if flag == "STORY" else flag for flag in flags]
    done = subprocess.run([BINARY, "eval", "perplexity", "--model", str(ARITH), *flags], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and expected in done.stderr, done.stderr


def test_text_for_people_and_one_token(story, tmp_path):
    done = subprocess.run([BINARY, "eval", "perplexity", "--model", str(ARITH), "--text", str(story), "--window", "64"],
                          capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and "bits a byte" in done.stdout and "stride 32" in done.stdout, done.stderr
    assert "windows: " in done.stderr
    empty = tmp_path / "empty.txt"
    empty.write_text("")
    assert "empty" in score(ARITH, empty, status=2)
