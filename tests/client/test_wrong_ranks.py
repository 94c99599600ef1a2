"""FFN ranks that nearly keep to the protocol, or hold whoever trusts them: no wrong row, no wait without end, no memory for what a rank
merely says."""

import contextlib
import threading

import numpy as np
import pytest

import tandem_client
from tandem_client import frame
from tandem_client.frame import Payload
from tests.client.fake_rank import BYE, CREDIT, HEARTBEAT, REQUEST, fake

ROWS = np.random.default_rng(0).standard_normal((5, 16)).astype(np.float32)


def to_the_end(rank):
    with contextlib.suppress(EOFError, ConnectionError):
        while True:
            rank.receive()


@pytest.mark.parametrize("role,shape", ((frame.OUTPUT, (1, 16)), (frame.OUTPUT, (6, 16)), (frame.REPLY_TIMES, (0, 4))))
def test_an_answer_of_another_shape_is_none(role, shape):
    """One row is not spread over all that were asked for."""
    def script(rank):
        rank.open()
        request = rank.request()
        payloads = {frame.OUTPUT: Payload(frame.OUTPUT, "f32", ROWS), frame.REPLY_TIMES: Payload(frame.REPLY_TIMES, "u32", np.ones((1, 4), np.uint32))}
        payloads[role].data = np.ones(shape, payloads[role].data.dtype)
        rank.send(REQUEST, frame.build(frame.replace(request.header, kind=frame.FFN_REPLY), list(payloads.values())))
        to_the_end(rank)

    with fake(script) as rank, tandem_client.Client(rank.address) as client:
        with pytest.raises(tandem_client.Unavailable, match=rf"the session ended: frame of kind 17: payload {role} is .* \[{shape[0]}, {shape[1]}\], expected"):
            client.compute(0, ROWS)


@pytest.mark.parametrize("word", ((CREDIT, REQUEST, 0), (HEARTBEAT, 0, 1), (HEARTBEAT, REQUEST, 0), (BYE, 0, 7), (1, 0, 0), (77, 0, 0)))
def test_a_word_of_the_carrier_that_is_none(word):
    def script(rank):
        rank.open()
        rank.request()
        rank.put(*word)
        to_the_end(rank)

    with fake(script) as rank, tandem_client.Client(rank.address) as client:
        with pytest.raises(tandem_client.Unavailable, match="the session ended: tcp frame: "):
            client.compute(0, ROWS)


def test_a_rank_that_lives_and_does_not_read(monkeypatch):
    """It beats, so that it is not silent; whoever sends to it is told all the same, and the client can be closed."""
    monkeypatch.setattr(tandem_client.connection, "_UNREAD_LIMIT_S", 1)
    told = threading.Event()

    def script(rank):
        rank.open()
        assert told.wait(60)

    with fake(script, slots=1024, settings={"hidden_size": 400}) as rank, tandem_client.Client(rank.address) as client:
        with pytest.raises(tandem_client.Unavailable, match=f"FFN rank 0 at {rank.address}: it has taken no byte for 1 s"):
            client.compute(0, np.zeros((20000, 400), np.float32))  # 32 MB: more than sockets hold
        client.close()
        told.set()


def test_a_deadline_does_not_wait_for_another_request(monkeypatch):
    """One request tries to reach a rank that takes connections and says nothing; another has less time, and the client can be closed."""
    monkeypatch.setattr(tandem_client.rank, "_HANDSHAKE_LIMIT_S", 2)
    known = threading.Event()

    def script(rank):
        rank.open()
        assert known.wait(60)

    with fake(script) as rank, tandem_client.Client(rank.address) as client:
        known.set()
        assert rank.ended.wait(60)
        tries, patient = [], threading.Thread(target=lambda: tries.append(outcome(lambda: client.compute(0, ROWS, timeout=600))))
        patient.start()
        while not client._ranks[0]._opening.locked():
            patient.join(0.01)
        hurried = outcome(lambda: client.compute(0, ROWS, timeout=0.3))
        assert isinstance(hurried, tandem_client.DeadlineExceeded) and "another request has not reached it either" in str(hurried)
        client.close()
        patient.join()
        assert isinstance(tries[0], tandem_client.Unavailable) and "the client is closed" in str(tries[0])


def outcome(call):
    try:
        return call()
    except tandem_client.TandemError as error:
        return error


def test_an_interrupt_leaves_no_connection(monkeypatch):
    def script(rank):
        rank.greet()
        rank.acknowledge()
        with pytest.raises(EOFError):
            rank.receive()

    def interrupt(*_):
        raise KeyboardInterrupt

    with fake(script) as rank:
        monkeypatch.setattr(tandem_client.canary, "build", interrupt)
        with pytest.raises(KeyboardInterrupt):
            tandem_client.Client(rank.address)
        monkeypatch.undo()


def two_ranks(second, **both):
    """Two ranks that differ in `second` alone, and a client of both."""
    both = {"num_ffn_ranks": 2, "connector": "m2n", "gate": "attention", **both}
    pieces = [np.array([[layer, 2 * rank, 2 * rank + 2, 0, 8, 0] for layer in (0, 1)], np.uint32) for rank in (0, 1)]

    def script(rank):
        with contextlib.suppress(EOFError, ConnectionError):
            rank.open()
            to_the_end(rank)

    with fake(script, settings=both, pieces=pieces[0]) as one, fake(script, settings={**both, **second}, pieces=pieces[1], number=1) as two:
        with tandem_client.Client([one.address, two.address]) as client:
            return client.settings


def test_what_ranks_of_a_pool_may_differ_in():
    assert two_ranks({"protocol": "1.4", "may.features": "a", "numerics_id": "1" * 16}).num_ffn_ranks == 2
    with pytest.raises(tandem_client.InvalidArgument, match="FFN rank 1 at .*: vocab_size is 51 here and 50 on FFN rank 0: start all ranks alike"):
        two_ranks({"vocab_size": 51})
    exact = {"deterministic": "yes", "reply_dtype": "f64"}
    with pytest.raises(tandem_client.InvalidArgument, match="numerics_id is 1111111111111111 here and 0000000000000000 on FFN rank 0"):
        two_ranks({"numerics_id": "1" * 16}, **exact)


@pytest.mark.parametrize("change,text", (
    ({"moe_layers": "0-4000000000"}, "moe_layers is '0-4000000000', not a range"), ({"moe_layers": "0-"}, "moe_layers is '0-', not a range"),
    ({"num_experts": 10**9}, "num_experts is '1000000000', not a number from 1 to 65535"), ({"vocab_size": "9" * 5000}, "vocab_size is '9{80}', not a number"),
    ({"hidden_size": 2**30}, "slots of 262144 bytes, a tile of hidden_size 1073741824 needs 549755819008")))
def test_nothing_is_allocated_for_what_a_rank_says(change, text):
    def script(rank):
        rank.greet()
        rank.acknowledge()
        to_the_end(rank)

    with fake(script, settings=change) as rank, pytest.raises(tandem_client.TandemError, match=text):
        tandem_client.Client(rank.address)


def test_no_address():
    with pytest.raises(tandem_client.InvalidArgument, match="no address: give those of all FFN ranks"):
        tandem_client.Client([])
