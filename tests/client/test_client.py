"""The pure-Python client against `tandem ffn`: what the experts compute, from every placement of gate and shared experts."""

import concurrent.futures

import numpy as np
import pytest

import tandem_client
from tandem_client import frame
from tests.client.conftest import MODELS, Weights, expected_sums

PLAIN = ("--compute-dtype", "float32")


def rows_of(settings, count, seed=0):
    random = np.random.default_rng(seed)
    rows = random.standard_normal((count, settings.hidden_size)).astype(np.float32)
    ids = np.argsort(random.random((count, settings.num_experts)), axis=1)[:, :settings.top_k].astype(np.int32)
    weights = random.uniform(0.05, 1, ids.shape).astype(np.float32)
    return rows, ids, weights


def close(got, wanted, bound):
    assert np.abs(got - wanted).max() <= bound * max(np.abs(wanted).max(), 1e-3), np.abs(got - wanted).max() / np.abs(wanted).max()


def test_describe(pool):
    settings = tandem_client.describe(pool("deepseek_v3").address)
    assert (settings.hidden_size, settings.num_experts, settings.top_k, settings.moe_intermediate_size) == (48, 16, 4, 16)
    assert (settings.num_layers, settings.moe_layers, settings.vocab_size) == (3, (1, 2), 96)
    assert (settings.gate, settings.shared_experts, settings.activation_dtype, settings.reply_dtype) == ("ffn", "ffn", "bf16", "bf16")
    assert len(settings.raw["model_fingerprint"]) == 16


@pytest.mark.parametrize("model", ("deepseek_v2_lite", "deepseek_v3", "qwen3_moe", "mixtral"))
@pytest.mark.parametrize("shared", (False, True))
def test_external_routing(model, shared, pool):
    """The gate on this side; the shared experts on either."""
    flags = ("--compute-gate-on-attention", f"--compute-shared-experts-on-attention={str(shared).lower()}")
    weights = Weights(MODELS[model])
    with tandem_client.Client(pool(model, *PLAIN, *flags).address) as client:
        layer = client.settings.moe_layers[-1]
        for count in (1, 63, 64, 65, 200):
            rows, ids, scores = rows_of(client.settings, count, seed=count)
            got = client.compute(layer, rows, expert_ids=ids, expert_weights=scores)
            assert got.dtype == np.float32 and got.shape == rows.shape
            close(got, expected_sums(weights, layer, rows.astype(np.float64), ids, scores, client.settings.shared_experts_on_ffn), 1e-5)


@pytest.mark.parametrize("model", ("qwen3_moe", "mixtral"))
def test_gate_on_the_ffn_rank(model, pool):
    """Its routing: softmax over all experts, the best ones renormalised."""
    weights = Weights(MODELS[model])
    with tandem_client.Client(pool(model, *PLAIN).address) as client:
        layer = client.settings.moe_layers[0]
        rows, _, _ = rows_of(client.settings, 70)
        gate = weights[f"model.layers.{layer}.{'block_sparse_moe' if model == 'mixtral' else 'mlp'}.gate.weight"]
        logits = rows.astype(np.float64) @ gate.T
        ids = np.argsort(-logits, axis=1)[:, :client.settings.top_k]
        best = np.exp(np.take_along_axis(logits, ids, axis=1))
        close(client.compute(layer, rows), expected_sums(weights, layer, rows.astype(np.float64), ids, best / best.sum(axis=1, keepdims=True), True), 1e-4)


def test_bf16_and_bits(pool):
    """bf16 both ways; floats are rounded here, and bits travel as they are."""
    with tandem_client.Client(pool("deepseek_v3", "--compute-gate-on-attention").address) as client:
        rows, ids, scores = rows_of(client.settings, 40)
        routing = dict(expert_ids=ids, expert_weights=scores)
        got = client.compute(1, rows, **routing)
        bits = client.compute(1, tandem_client.to_bf16(rows), raw=True, **routing)
        assert bits.dtype == np.uint16 and (tandem_client.from_bf16(bits) == got).all()
        rounded = tandem_client.from_bf16(tandem_client.to_bf16(rows)).astype(np.float64)
        close(got, expected_sums(Weights(MODELS["deepseek_v3"]), 1, rounded, ids, scores, False), 0.02)


@pytest.mark.parametrize("dtype,bound", (("fp8", 0.06), ("mxfp8", 0.06), ("int8", 0.03)))
def test_quantised_rows(dtype, bound, pool):
    with tandem_client.Client(pool("qwen3_moe", "--compute-gate-on-attention", "--activation-dtype", dtype).address) as client:
        rows, ids, scores = rows_of(client.settings, 70)
        got = client.compute(0, rows, expert_ids=ids, expert_weights=scores)
        wanted = expected_sums(Weights(MODELS["qwen3_moe"]), 0, rows.astype(np.float64), ids, scores, False)
        close(got, wanted, bound)
        assert np.abs(got - wanted).max() > 1e-4 * np.abs(wanted).max(), "rows were rounded"


def test_token_ids(pool):
    """They go along where the rank asks for them, and change nothing in a model that routes by its gate."""
    with tandem_client.Client(pool("mixtral", "--send-token-ids").address) as asking, tandem_client.Client(pool("mixtral").address) as other:
        rows, _, _ = rows_of(asking.settings, 70)
        tokens = np.arange(70) % asking.settings.vocab_size
        assert (asking.compute(0, rows, token_ids=tokens) == other.compute(0, rows)).all()
        with pytest.raises(tandem_client.OutOfRange, match="row 3: token id 96 outside 0..95"):
            asking.compute(0, rows, token_ids=np.where(np.arange(70) == 3, 96, tokens))
        with pytest.raises(tandem_client.InvalidArgument, match="token_ids must be given"):
            asking.compute(0, rows)
        with pytest.raises(tandem_client.InvalidArgument, match="token_ids must not be given"):
            other.compute(0, rows, token_ids=tokens)


