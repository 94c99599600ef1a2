"""Checkpoints in the layout of DeepSeek-V4's releases: read packed, computed like an independent decoder, and refused by name
where they are wrong."""

import json
import struct
import subprocess

import pytest

from tests.conftest import BINARY
from tests.native_v4 import files


def run(*arguments, statuses=(0,)):
    done = subprocess.run([BINARY, *map(str, arguments)], capture_output=True, text=True, timeout=300)
    assert done.returncode in statuses, f"{done.args}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
    return done


def test_logits_equal_those_of_an_independent_reading_of_the_files(with_reference):
    report = json.loads(run("eval", "parity", with_reference(), "--json").stdout)
    assert report["passed"] is True, report
    assert len(report["prompts"]) == len(files.native_v4_parity.PROMPT_LENGTHS)


def test_packed_weights_give_the_bits_of_the_same_values_in_bf16(native, tmp_path):
    """Both formats are exact in bf16, so nothing but the place of the decoding differs."""
    plain = files.make(tmp_path / "plain", dequantised=True)
    hashes = [json.loads(run("eval", "matrix", "--model", folder, "--cover", "values", "--json").stdout)["logits_hash"]
              for folder in (native, plain)]
    assert hashes[0] == hashes[1]


def test_every_placement_of_the_native_files_is_equal(native):
    report = json.loads(run("eval", "matrix", "--model", native, "--cover", "pairs", "--json").stdout)
    assert report["different"] == report["failed"] == 0
    assert report["equal"] > 0 and report["uncovered"] == []


def test_chat_and_completions_are_served_alike_from_one_process_and_from_two(native, tandem_server):
    answers = []
    for placement in ("serve", "shm"):
        server = tandem_server(placement, model=native)
        chat = server.request("POST", "/v1/chat/completions", {
            "model": "model", "messages": [{"role": "user", "content": "How many?"}], "max_tokens": 24, "temperature": 0}).json()
        assert chat["usage"]["prompt_tokens"] == 13, "begin, user, nine bytes, assistant, end of thinking"
        text = server.request("POST", "/v1/completions", {
            "model": "model", "prompt": "a prompt that is longer than the window of sixteen tokens " * 4, "max_tokens": 24,
            "temperature": 0}).json()
        answers.append((chat["choices"][0]["message"]["content"], text["choices"][0]["text"], text["usage"]))
    assert answers[0] == answers[1]


def spoil(native, folder, change, *flags):
    checkpoint = files.Files(native)
    change(checkpoint)
    checkpoint.write(folder)
    done = run("eval", "matrix", "--model", folder, "--cover", "values", *flags, statuses=(1, 2))
    lines = done.stderr.strip().splitlines()
    assert lines, "an error has a message"
    return lines[-1]


def set_id(checkpoint, row, entry, value):
    name = "layers.1.ffn.gate.tid2eid"
    dtype, shape, data = checkpoint.tensors[name]
    at = (row * shape[1] + entry) * 8
    checkpoint.tensors[name] = (dtype, shape, data[:at] + struct.pack("<q", value) + data[at + 8:])


@pytest.mark.parametrize("value", (-1, 8, 1 << 33, -(1 << 63)))
def test_an_expert_out_of_range_in_tid2eid_is_named(native, tmp_path, value):
    message = spoil(native, tmp_path, lambda checkpoint: set_id(checkpoint, 37, 2, value))
    assert "layers.1.ffn.gate.tid2eid" in message and str(value) in message and "37" in message


def reshape(name, shape):
    def change(checkpoint):
        dtype, _, data = checkpoint.tensors[name]
        size = shape[0] * shape[1] if len(shape) == 2 else shape[0]
        checkpoint.tensors[name] = (dtype, shape, data[:1] * size)
    return change


@pytest.mark.parametrize("name, shape", (
    ("layers.0.attn.wo_a.scale", [2, 2]),                # 128 x 192: one tile of rows, two of columns
    ("layers.2.attn.wq_a.scale", [1]),
    ("layers.3.ffn.experts.5.w2.scale", [128, 1]),       # 128 x 64: two blocks of 32 columns
    ("layers.3.ffn.experts.5.w1.scale", [1, 1]),         # a tile's scale where a row's blocks are wanted
))
def test_a_scale_of_the_wrong_shape_is_named(native, tmp_path, name, shape):
    message = spoil(native, tmp_path, reshape(name, shape))
    assert name in message and "[" in message, message


@pytest.mark.parametrize("name", (
    "layers.1.attn.compressor.wgate.weight", "layers.2.attn.compressor.ape", "layers.3.attn.indexer.compressor.norm.weight",
    "layers.0.attn.attn_sink", "layers.4.hc_ffn_base", "hc_head_fn", "layers.0.attn.wkv.scale", "layers.0.ffn.gate.tid2eid",
    "layers.2.ffn.gate.bias", "layers.2.ffn.experts.7.w3.scale",
))
def test_a_missing_tensor_is_named(native, tmp_path, name):
    message = spoil(native, tmp_path, lambda checkpoint: checkpoint.tensors.pop(name))
    if name.endswith(".scale"):
        assert name.replace(".scale", ".weight") in message and "scale" in message, message
    else:
        assert name in message, message


@pytest.mark.parametrize("ratios, named", (
    ([0, 4, 128, 4], "compress_ratios"), ([0, 4, 128, 4, 0, 0, 0], "compress_ratios"), ([0, 4, 64, 4, 0, 0], "64")))
def test_wrong_compress_ratios_are_named(native, tmp_path, ratios, named):
    message = spoil(native, tmp_path, lambda checkpoint: checkpoint.config.update(compress_ratios=ratios))
    assert "compress_ratios" in message and named in message, message


def test_dspark_keys_without_its_tensors_are_named(native, tmp_path):
    def change(checkpoint):
        checkpoint.config.update(dspark_block_size=5, dspark_noise_token_id=3, dspark_target_layer_ids=[1, 2, 3], dspark_markov_rank=16,
                                 compress_ratios=[0, 4, 128, 4, 0, 0, 0, 0])
    message = spoil(native, tmp_path, change)
    assert "mtp.0.main_proj.weight" in message and "dspark" in message, message


def test_a_scale_that_is_no_number_is_named(native, tmp_path):
    def change(checkpoint):
        dtype, shape, data = checkpoint.tensors["layers.4.attn.wq_b.scale"]
        checkpoint.tensors["layers.4.attn.wq_b.scale"] = (dtype, shape, b"\xff" + data[1:])
    message = spoil(native, tmp_path, change)
    assert "layers.4.attn.wq_b.weight" in message and "scale nan at [0, 0]" in message, message
