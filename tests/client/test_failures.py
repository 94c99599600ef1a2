"""What goes wrong is an exception that names rank and address, never a hang and never a wrong row."""

import contextlib
import signal
import threading
import time

import numpy as np
import pytest

import tandem_client
from tandem_client import frame
from tandem_client.frame import Payload
from tests.client.conftest import free_port
from tests.client.fake_rank import CONTROL, CREDIT, REQUEST, fake

ROWS = np.random.default_rng(0).standard_normal((10, 128)).astype(np.float32)  # of the bundled model
SMALL = np.random.default_rng(0).standard_normal((200, 16)).astype(np.float32)  # of the fake rank's


# ---- real ranks ----

def test_another_model_is_named_and_the_rank_goes_on(own_pool):
    """The client compares, so that a wrong client ends no pool: this rank has served nobody yet."""
    pool = own_pool("mixtral")
    with pytest.raises(tandem_client.InvalidArgument, match=rf"FFN rank 0 at {pool.address}: hidden_size is 4096 on attention rank 7 \(.*\) and 48 on "
                       r"FFN rank 0 \(.*; gate is attention on .* and ffn on"):
        tandem_client.Client(pool.address, rank=7, expect=dict(hidden_size=4096, num_experts=8, gate="attention"))
    with tandem_client.Client(pool.address, expect=dict(hidden_size=48, moe_layers="0-2", gate="ffn")) as client:
        client.compute(0, np.ones((1, 48), np.float32))


def test_the_rank_checks_values_too(pool, monkeypatch):
    """Past this side's own checks: the answer is an error, and the session goes on."""
    with tandem_client.Client(pool("mixtral", "--compute-gate-on-attention").address) as client:
        rows = np.ones((2, 48), np.float32)
        monkeypatch.setattr(tandem_client.client, "checked", lambda settings, layer, rows, ids, weights, tokens, row_class: (rows, ids, weights, tokens))
        with pytest.raises(tandem_client.InvalidArgument, match=rf"FFN rank 0 at {client._ranks[0].address}: .*expert id 99 of row 0") as caught:
            client.compute(0, rows, expert_ids=np.full((2, 2), 99, np.int32), expert_weights=np.ones((2, 2), np.float32))
        assert caught.value.rank == 0 and caught.value.address == client._ranks[0].address
        session = client._ranks[0]._session
        client.compute(0, rows, expert_ids=np.zeros((2, 2), np.int32), expert_weights=np.ones((2, 2), np.float32))
        assert client._ranks[0]._session is session


def test_a_killed_rank_is_named_and_comes_back(own_pool):
    port = free_port()
    pool = own_pool("arith", port=port)
    with tandem_client.Client(pool.address) as client:
        before = client.compute(1, ROWS)
        pool.signal(signal.SIGSTOP)
        ticket = client.submit(1, ROWS)
        pool.signal(signal.SIGKILL)
        with pytest.raises(tandem_client.Unavailable, match=f"FFN rank 0 at {pool.address}: "):
            ticket.result()
        with pytest.raises(tandem_client.DeadlineExceeded, match=f"FFN rank 0 at {pool.address}: not there in time: "):
            client.compute(1, ROWS, timeout=0.5)
        client._reach_s, patient = 0.5, client._reach_s
        with pytest.raises(tandem_client.DeadlineExceeded, match="not there in time: "):
            client.compute(1, ROWS, timeout=3600)  # for its answer, not for a rank that is gone
        client._reach_s = patient
        own_pool("arith", port=port)
        assert (client.compute(1, ROWS) == before).all()


def test_a_rank_that_comes_back_with_another_model_is_refused(own_pool):
    port = free_port()
    first = own_pool("arith", port=port)
    with tandem_client.Client(first.address) as client:
        first.close()
        own_pool("arith", "--compute-gate-on-attention", port=port)
        with pytest.raises(tandem_client.InvalidArgument, match="came back with other settings"):
            client.compute(1, ROWS)


def test_an_idle_client_is_not_silent(pool):
    """Longer than the limit of silence, either way: heartbeats keep the session. A machine may leave this process without time for as long,
    but not at every try."""
    def kept():
        session = client._ranks[0]._session
        time.sleep(1.5)
        client.compute(0, np.ones((1, 48), np.float32))
        return client._ranks[0]._session is session

    with tandem_client.Client(pool("mixtral").address) as client:
        assert any(kept() for _ in range(5))