M2N = ("--connector", "m2n", "--compute-gate-on-attention")


@pytest.mark.parametrize("ranks,flags", (
    (2, M2N), (3, (*M2N, "--placement", "slice")), (4, (*M2N, "--placement", "hybrid")), (4, (*M2N, "--expert-replicas", "2")),
    (2, (*M2N, "--compute-shared-experts-on-attention=false")), (3, (*M2N, "--placement", "slice", "--compute-shared-experts-on-attention=false"))))
def test_several_ranks_equal_one_bit_for_bit(ranks, flags, pool):
    """Parts by the expert map, added up here; deterministic sums are exact, so that one rank says what they are."""
    shared = [flag for flag in flags if "shared" in flag]
    one = pool("arith", "--deterministic", "--compute-gate-on-attention", *shared)
    several = pool("arith", "--deterministic", *flags, ranks=ranks)
    with tandem_client.Client(one.address) as single, tandem_client.Client(several.addresses) as client:
        for layer in client.settings.moe_layers:
            for count in (1, 70, 200):
                rows, ids, scores = rows_of(client.settings, count, seed=layer)
                scores[:, 1] = 0  # a slot of nobody
                wanted = single.compute(layer, rows, expert_ids=ids, expert_weights=scores)
                got = client.compute(layer, rows, expert_ids=ids, expert_weights=scores)
                assert got.dtype == np.float64 and (got == wanted).all()


@pytest.mark.parametrize("gate", (False, True))
@pytest.mark.parametrize("connector", ("p2p", "auto"))
def test_homes_equal_one_rank(connector, gate, pool):
    """Whole rows, tile by tile to ranks in turn, which exchange them; with auto and the gate here, decode rows go to owners."""
    flags = ("--deterministic", *(["--compute-gate-on-attention"] if gate else []))
    with tandem_client.Client(pool("arith", *flags).address) as single, \
            tandem_client.Client(pool("arith", "--connector", connector, *flags, ranks=2).addresses) as client:
        for row_class in ("prefill", "decode"):
            for count in (3, 64, 300):
                rows, ids, scores = rows_of(client.settings, count)
                routing = dict(expert_ids=ids, expert_weights=scores) if gate else {}
                assert (client.compute(2, rows, row_class=row_class, **routing) == single.compute(2, rows, **routing)).all()


def test_no_rows_need_no_rank(pool):
    with tandem_client.Client(pool("mixtral").address) as client:
        assert client.compute(0, np.empty((0, 48), np.float32)).shape == (0, 48)


def test_many_requests_of_many_threads(pool):
    """Far more tiles than credits, of both classes, on one connection."""
    with tandem_client.Client(pool("qwen3_moe", *PLAIN).address) as client:
        def run(seed):
            rows, _, _ = rows_of(client.settings, (seed * 37) % 200 + 1, seed)
            return rows, client.compute(0, rows, row_class="decode" if seed % 2 else "prefill")

        with concurrent.futures.ThreadPoolExecutor(12) as threads:
            answers = list(threads.map(run, range(48)))
        for rows, got in answers:
            assert (client.compute(0, rows) == got).all()


def test_times_of_the_rank(pool):
    with tandem_client.Client(pool("qwen3_moe", *PLAIN).address) as client:
        ticket = client.submit(0, rows_of(client.settings, 100)[0])
        ticket.result()
        queue, compute, exchange, residence = ticket.times
        assert compute > 0 and residence >= compute and exchange == 0


def test_what_cannot_be_is_not_sent(pool):
    with tandem_client.Client(pool("deepseek_v3", "--compute-gate-on-attention").address) as client:
        rows, ids, scores = rows_of(client.settings, 4)
        good = dict(layer=1, rows=rows, expert_ids=ids, expert_weights=scores)

        def refused(kind, text, **changed):
            with pytest.raises(kind, match=text):
                client.compute(**{**good, **changed})

        refused(tandem_client.OutOfRange, "layer 0 has no experts; layers with experts: 1-2", layer=0)
        refused(tandem_client.InvalidArgument, r"rows \[4, 47\], expected \[rows, 48\]", rows=rows[:, :47])
        refused(tandem_client.InvalidArgument, "rows of int64: floats", rows=rows.astype(np.int64))
        refused(tandem_client.InvalidArgument, r"expert_ids \[3, 4\]", expert_ids=ids[:3])
        refused(tandem_client.OutOfRange, "row 2: expert id 16 outside 0..15", expert_ids=np.where(np.arange(4)[:, None] == 2, 16, ids))
        refused(tandem_client.InvalidArgument, "not finite, or a row whose weights are all 0", expert_weights=scores * [[1], [0], [1], [1]])
        refused(tandem_client.InvalidArgument, "not finite, or a row", expert_weights=scores * np.array([[1], [np.nan], [1], [1]]))
        refused(tandem_client.InvalidArgument, "the gate is on this side: expert_ids and expert_weights must be given", expert_ids=None)
        refused(tandem_client.InvalidArgument, "row_class 'soon': decode, draft, prefill, profile would do", row_class="soon")
        assert client.compute(**good).shape == rows.shape


def test_the_largest_tiles_fit(pool):
    """Canaries are as large as any frame of the session."""
    with tandem_client.Client(pool("arith", "--deterministic", "--compute-gate-on-attention").address) as client:
        rows, ids, scores = rows_of(client.settings, frame.TILE_ROWS)
        assert client.compute(1, rows, expert_ids=ids, expert_weights=scores).dtype == np.float64
