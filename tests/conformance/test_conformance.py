"""`tandem conformance`: `tandem ffn` passes every case in every placement, and a rank with one thing wrong fails the case that names it."""

import json
import subprocess

import pytest

from tests.conftest import ARITH, BINARY, FfnRank

from .mutants import MUTANTS, AnotherRightRank, FewSlots, NoCaptureSizes
from .mutated_rank import MutatedRank

HANG_S = 120
# Placements in which other things travel.
PLACEMENTS = {
    "gate on FFN": [],
    "gate on attention": ["--compute-gate-on-attention"],
    "token ids": ["--send-token-ids"],
    "shared experts on attention": ["--compute-gate-on-attention", "--compute-shared-experts-on-attention", "true"],
    "deterministic": ["--deterministic", "--compute-gate-on-attention"],
    "float32": ["--compute-dtype", "float32"],
    "graph": ["--execution", "graph", "--compute-gate-on-attention"],
    "int8 rows": ["--activation-dtype", "int8", "--compute-gate-on-attention"],
    "mxfp8 rows": ["--activation-dtype", "mxfp8", "--compute-gate-on-attention"],
}
# What differs between placements: the carrier and the rules of frames do not.
OF_PLACEMENTS = "request.*,value.*,numbers.*,credits.come_back,handshake.equal,handshake.canary*,setting.*"
# Silence, and the 5 s of an unfinished handshake: once is enough.
SLOW = ["carrier.silence_ends", "carrier.heartbeats_are_enough", "handshake.unfinished"]


def run(*arguments):
    return subprocess.run([BINARY, "conformance", *arguments], capture_output=True, text=True, timeout=HANG_S)


def results(*arguments):
    """{case: (outcome, message)} and the exit status."""
    done = run(*arguments, "--json")
    assert done.stdout, done.stderr
    document = json.loads(done.stdout)
    cases = {case["name"]: (case["outcome"], case["message"]) for case in document["cases"]}
    assert document["failed"] == sum(outcome == "failed" for outcome, _ in cases.values())
    return cases, done.returncode


def names():
    done = run("--list", "--json")
    return [case["name"] for case in json.loads(done.stdout)]


@pytest.fixture(scope="module")
def rank(tmp_path_factory):
    """rank(placement): a `tandem ffn` in it."""
    ranks = {}

    def start(placement):
        if placement not in ranks:
            ranks[placement] = FfnRank("tcp://127.0.0.1:0", tmp_path_factory.mktemp("rank"), "--threads", "1", *PLACEMENTS[placement])
        return ranks[placement]

    yield start
    for one in ranks.values():
        one.close()


def test_cases_are_many_and_named_once():
    listed = names()
    assert len(listed) >= 60 and len(set(listed)) == len(listed)


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_tandem_ffn_passes(rank, placement):
    served = rank(placement)
    only = {"gate on attention": [], "gate on FFN": ["--only", ",".join(name for name in names() if name not in SLOW)]}
    cases, status = results(served.address, *only.get(placement, ["--only", OF_PLACEMENTS]), "--model", str(ARITH), "--threads", "1")
    failed = {name: message for name, (outcome, message) in cases.items() if outcome == "failed"}
    assert not failed and status == 0
    assert sum(outcome == "ok" for outcome, _ in cases.values()) >= 60
    assert served.process.poll() is None, "the rank goes on serving"


def test_no_case_is_left_out_everywhere(rank):
    """By --only a pattern that asks for nothing slow."""
    left_out = None
    for placement in ("gate on FFN", "gate on attention", "token ids", "shared experts on attention"):
        cases, _ = results(rank(placement).address, "--only", "value.*")
        skipped = {name for name, (outcome, _) in cases.items() if outcome == "skipped"}
        left_out = skipped if left_out is None else left_out & skipped
    assert not left_out


def test_a_right_rank_behind_the_proxy_passes(rank):
    """Otherwise the mutants below would show nothing."""
    proxy = MutatedRank(rank("gate on attention").address)
    wanted = sorted({name for _, cases in MUTANTS.values() for name in cases})
    try:
        cases, status = results(proxy.address, "--only", ",".join(wanted), "--model", str(ARITH), "--threads", "1")
    finally:
        proxy.close()
    assert {name: message for name, (outcome, message) in cases.items() if outcome != "ok"} == {}
    assert sorted(cases) == wanted and status == 0


def test_another_right_rank_passes(rank):
    proxy = MutatedRank(rank("gate on attention").address, AnotherRightRank)
    try:
        cases, status = results(proxy.address, "--only", ",".join(name for name in names() if name not in SLOW))
    finally:
        proxy.close()
    assert {name: message for name, (outcome, message) in cases.items() if outcome == "failed"} == {} and status == 0


@pytest.mark.parametrize("mutation,words", [
    (NoCaptureSizes, "hello_ack says capture_sizes=0"),
    (FewSlots, "the rank has 3 slots a channel, and cases send up to 4 requests at once: start it with the 8"),
])
def test_a_rank_whose_terms_are_none_is_not_tested(rank, mutation, words):
    proxy = MutatedRank(rank("gate on attention").address, mutation)
    try:
        done = run(proxy.address, "--only", "request.one_row")
    finally:
        proxy.close()
    assert done.returncode == 2 and words in done.stderr and done.stdout == ""


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_mutated_rank_fails_the_case_that_names_it(rank, mutant):
    mutation, wanted = MUTANTS[mutant]
    proxy = MutatedRank(rank("gate on attention").address, mutation)
    model = ["--model", str(ARITH), "--threads", "1"] if "numbers.reference" in wanted else []
    try:
        cases, status = results(proxy.address, "--only", ",".join(wanted), "--patience-s", "2", *model)
    finally:
        proxy.close()
    assert {name: outcome for name, (outcome, _) in cases.items()} == dict.fromkeys(wanted, "failed")
    assert all("expected" in message and "got" in message for _, message in cases.values())
    assert status == 1


def test_lines_say_what_was_expected_and_what_came(rank):
    proxy = MutatedRank(rank("gate on attention").address, MUTANTS["another step"][0])
    try:
        done = run(proxy.address, "--only", "request.one_row,request.header_repeated", "--patience-s", "2")
    finally:
        proxy.close()
    assert done.returncode == 1
    lines = done.stdout.splitlines()
    assert lines[0].startswith("FAILED  request.one_row: a request of one row is answered with one; expected a reply that repeats")
    assert "step 1 " in lines[0] and "got" in lines[0] and "step 2 " in lines[0]
    assert lines[-1] == "2 cases: 0 ok, 2 failed, 0 left out in this placement"


@pytest.mark.parametrize("arguments, words", [
    (["127.0.0.1:1"], "is the FFN rank running there?"),
    (["shm:///nowhere.sock"], "ranks are tested over tcp"),
    (["127.0.0.1:1", "--only", "value.nothing"], "no case is called 'value.nothing'"),
    ([], "conformance.rank: no address"),
])
def test_what_cannot_be_tested_is_said_in_a_line(arguments, words):
    done = run(*arguments)
    assert done.returncode == 2 and words in done.stderr and len(done.stderr.splitlines()) == 1