def test_a_silent_rank(own_pool):
    pool = own_pool("arith")
    with tandem_client.Client(pool.address) as client:
        pool.signal(signal.SIGSTOP)
        with pytest.raises(tandem_client.Unavailable, match=f"FFN rank 0 at {pool.address}: silent for 0.8 s"):
            client.compute(1, ROWS)
        pool.signal(signal.SIGCONT)
        client.compute(1, ROWS)


def test_a_rank_that_stops_lets_its_client_go(own_pool):
    pool = own_pool("arith")
    with tandem_client.Client(pool.address) as client:
        client.compute(1, ROWS)
        pool.signal(signal.SIGTERM)
        assert pool.processes[0].wait(60) == 0
        assert "0 waiting tiles dropped" in pool.log.read_text(), "it left by goodbye"
        with pytest.raises(tandem_client.DeadlineExceeded, match="not there in time"):
            client.compute(1, ROWS, timeout=0.3)


def test_nobody_there():
    address = f"tcp://127.0.0.1:{free_port()}"
    with pytest.raises(tandem_client.DeadlineExceeded, match=f"FFN rank 0 at {address}: not there in time: .*start the peer first"):
        tandem_client.Client(address, timeout=0.4)


def test_an_address_less_than_ranks(pool):
    ranks = pool("arith", "--deterministic", "--connector", "m2n", "--compute-gate-on-attention", ranks=2)
    with pytest.raises(tandem_client.InvalidArgument, match="1 addresses, and num_ffn_ranks is 2"):
        tandem_client.Client(ranks.addresses[0])
    with pytest.raises(tandem_client.InvalidArgument, match=r"it is FFN rank 1 \(.*\), not FFN rank 0: list addresses in order of rank"):
        tandem_client.Client(ranks.addresses[::-1])
    assert tandem_client.describe(ranks.addresses[1]).num_ffn_ranks == 2


@pytest.mark.parametrize("address", ("shm:///tmp/x", "ucx://127.0.0.1:7000"))
def test_other_carriers_are_refused_by_name(address):
    with pytest.raises(tandem_client.InvalidArgument, match="speaks tcp:// only"):
        tandem_client.Client(address)


# ---- ranks that a test plays ----

def test_nothing_is_known_before_hello_ack():
    def script(rank):
        rank.open()
        assert all(line.endswith("=-") for line in rank.lines if not line.startswith(("peer.", "protocol="))), rank.lines
        rank.reply(rank.request())

    with fake(script) as rank, tandem_client.Client(rank.address) as client:
        assert client.settings.raw == {key: str(value) for key, value in rank.settings.items()}
        assert (client.compute(0, SMALL[:5]) == SMALL[:5] * 2).all()


def test_a_later_minor_and_its_offers_do_no_harm():
    def script(rank):
        rank.open()
        rank.reply(rank.request())

    with fake(script, settings={"protocol": "1.7", "may.features": "a,b"}) as rank, tandem_client.Client(rank.address) as client:
        assert (client.compute(0, SMALL[:5]) == SMALL[:5] * 2).all()


def test_one_credit_and_replies_in_any_order():
    """Four tiles of one request, one slot: each leaves when the last came back, and every row gets to its place."""
    def script(rank):
        rank.open()
        for _ in range(4):
            request = rank.request(give_back=False)
            rank.reply(request)
            rank.put(CREDIT, REQUEST, 1)

    with fake(script, slots=1) as rank, tandem_client.Client(rank.address) as client:
        assert (client.compute(0, SMALL) == SMALL * 2).all()

    def backwards(rank):
        rank.open()
        for request in reversed([rank.request() for _ in range(4)]):
            rank.reply(request)

    with fake(backwards) as rank, tandem_client.Client(rank.address) as client:
        assert (client.compute(0, SMALL) == SMALL * 2).all()


def test_prefill_leaves_the_last_slot_to_decode():
    """Two slots and a prefill of four tiles that nobody answers: the decode row comes through."""
    seen = []

    def script(rank):
        rank.open()
        first = rank.request(give_back=False)
        prefill.set()
        seen.append((first.header.row_class, rank.request().header.row_class))
        with contextlib.suppress(EOFError):
            while True:
                rank.receive()

    prefill = threading.Event()
    with fake(script, slots=2) as rank, tandem_client.Client(rank.address) as client:
        def long_prompt():
            with contextlib.suppress(tandem_client.TandemError):
                client.compute(0, SMALL)

        thread = threading.Thread(target=long_prompt)
        thread.start()
        assert prefill.wait(60)
        time.sleep(0.1)  # were it not kept back, its second tile would be gone by now
        client.submit(0, SMALL[:1], row_class="decode").cancel()
        while not seen:
            time.sleep(0.01)
        client.close()
        thread.join()
    assert seen == [(2, 0)]


