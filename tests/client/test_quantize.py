"""Quantised rows of the C client: the bytes that the Python client makes of the same rows, and the same sums from the experts."""

import numpy as np
import pytest

import tandem_client
from tandem_client import formats
from tests.client.installation import run
from tests.conftest import ROOT, FfnRank

LAYER = 2
ROWS = 150
FLAGS = {
    "bf16": (1, ()),
    "f32": (2, ("--compute-dtype", "float32")),
    "fp8": (3, ("--activation-dtype", "fp8")),
    "mxfp8": (4, ("--activation-dtype", "mxfp8")),
    "int8": (5, ("--activation-dtype", "int8")),
}


@pytest.fixture(scope="module")
def program(installed, tmp_path_factory):
    made = tmp_path_factory.mktemp("quantize") / "c_quantize_test"
    installed.compile(made, source=ROOT / "tests" / "client" / "c_quantize_test.c")
    return made


def rows_of(hidden):
    """Of all sizes: scales at their smallest, outliers, zeros of both signs, and values in the middle between two numbers."""
    random = np.random.default_rng(11)
    rows = random.standard_normal((ROWS, hidden)) * 2.0 ** random.integers(-30, 12, (ROWS, 1))
    rows[3::7, ::9] *= 1000
    rows[5] = 0
    rows[6, ::2] = -0.0
    rows[7] = np.arange(hidden) + 0.5  # ties
    rows = rows.astype(np.float32)
    for row in range(8, 16):  # int8: nearly ties, which depend on how the inverse of the scale is rounded
        largest = np.float32(random.uniform(1, 100))
        rows[row] = np.minimum((np.arange(hidden) + 0.5).astype(np.float32) * (largest / np.float32(127)), largest)
    return rows


@pytest.mark.parametrize("dtype", FLAGS)
def test_the_bytes_and_sums_of_the_python_client(dtype, program, tmp_path):
    number, flags = FLAGS[dtype]
    pool = FfnRank("tcp://127.0.0.1:0", tmp_path, "--threads", "1", "--deterministic", "--compute-gate-on-attention", *flags)
    try:
        with tandem_client.Client(pool.address) as client:
            rows = rows_of(client.settings.hidden_size)
            random = np.random.default_rng(12)
            experts = random.permuted(np.tile(np.arange(client.settings.num_experts, dtype=np.int32), (ROWS, 1)), axis=1)[:, :client.settings.top_k]
            weights = random.uniform(0.1, 1, experts.shape).astype(np.float32)
            sums = client.compute(LAYER, rows, expert_ids=experts, expert_weights=weights, raw=True)
        for name, array in (("rows", rows), ("experts", experts), ("weights", weights)):
            (tmp_path / name).write_bytes(np.ascontiguousarray(array).tobytes())
        assert run([program, tmp_path, pool.address]).stdout == f"row_format {number}\n"
        payloads = formats.activation(rows, dtype)
        got = {name: (tmp_path / name).read_bytes() for name in ("values", "scales", "sums")}
        assert np.frombuffer(got["values"], payloads[0].data.dtype).reshape(rows.shape).tolist() == payloads[0].data.tolist()
        assert got["scales"] == (payloads[1].data.tobytes() if len(payloads) > 1 else b"")
        assert got["values"] == payloads[0].data.tobytes(), "signs of zeros too"
        assert got["sums"] == sums.tobytes() and np.isfinite(sums).all() and np.abs(sums).max() > 0
    finally:
        pool.close()
