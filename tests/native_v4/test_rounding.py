"""engine.qat_simulation and afd.activation_dtype against a reference of the whole model that rounds by tables."""

import json

import pytest

from tests.native_v4 import files
from tests.native_v4.test_native_files import run

# Flags, what the reference rounds, and lengths of prompts: beyond the window, and long enough for the indexer to choose; as trained, with
# an entry of 128 tokens. Where every row is rounded, long prompts seldom go without a value on the edge between two codes. Three prompts in
# ten have one, and which ones hangs on the order of sums: so there are many, that half of them are within the bound on any machine.
SHORT, LONG = (17,) * 8 + (40,) * 8, (17,) * 6 + (40,) * 8 + (130,) * 6
CASES = {
    "as trained": (["--qat-simulation"], {"qat_simulation": True}, LONG),
    "fp8": (["--activation-dtype", "fp8"], {"activation_dtype": "fp8"}, SHORT),
    "mxfp8": (["--activation-dtype", "mxfp8"], {"activation_dtype": "mxfp8"}, SHORT),
    "int8": (["--activation-dtype", "int8"], {"activation_dtype": "int8"}, SHORT),
    "as trained, fp8": (["--qat-simulation", "--activation-dtype", "fp8"], {"qat_simulation": True, "activation_dtype": "fp8"}, SHORT),
    "as trained, mtp": (["--qat-simulation"], {"qat_simulation": True}, SHORT),
    "as trained, dspark": (["--qat-simulation"], {"qat_simulation": True}, SHORT),
}
DRAFTERS = {"as trained, mtp": "mtp", "as trained, dspark": "dspark"}


@pytest.mark.parametrize("case", CASES)
def test_logits_equal_those_of_a_reference_that_rounds_too(case, tmp_path):
    flags, rounding, lengths = CASES[case]
    folder = files.make(tmp_path / "model", drafter=DRAFTERS.get(case, "none"))
    files.native_v4_parity.write(folder, lengths, greedy_steps=2, **rounding)
    report = json.loads(run("eval", "parity", folder, *flags, "--json").stdout)
    assert report["passed"] is True and report["prompts_within_bound"] >= len(lengths) / 2, report
    for length in lengths:  # what only longer prompts reach is right too
        assert min(prompt["prefill_difference"] for prompt in report["prompts"] if prompt["length"] == length) < 1e-3, report
    report = json.loads(run("eval", "parity", folder, "--json", statuses=(1,)).stdout)
    assert min(prompt["prefill_difference"] for prompt in report["prompts"]) > 0.01, "without the rounding all are far away"