def test_replies_of_nobody_are_dropped():
    def script(rank):
        rank.open()
        request = rank.request()
        for changed in ({"session": 1}, {"incarnation": 1}, {"step": 77}, {"layer": 1}, {"lane": 1}, {"attempt": 77}, {"tiles": 2}, {"rows": 4}):
            wrong = frame.Frame(request.header, {frame.ACTIVATION: Payload(frame.ACTIVATION, "f32", request.array(frame.ACTIVATION, "f32") * 50)})
            rank.reply(wrong, **changed)
        rank.reply(request)
        rank.reply(request)  # and once more

    with fake(script) as rank, tandem_client.Client(rank.address) as client:
        assert (client.compute(0, SMALL[:5]) == SMALL[:5] * 2).all()


def test_a_deadline_cancels_and_a_late_reply_is_dropped():
    events = []

    def script(rank):
        rank.open()
        late = rank.request()
        channel, data = rank.receive()
        events.append((channel, frame.parse(data).header))
        rank.reply(late)
        rank.reply(rank.request())
        events.append(late.header)

    with fake(script) as rank, tandem_client.Client(rank.address) as client:
        with pytest.raises(tandem_client.DeadlineExceeded, match=f"FFN rank 0 at {rank.address}: no answer in time to 1 of 1 tiles"):
            client.compute(0, SMALL[:5], timeout=0.2)
        assert (client.compute(0, SMALL[5:9]) == SMALL[5:9] * 2).all()
        rank.ended.wait(60)
    (channel, cancel), late = events
    assert channel == CONTROL and cancel.kind == frame.CANCEL
    assert (cancel.step, cancel.layer, cancel.lane, cancel.attempt) == (late.step, late.layer, late.lane, late.attempt)


def test_errors_of_the_rank_have_their_own_class():
    def script(rank):
        rank.open()
        for code in range(1, 12):
            rank.reply_error(rank.request(), code, b"because\n\x1b[31m it is")
        rank.reply(rank.request())

    kinds = [tandem_client.InvalidArgument, tandem_client.OutOfRange, tandem_client.Unsupported, tandem_client.ResourceExhausted,
             tandem_client.Unavailable, tandem_client.DeadlineExceeded, tandem_client.Cancelled, tandem_client.DataLoss, tandem_client.Internal,
             tandem_client.Internal, tandem_client.Internal]
    with fake(script) as rank, tandem_client.Client(rank.address) as client:
        for kind in kinds:
            with pytest.raises(tandem_client.TandemError) as caught:
                client.compute(0, SMALL[:5])
            assert type(caught.value) is kind
            assert str(caught.value) == f"FFN rank 0 at {rank.address}: because  [31m it is"
        assert (client.compute(0, SMALL[:5]) == SMALL[:5] * 2).all()


def test_drain_lets_what_was_begun_end():
    def script(rank):
        rank.open()
        request = rank.request()
        rank.plain(frame.DRAIN)
        drained.set()
        assert later.wait(60)
        rank.reply(request)
        channel, data = rank.receive()
        assert channel == CONTROL and frame.parse(data).header.kind == frame.GOODBYE

    drained, later = threading.Event(), threading.Event()
    with fake(script) as rank, tandem_client.Client(rank.address) as client:
        session = client._ranks[0]._session
        ticket = client.submit(0, SMALL[:5])
        assert drained.wait(60)
        while session.usable:
            time.sleep(0.01)
        with pytest.raises(tandem_client.Unavailable, match=f"FFN rank 0 at {rank.address}: it is stopping"):
            session.submit(ticket.sent[0][1].request, time.monotonic() + 1)
        later.set()
        assert (ticket.result() == SMALL[:5] * 2).all()


