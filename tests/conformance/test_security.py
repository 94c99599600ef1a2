"""`tandem conformance` with a key and with TLS: a right rank passes, and a rank that is careless with strangers fails the case that names
the carelessness."""

import pytest

from tests.conftest import FfnRank
from tests.security.test_peer_key import key_file
from tests.security.test_peer_tls import certificates

from .careless import KEY, KEYED_MUTANTS, TLS_MUTANTS, NoncesForNonces, TlsRank
from .mutated_rank import MutatedRank
from .test_conformance import names, results, run

# What security changes: how connections begin and end. What is said inside of them is the same.
OF_CONNECTIONS = "security.*,carrier.*,credits.*,handshake.*,setting.top_k,session.*,request.*,numbers.order"
# 5 s each that a rank gives its peers, or silence.
SLOW = ["carrier.silence_ends", "carrier.heartbeats_are_enough", "handshake.unfinished", "security.key_no_proof"]


class Secured:
    def __init__(self, directory, flags):
        self.flags = list(flags)
        self.rank = FfnRank("tcp://127.0.0.1:0", directory, "--threads", "1", "--compute-gate-on-attention", *self.flags)


@pytest.fixture(scope="module")
def keyed(tmp_path_factory):
    directory = tmp_path_factory.mktemp("keyed")
    made = Secured(directory, ["--peer-key-file", key_file(directory, KEY)])
    yield made
    made.rank.close()


@pytest.fixture(scope="module")
def encrypted(tmp_path_factory):
    directory = tmp_path_factory.mktemp("encrypted")
    made = Secured(directory, certificates(directory, "ours"))
    yield made
    made.rank.close()


@pytest.fixture(params=["keyed", "encrypted"])
def secured(request):
    return request.getfixturevalue(request.param)


def quick(pattern):
    wanted = set(pattern.split(","))
    chosen = [name for name in names() if name not in SLOW and any(name == w or (w.endswith("*") and name.startswith(w[:-1])) for w in wanted)]
    return ",".join(chosen)


def test_tandem_ffn_passes(secured):
    cases, status = results(secured.rank.address, "--only", quick(OF_CONNECTIONS), "--threads", "1", *secured.flags)
    assert {name: message for name, (outcome, message) in cases.items() if outcome == "failed"} == {} and status == 0
    mine = "security.key_" if "--peer-key-file" in secured.flags else "security.tls_"
    ran = {name for name, (outcome, _) in cases.items() if outcome == "ok" and name.startswith("security.")}
    assert ran == {name for name in names() if name.startswith(mine) and name not in SLOW}
    assert secured.rank.process.poll() is None, "the rank goes on serving"


def test_a_client_that_proves_nothing_ends(keyed):
    cases, status = results(keyed.rank.address, "--only", "security.key_no_proof", *keyed.flags)
    assert [outcome for outcome, _ in cases.values()] == ["ok"] and status == 0


def test_without_security_its_cases_are_left_out(tmp_path):
    plain = FfnRank("tcp://127.0.0.1:0", tmp_path, "--threads", "1")
    try:
        cases, status = results(plain.address, "--only", "security.*,carrier.security")
        assert status == 0 and cases.pop("carrier.security")[0] == "ok"
        assert {outcome for outcome, _ in cases.values()} == {"skipped"}
        assert "has no key (--peer-key-file)" in cases["security.key_wrong_proof"][1]
        assert "does not speak TLS (--peer-tls-certificate)" in cases["security.tls_plain_hello"][1]
        other = run(plain.address, "--peer-key-file", key_file(tmp_path))
        assert other.returncode == 2 and "the rank knows its peers by none, and this side has a key" in other.stderr
    finally:
        plain.close()


def test_other_files_are_refused_in_a_line(keyed, encrypted, tmp_path):
    wrong_key = run(keyed.rank.address, "--peer-key-file", key_file(tmp_path, b"x" * 40))
    assert "the rank refuses this side's proof: give the --peer-key-file that the rank has" in wrong_key.stderr
    other_ca = run(encrypted.rank.address, *certificates(tmp_path, "theirs"))
    assert "its certificate is refused" in other_ca.stderr
    none = [run(secured.rank.address) for secured in (keyed, encrypted)]
    assert "the rank knows its peers by a key, and this side has none: give the --peer-key-file" in none[0].stderr
    assert "closed with an alert of TLS: give --peer-tls-certificate" in none[1].stderr
    for done in (wrong_key, other_ca, *none):
        assert done.returncode == 2 and len(done.stderr.splitlines()) == 1 and done.stdout == ""


def fails(address, flags, wanted):
    cases, status = results(address, "--only", ",".join(wanted), "--patience-s", "2", *flags)
    assert {name: outcome for name, (outcome, _) in cases.items()} == dict.fromkeys(wanted, "failed"), cases
    assert all("expected" in message and "got" in message for _, message in cases.values())
    assert status == 1


def passes(address, flags, mutants):
    wanted = sorted({name for _, cases in mutants.values() for name in cases})
    cases, status = results(address, "--only", ",".join(wanted), *flags)
    assert {name: message for name, (outcome, message) in cases.items() if outcome != "ok"} == {}
    assert sorted(cases) == wanted and status == 0


def test_right_ranks_behind_the_proxies_pass(keyed, encrypted):
    """Otherwise the mutants below would show nothing."""
    for proxy, secured, mutants in ((MutatedRank(keyed.rank.address), keyed, KEYED_MUTANTS),
                                    (TlsRank(encrypted.rank.address, encrypted.flags[1::2]), encrypted, TLS_MUTANTS)):
        try:
            passes(proxy.address, secured.flags, mutants)
        finally:
            proxy.close()


def test_a_rank_may_keep_its_nonce_until_it_has_the_clients(keyed):
    proxy = MutatedRank(keyed.rank.address, NoncesForNonces)
    try:
        cases, status = results(proxy.address, "--only", "security.key_data*,security.key_other*", *keyed.flags)
    finally:
        proxy.close()
    assert {outcome for outcome, _ in cases.values()} == {"ok"} and status == 0, cases


@pytest.mark.parametrize("mutant", KEYED_MUTANTS)
def test_a_rank_careless_with_its_key_fails(keyed, mutant):
    mutation, wanted = KEYED_MUTANTS[mutant]
    proxy = MutatedRank(keyed.rank.address, mutation)
    try:
        fails(proxy.address, keyed.flags, wanted)
    finally:
        proxy.close()


@pytest.mark.parametrize("mutant", TLS_MUTANTS)
def test_a_rank_careless_with_certificates_fails(encrypted, mutant):
    changes, wanted = TLS_MUTANTS[mutant]
    proxy = TlsRank(encrypted.rank.address, encrypted.flags[1::2], **changes)
    try:
        fails(proxy.address, encrypted.flags, wanted)
    finally:
        proxy.close()
