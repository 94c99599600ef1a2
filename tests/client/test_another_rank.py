"""Clients and an FFN rank that does otherwise what the protocol leaves to it: a later minor, settings in another order, other codes for errors, no
times, an end without bye (tests/conformance shows that it is right)."""

import contextlib

import numpy as np
import pytest

import tandem_client
from tests.client.conftest import MODELS
from tests.client.installation import run
from tests.conformance.mutants import AnotherRightRank
from tests.conformance.mutated_rank import MutatedRank


@contextlib.contextmanager
def another(rank):
    proxy = MutatedRank(rank, AnotherRightRank)
    try:
        yield proxy.address
    finally:
        proxy.close()


def test_the_python_client(own_pool):
    """And its end is an end, although no bye says so."""
    rows = np.random.default_rng(0).standard_normal((130, 128)).astype(np.float32)
    pool = own_pool("arith", "--compute-gate-on-attention")
    with another(pool.address) as address, tandem_client.Client(address) as client, tandem_client.Client(pool.address) as plain:
        assert client.settings.raw["protocol"] == "1.3" and client.settings.raw | {"protocol": "1.0"} == plain.settings.raw
        routing = {"expert_ids": np.tile(np.arange(4), (130, 1)), "expert_weights": np.full((130, 4), 0.25, np.float32)}
        assert (client.compute(1, rows, **routing) == plain.compute(1, rows, **routing)).all()
        ticket = client.submit(1, rows, **routing)
        ticket.result()
        assert ticket.times.tolist() == [0, 0, 0, 0]
        pool.processes[0].terminate()
        assert pool.processes[0].wait(60) == 0
        with pytest.raises(tandem_client.TandemError):
            client.compute(1, rows, timeout=1, **routing)


def test_the_c_client(pool, installed):
    with another(pool("arith").address) as address:
        assert "4 layers with 16 experts" in run([installed.examples / "layer", address]).stdout
        prompt = [0, 3, 446, 276, 225, 21, 22, 477, 18, 353, 359, 225, 27, 381, 477, 18, 283, 294, 477, 295, 225, 446, 306, 344, 278, 35, 4]
        assert installed.generate(address, prompt, 120) == [446, 276, 225, 21, 22, 15, 27, 33, 21, 29, 477, 269, 282, 225, 21, 29]


def test_the_adapter(pool):
    """Generates what it generates beside a rank of our own."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers")
    import tandem_adapter

    ids = torch.tensor([[0, 3, 446, 276, 225, 21, 22]])
    answers = []
    with another(pool("arith").address) as address:
        for where in (address, pool("arith").address):
            model, client = tandem_adapter.load(MODELS["arith"], where)
            with client, torch.inference_mode():
                answers.append(model.generate(ids, max_new_tokens=12, do_sample=False).tolist())
    assert answers[0] == answers[1]