def test_damage_ends_the_session_and_says_so():
    refused = []

    def script(rank):
        rank.open()
        request = rank.request()
        reply = frame.build(frame.replace(request.header, kind=frame.FFN_REPLY), [])
        reply[20] ^= 1
        rank.send(REQUEST, reply)
        refused.append(frame.parse(rank.receive()[1]))

    with fake(script) as rank, tandem_client.Client(rank.address) as client:
        with pytest.raises(tandem_client.Unavailable, match="the session ended: frame: wrong checksum"):
            client.compute(0, SMALL[:5])
        rank.ended.wait(60)
    assert refused[0].header.kind == frame.REFUSE and b"wrong checksum" in refused[0].text(frame.ERROR_TEXT)


def test_a_refusal_is_passed_on():
    def script(rank):
        rank.greet()
        rank.receive()
        header = frame.Header(frame.REFUSE)
        rank.send(CONTROL, frame.build(header, [Payload(frame.ERROR_CODE, "u32", np.array([[4]], np.uint32)),
                                                Payload(frame.ERROR_TEXT, "u8", np.frombuffer(b"64 clients are connected", np.uint8)[None])]))
        with contextlib.suppress(EOFError):
            rank.receive()

    with fake(script) as rank, pytest.raises(tandem_client.ResourceExhausted, match=f"FFN rank 0 at {rank.address}: it refused: 64 clients are connected"):
        tandem_client.Client(rank.address)


def test_a_canary_that_comes_back_changed():
    def script(rank):
        rank.greet()
        rank.acknowledge()
        echo = frame.echo_of(rank.receive()[1])
        echo[-1] ^= 1
        rank.send(REQUEST, echo)
        with contextlib.suppress(EOFError):
            rank.receive()

    with fake(script) as rank, pytest.raises(tandem_client.DataLoss, match="canary 0 of .* came back changed: the path damages data"):
        tandem_client.Client(rank.address)


@pytest.mark.parametrize("change,text", (
    ({"protocol": "2.0"}, "protocol is 2.0 there and 1.0 here"), ({"activation_dtype": "int4"}, "activation_dtype is 'int4'"),
    ({"tile_rows": 128}, "tile_rows is '128'"), ({"top_k": "many"}, "top_k is 'many', not a number"), ({"moe_layers": "3,1"}, "moe_layers is '3,1'"),
    ({"pool": "x"}, r"settings without \[\] and with \['pool'\]: run the same release")))
def test_settings_that_this_client_does_not_know(change, text):
    def script(rank):
        rank.greet()
        rank.acknowledge()
        data = frame.parse(rank.receive()[1])
        assert data.header.kind == frame.REFUSE and (data.header.session, data.header.incarnation) == (0x5E55, 9)

    with fake(script, settings=change) as rank, pytest.raises(tandem_client.TandemError, match=text):
        tandem_client.Client(rank.address)


@pytest.mark.parametrize("pieces,text", (
    ([[0, 0, 4, 0, 8, 0], [1, 0, 3, 0, 8, 0]], "no FFN rank holds layer 1, expert 3, rows 0..8"),
    ([[0, 0, 4, 0, 4, 0], [1, 0, 4, 0, 8, 0]], "no FFN rank holds layer 0, expert 0, rows 4..8; layer 0, expert 1.* and 1 more"),
    ([[0, 0, 5, 0, 8, 0], [1, 0, 4, 0, 8, 0]], "FFN rank 0: it states layer 0, experts 0..5, rows 0..8, which this model does not have")))
def test_experts_that_nobody_holds(pieces, text):
    def script(rank):
        rank.open()
        with contextlib.suppress(EOFError):
            while True:
                rank.receive()

    with fake(script, pieces=np.array(pieces, np.uint32)) as rank, pytest.raises(tandem_client.TandemError, match=text):
        tandem_client.Client(rank.address)


def test_what_is_no_rank_is_not_waited_for():
    def script(rank):
        rank.read(80)
        rank.connected.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n" + bytes(80))

    with fake(script) as rank, pytest.raises(tandem_client.DataLoss, match=f"{rank.address}: it does not speak Tandem's transport"):
        tandem_client.Client(rank.address)


def test_a_credit_that_was_never_taken_ends_the_session():
    def script(rank):
        rank.open()
        rank.request()
        rank.put(CREDIT, REQUEST, 3)
        with contextlib.suppress(EOFError):
            while True:
                rank.receive()

    with fake(script) as rank, tandem_client.Client(rank.address) as client:
        with pytest.raises(tandem_client.Unavailable, match="credits for channel 1 that were never taken"):
            client.compute(0, SMALL[:5])
