"""tandem bench kernels, moe, attention, decode, prefill and roofs: sizes of released models from the command line."""

import json

import pytest

from tests.cli.test_usage import run

SHAPES = ["granite-1b", "olmoe", "v2-lite", "qwen3-30b", "gpt-oss-20b", "v3", "v4-flash"]
QUICK = ["--threads", "1", "--runs", "1", "--json"]


def report(*arguments):
    done = run("bench", *arguments)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("command", ["kernels", "moe", "attention", "decode", "prefill"])
def test_list_shapes(command):
    assert [shape["name"] for shape in report(command, "--list-shapes", "--json")] == SHAPES


def test_roofs_of_the_table_in_use():
    tables = report("roofs", *QUICK)["tables"]
    assert len(tables) == 1 and tables[0]["in_use"]
    assert set(tables[0]["read"]) == {"small_pages", "huge_pages"}


def test_moe_counts_touched_experts():
    cases = report("moe", "--shape", "granite-1b", "--layers", "1", "--batch", "1,64", *QUICK)["cases"]
    expert = 3 * 1024 * 512 * 2
    assert [case["bytes"] for case in cases] == [8 * expert, 32 * expert]
    assert [case["flops"] for case in cases] == [expert * 8, expert * 8 * 64]


def test_attention_decodes_and_prefills():
    cases = report("attention", "--shape", "granite-1b", "--batch", "2", "--context", "64", "--chunk", "16", *QUICK)["cases"]
    assert [case["name"] for case in cases] == ["attention granite-1b decode 2 x 64", "attention granite-1b prefill 16 at 64"]
    assert cases[0]["bytes"] == 2 * 8 * 64 * 2 * 64 * 2
    coded = report("attention", "--shape", "granite-1b", "--batch", "2", "--context", "64", "--chunk", "16", "--kv-cache-dtype", "fp8", *QUICK)["cases"]
    assert coded[0]["bytes"] == 2 * 8 * (64 + 1) * 64 * 2  # a code each, and a scale for each vector


def test_kernels_of_a_shape():
    cases = report("kernels", "--shape", "gpt-oss-20b", "--batch", "1", "--filter", "router", *QUICK)["cases"]
    assert [case["name"] for case in cases] == ["gpt-oss-20b router bf16 32x2880 rows 1"]


def test_whole_steps_over_a_cache_of_codes():
    arguments = ["decode", "--shape", "granite-1b", "--layers", "1", "--batch", "2", "--context", "32", *QUICK]
    narrow, coded = report(*arguments), report(*arguments, "--kv-cache-dtype", "fp8")
    assert (narrow["kv_dtype"], coded["kv_dtype"]) == ("bf16", "f8_e4m3")
    kv = [document["cases"][0]["bytes"]["kv"] for document in (narrow, coded)]
    assert kv == [2 * 8 * 64 * 2 * 32 * 2, 2 * 8 * (64 + 1) * 32 * 2]


@pytest.mark.parametrize("command,batch", (("decode", 2), ("prefill", 16)))
def test_whole_steps_with_a_profile(command, batch):
    document = report(command, "--shape", "granite-1b", "--layers", "1", "--batch", str(batch), "--context", "32", "--profile", *QUICK)
    assert (document["layers"], document["of_layers"], document["weights"]) == (1, 24, "bf16")
    case = document["cases"][0]
    assert case["bytes"]["head"] == 49168 * 1024 * 2  # 49155 rows, packed as a multiple of 16
    assert case["bytes"]["experts"] == pytest.approx(case["experts_read_per_layer"] * 3 * 1024 * 512 * 2)
    assert {"experts", "projections", "attention", "head", "sampling"} <= {line["operation"] for line in case["profile"]}


REFUSED = [
    (["decode"], "measure.shape: none is given; use one of granite-1b"),
    (["moe", "--shape", "qwen3-30"], "measure.shape: there is no 'qwen3-30'; use qwen3-30b"),
    (["moe", "--shape", "olmoe", "--weights", "fp7"], "measure.weights: 'fp7' is not a format that can be measured; use one of bf16"),
    (["moe", "--shape", "olmoe", "--batch", "1,x"], "measure.batch: 'x' is not a whole number in 1..65536"),
    (["attention", "--shape", "olmoe", "--context", "0"], "measure.context: '0' is not a whole number in 1..1048576"),
    (["decode", "--shape", "granite-1b", "--layers", "25"], "measure.layers: 25: granite-1b has 24 layers; use 1..24"),
    (["decode", "--shape", "v4-flash", "--layers", "1", "--kv-cache-dtype", "fp8"], "engine.kv_cache_dtype: fp8 with deepseek_v4"),
    (["attention", "--shape", "v4-flash", "--kv-cache-dtype", "fp8"], "engine.kv_cache_dtype: fp8 with v4-flash"),
    (["kernels", "--filter", "no such case"], 'no case has "no such case" in its name'),
]


@pytest.mark.parametrize("arguments,expected", REFUSED, ids=[" ".join(a)[-50:] for a, _ in REFUSED])
def test_refusals_are_status_2_and_one_line(arguments, expected):
    done = run("bench", *arguments)
    assert done.returncode == 2, (done.returncode, done.stderr)
    lines = [line for line in done.stderr.splitlines() if line.startswith("tandem:")]
    assert len(lines) == 1 and expected in lines[0], done.stderr
