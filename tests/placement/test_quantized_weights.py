"""Weights quantised at load (--weights int8, fp8, mxfp8, mxfp4): every placement has the bits of the colocated run; int8 rows on the
wire are the rows that int8 weights would make of them; the report says what was lost; and what is refused, by name."""

import json
import subprocess

import pytest

from .test_bit_equality import BINARY, MODELS, generate, outcome, prompts  # noqa: F401

FORMATS = ("int8", "fp8", "mxfp8", "mxfp4")
PLACEMENTS = {
    "one": ("--ffn", "1"),
    "gate": ("--ffn", "1", "--compute-gate-on-attention"),
    "graph": ("--ffn", "1", "--execution", "graph"),
    "shared on FFN": ("--ffn", "2", "--compute-shared-experts-on-attention=false"),
    "m2n": ("--ffn", "2", "--connector", "m2n", "--compute-gate-on-attention"),
    "slices": ("--ffn", "4", "--placement", "slice", "--connector", "m2n", "--compute-gate-on-attention"),
    "hybrid": ("--ffn", "4", "--placement", "hybrid", "--connector", "m2n", "--compute-gate-on-attention"),
}


@pytest.mark.parametrize("weights", FORMATS)
def test_every_placement_has_the_bits_of_the_colocated_run(weights, prompts):  # noqa: F811
    colocated = generate("arith", prompts, "--weights", weights)
    assert outcome(colocated) != outcome(generate("arith", prompts)), "the format must change something"
    for flags in (("--one-by-one",), ("--threads", "1"), ("--max-num-batched-tokens", "7", "--max-num-seqs", "3")):
        assert outcome(generate("arith", prompts, "--weights", weights, *flags)) == outcome(colocated), flags
    for name in PLACEMENTS if weights == "int8" else ("one", "slices"):
        split = generate("arith", prompts, "--weights", weights, *PLACEMENTS[name], "--transport", "shm")
        assert outcome(split) == outcome(colocated), name


# The fixture of DeepSeek-V4 has experts of 8 rows, which int8 refuses; model_weights_test has a larger one.
@pytest.mark.parametrize("model", ("deepseek_v2", "qwen3_moe", "qwen2_moe", "mixtral", "granitemoe", "gpt_oss_bf16"))
def test_int8_in_every_family(model, prompts):  # noqa: F811
    colocated = generate(model, prompts, "--weights", "int8")
    split = generate(model, prompts, "--weights", "int8", "--ffn", "2", "--transport", "shm")
    assert outcome(split) == outcome(colocated)


def test_one_ffn_rank_equals_colocated_in_the_default_mode_too(prompts):  # noqa: F811
    colocated = generate("arith", prompts, "--weights", "int8", deterministic=False)
    split = generate("arith", prompts, "--weights", "int8", "--ffn", "1", "--transport", "shm", deterministic=False)
    assert outcome(split) == outcome(colocated)


def test_int8_rows_on_the_wire_are_those_that_the_experts_would_make(prompts):  # noqa: F811
    flags = ("--weights", "int8", "--compute-gate-on-attention")
    plain = generate("arith", prompts, *flags)
    for split in ((), ("--ffn", "1", "--transport", "shm"), ("--ffn", "2", "--connector", "m2n", "--transport", "shm")):
        assert outcome(generate("arith", prompts, *flags, "--activation-dtype", "int8", *split)) == outcome(plain), split


def test_the_report_covers_what_each_rank_holds(prompts, tmp_path):  # noqa: F811
    report = tmp_path / "report.json"
    generate("arith", prompts, "--weights", "mxfp4", "--weights-report", str(report))
    whole = json.loads(report.read_text())
    assert whole["weights"] == "mxfp4" and 0.02 < whole["total"]["relative_rms_error"] < 0.2
    formats = {each["name"]: each["format"] for each in whole["tensors"]}
    assert formats["model.layers.1.mlp.experts.3.down_proj.weight"] == "mxfp4" and formats["lm_head.weight"] == "mxfp8"
    generate("arith", prompts, "--weights", "mxfp4", "--weights-report", str(report), "--ffn", "2", "--transport", "shm")
    parts = [json.loads((tmp_path / f"report.json.{rank}").read_text()) for rank in ("attention0", "ffn0", "ffn1")]
    experts = [{each["name"]: each for each in part["tensors"] if ".experts." in each["name"]} for part in parts]
    assert not experts[0] and not set(experts[1]) & set(experts[2])
    assert {**experts[1], **experts[2]} == {each["name"]: each for each in whole["tensors"] if ".experts." in each["name"]}


@pytest.mark.parametrize(
    "flags,words",
    [
        (("--weights", "int8", "--compute-dtype", "float32"), "engine.weights: int8 with engine.compute_dtype float32 is not supported; use it with"),
        (
            ("--weights", "int8", "--activation-dtype", "fp8", "--compute-gate-on-attention"),
            "afd.activation_dtype: fp8 with engine.weights int8 is not supported; use int8 or auto",
        ),
        (("--weights", "int8", "--weights-report", "/nowhere/report.json"), "engine.weights_report: cannot write /nowhere/report.json"),
    ],
)
def test_what_does_not_go_together_is_named(flags, words, prompts):  # noqa: F811
    done = subprocess.run([BINARY, "generate", "--model", str(MODELS["arith"]), "--prompts-file", str(prompts["arith"]), "--max-tokens", "1", *flags],
                          capture_output=True, text=True, timeout=60)
    assert done.returncode != 0
    assert words in done.stderr, done.stderr
