"""libtandem_client: installed into a folder of its own, compiled against as C99 by a CMake project and by pkg-config, and run
against FFN ranks of the bundled model."""

import concurrent.futures
import os
import pathlib
import shutil
import signal
import subprocess

import pytest

from tests.client.installation import LIMIT_S, WARNINGS, run
from tests.client.worker import heldout_prompts, start_worker, worker_tokens
from tests.conftest import ARITH, ROOT, FfnRank, start_ffn_ranks
from tests.security.test_peer_tls import certificates


@pytest.fixture
def ranks(tmp_path):
    """ranks(transport, count, *flags): FFN ranks; their addresses."""
    started = []

    def start(transport="tcp", count=1, *flags):
        started.extend(start_ffn_ranks(transport, count, tmp_path, *flags))
        return [rank.address for rank in started]

    start.started = started
    yield start
    for rank in started:
        rank.close()


def test_only_the_functions_of_the_header_are_exported(installed):
    header = (ROOT / "client" / "tandem_client.h").read_text()
    exported = {line.split()[-1].split("@")[0] for line in run(["nm", "-D", "--defined-only", installed.library]).stdout.splitlines()}
    exported.discard("TANDEM_CLIENT_1")  # the version of the others
    assert exported == {name for name in exported if f"{name}(" in header}
    assert len(exported) == header.count("TANDEM_CLIENT_API tandem_client_status tandem_client_") + header.count(
        "TANDEM_CLIENT_API const char* tandem_client_") + header.count("TANDEM_CLIENT_API void tandem_client_")
    assert {"tandem_client_connect", "tandem_client_submit", "tandem_client_close"} <= exported


def test_the_library_is_versioned(installed):
    dynamic = run(["readelf", "-d", installed.library]).stdout
    assert "soname: [libtandem_client.so.1]" in dynamic
    assert run(["pkg-config", "--modversion", "tandem_client"], env=installed.environment).stdout.strip() == "1.1"
    assert (installed.library.parent / "libtandem_client.so.1").exists()


def test_kernels_and_blocks_of_experts_stay_out(installed):
    symbols = run(["nm", "-C", installed.library], check=False).stdout
    assert "tandem::RemoteFfn" in symbols
    assert "tandem::MoeBlock" not in symbols and "tandem::LocalFfn" not in symbols


@pytest.mark.parametrize("transport", ["tcp", "shm"])
def test_a_client_without_model_files_learns_what_the_pool_is(installed, ranks, transport):
    (address,) = ranks(transport)
    lines = installed.case("describe", address).stdout.splitlines()
    assert lines[0].split()[2:] == ("hidden 128 layers 5 vocab 512 experts 16 top_k 4 intermediate 64 shared 64").split()
    assert lines[1:] == [
        "moe_layers 1 2 3 4",
        "payload 0 shared 1 deterministic 0 input 2 scale 0 scales 0 block 0 output 2 ranks 1 connector p2p weights as stored",
        f"rank 0 up 1 pieces 64 transport {transport} address {address}",
        "ok",
    ]


def test_quantised_rows_are_described(installed, ranks):
    (address,) = ranks("tcp", 1, "--activation-dtype", "mxfp8", "--compute-gate-on-attention", "--deterministic")
    assert ("payload 2 shared 0 deterministic 1 input 5 scale 7 scales 4 block 32 output 4 ranks 1" in
            installed.case("describe", address).stdout)


@pytest.mark.parametrize("case", ["refusals", "ends", "threads", "cancel_elsewhere", "quota"])
@pytest.mark.parametrize("transport,count", [("tcp", 1), ("shm", 2)])
def test_case(installed, ranks, case, transport, count):
    assert installed.case(case, *ranks(transport, count)).stdout.splitlines()[-1] == "ok"


def test_every_connector_gives_the_same_bits(installed, tmp_path):
    sums = {}
    for gate in (False, True):
        placements = {"one": (1, ()), "p2p": (2, ("--connector", "p2p"))}
        if gate:
            placements |= {"m2n": (3, ("--connector", "m2n")), "auto": (2, ("--connector", "auto"))}
        for name, (count, flags) in placements.items():
            flags = ["--deterministic", f"--compute-gate-on-attention={str(gate).lower()}", *flags]
            started = start_pool(count, tmp_path / f"{name}{gate}", *flags)
            try:
                sums[gate, name] = installed.case("sums", *[rank.address for rank in started]).stdout
            finally:
                for rank in started:
                    rank.close()
    for gate in (False, True):
        assert len({text for key, text in sums.items() if key[0] == gate}) == 1, sums
    assert sums[False, "one"] != sums[True, "one"]  # other routing


def start_pool(count, folder, *flags):
    """Ranks that name each other; over shm, so that addresses are known beforehand."""
    folder.mkdir()
    addresses = [f"shm://{folder}/ffn{rank}.sock" for rank in range(count)]
    if count > 1:
        flags = (*flags, "--num-ffn-ranks", str(count), "--ffn", ",".join(addresses))
    processes = []
    with concurrent.futures.ThreadPoolExecutor(count) as pool:
        starts = [pool.submit(FfnRank, address, folder, *flags, *(("--ffn-rank", str(rank)) if count > 1 else ()), rank=rank)
                  for rank, address in enumerate(addresses)]
        processes = [start.result() for start in starts]
    return processes


def test_nobody_at_the_address(installed):
    done = installed.case("describe", "tcp://127.0.0.1:1", check=False, environment={"CONNECT_TIMEOUT_MS": "300"})
    assert done.returncode == 3
    assert done.stderr.startswith("DEADLINE_EXCEEDED: ") and "tcp://127.0.0.1:1" in done.stderr and "refused" in done.stderr


def test_what_is_expected_and_differs_is_named(installed, ranks):
    (address,) = ranks()
    done = installed.case("describe", address, check=False, environment={"EXPECT": "hidden_size=128\ntop_k=9"})
    assert done.returncode == 3
    assert done.stderr.startswith("INVALID_ARGUMENT: ") and "top_k is 4 on FFN rank 0 (" in done.stderr and "9 is expected" in done.stderr
    assert "hidden_size" not in done.stderr
    assert installed.case("describe", address, environment={"EXPECT": "hidden_size=128\ntop_k=4\n"}).stdout.endswith("ok\n"), \
        "a client that does not fit ends no pool, not even one that nobody has used yet"


def test_all_ranks_must_be_named_in_order(installed, ranks):
    first, second = ranks("shm", 2)
    done = installed.case("describe", first, check=False)
    assert "1 addresses" in done.stderr and "has 2 FFN ranks" in done.stderr
    assert "says that it is FFN rank 1: list FFN addresses in order of rank" in installed.case("describe", second, first, check=False).stderr


@pytest.mark.parametrize("count", [1, 2])
def test_a_rank_that_dies_is_named_and_comes_back(installed, ranks, tmp_path, count):
    addresses = ranks("shm", count)
    victim = ranks.started[-1]
    process = subprocess.Popen([installed.test, "loss", *addresses], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout.readline() == "ready\n"
        victim.kill(signal.SIGSTOP)  # stopped: it takes the request and cannot answer it
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.stdout.readline() == "submitted\n"
        victim.kill()
        lost = process.stdout.readline()
        named = f"FFN rank {count - 1} at {victim.address}: connection "
        assert lost.startswith("UNAVAILABLE: ") and named in lost
        state = process.stdout.readline()
        assert state.startswith(f"rank {count - 1} up 0: FFN rank {count - 1} at {victim.address}")
        assert process.stdout.readline() == "UNAVAILABLE\n"
        victim.process.wait()
        # As it was started; start_ffn_ranks gave the flags of several ranks already.
        ranks.started.append(FfnRank(victim.address, tmp_path, *victim.flags, rank=victim.rank))
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.stdout.readline() == "back\n"
        assert process.wait(LIMIT_S) == 0
    finally:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()


def test_a_rank_that_comes_back_changed_is_refused_by_name_and_lives(installed, ranks, tmp_path):
    (address,) = ranks("shm")
    first = ranks.started[0]
    process = subprocess.Popen([installed.test, "change", address], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout.readline() == "ready\n"
        first.kill()
        first.process.wait()
        ranks.started.append(FfnRank(address, tmp_path, "--deterministic"))
        process.stdin.write("\n")
        process.stdin.flush()
        reason = process.stdout.readline()
        assert "deterministic is no on attention rank 0" in reason and "and yes on FFN rank 0" in reason
        assert process.wait(LIMIT_S) == 0
        assert " deterministic 1 " in installed.case("describe", address).stdout, "the rank serves others"
        assert ranks.started[1].process.poll() is None
    finally:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()


def test_a_pool_with_a_key_answers_who_has_it(installed, ranks, tmp_path):
    keys = {}
    for name in ("right", "wrong"):
        keys[name] = tmp_path / name
        keys[name].write_text(name * 10)
        keys[name].chmod(0o600)
    (address,) = ranks("tcp", 1, "--peer-key-file", str(keys["right"]))
    assert installed.case("threads", address, environment={"PEER_KEY_FILE": str(keys["right"])}).stdout == "ok\n"
    brief = {"CONNECT_TIMEOUT_MS": "1000"}
    without = installed.case("describe", address, check=False, environment=brief)
    assert without.returncode == 3 and without.stderr.startswith("INVALID_ARGUMENT: ") and "security differs" in without.stderr
    wrong = installed.case("describe", address, check=False, environment={**brief, "PEER_KEY_FILE": str(keys["wrong"])})
    assert wrong.returncode == 3 and address in wrong.stderr and wrong.stdout == ""
    keys["right"].chmod(0o644)
    public = installed.case("describe", address, check=False, environment={**brief, "PEER_KEY_FILE": str(keys["right"])})
    assert public.returncode == 3 and "chmod 600" in public.stderr


def test_a_pool_with_certificates_answers_who_has_one(installed, ranks, tmp_path):
    flags = {name: certificates(tmp_path, name) for name in ("ours", "theirs")}
    environments = {name: {"PEER_TLS_CERTIFICATE": words[1], "PEER_TLS_KEY": words[3], "PEER_TLS_CA": words[5], "CONNECT_TIMEOUT_MS": "20000"}
                    for name, words in flags.items()}
    (address,) = ranks("tcp", 1, *flags["ours"])
    assert installed.case("threads", address, environment=environments["ours"]).stdout == "ok\n"
    for environment in (environments["theirs"], {}):
        refused = installed.case("describe", address, check=False, environment={**environment, "CONNECT_TIMEOUT_MS": "1000"})
        assert refused.returncode == 3 and address in refused.stderr and refused.stdout == ""


def test_the_header_is_for_cxx_too(installed, tmp_path):
    source = tmp_path / "user.cc"
    source.write_text("#include <tandem_client.h>\n"
                      "int main() { tandem_client_options options = TANDEM_CLIENT_OPTIONS_INIT; return options.struct_size == 0; }\n")
    run(["c++", "-std=c++11", *WARNINGS[1:], *installed.pkg_config("--cflags"), "-fsyntax-only", source])


def test_the_archive_alone(installed, ranks, tmp_path):
    program = tmp_path / "static"
    installed.compile(program, static=True)
    assert "tandem_client" not in run(["ldd", program]).stdout
    (address,) = ranks()
    assert installed.case("sums", address, program=program).stdout == installed.case("sums", address).stdout


def test_a_moved_installation_still_works(installed, tmp_path):
    moved = tmp_path / "elsewhere"
    shutil.copytree(installed.prefix, moved, symlinks=True)
    pc = next(moved.rglob("tandem_client.pc"))
    flags = run(["pkg-config", "--cflags", "--libs", "tandem_client"], env={**os.environ, "PKG_CONFIG_PATH": str(pc.parent)}).stdout
    include = next(word[2:] for word in flags.split() if word.startswith("-I"))
    assert pathlib.Path(include).resolve() == (moved / "include").resolve()
    assert str(installed.prefix) not in flags
    run(["cmake", "-S", ROOT / "client" / "examples", "-B", tmp_path / "build", f"-DCMAKE_PREFIX_PATH={moved}"])
    assert str(moved) in (tmp_path / "build" / "CMakeCache.txt").read_text()


def test_the_short_example(installed, ranks):
    for flags in ((), ("--compute-gate-on-attention",)):
        address = ranks("tcp", 1, *flags)[-1]
        lines = run([installed.examples / "layer", address]).stdout.splitlines()
        assert lines[0] == "4 layers with 16 experts, 4 a row; hidden size 128; 1 FFN ranks"
        squares = [float(line.split()[-1]) for line in lines[1:5]]
        assert len(set(squares)) == 4 and all(0 < value < 1000 for value in squares)
    done = run([installed.examples / "layer", "carrier://pigeon"], check=False)
    assert done.returncode == 1 and "connect: UNSUPPORTED" in done.stderr and "carrier" in done.stderr


QUESTIONS = 6
MAX_TOKENS = 120


def test_the_long_example_generates_the_tokens_of_tandem(installed, ranks, tmp_path):
    """One pool, two kinds of attention at the same time: Tandem's own behind HTTP, and the C program."""
    (address,) = ranks("tcp")
    worker = start_worker(address, tmp_path)
    try:
        prompts = heldout_prompts(worker, QUESTIONS)
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            c = pool.map(lambda prompt: installed.generate(address, prompt, MAX_TOKENS), prompts)
            tandem = pool.map(lambda prompt: worker_tokens(worker, prompt, MAX_TOKENS), prompts)
            for tokens, (text, expected) in zip(c, tandem):
                assert "####" in text, "an answer to the end"
                assert tokens == expected, text
    finally:
        assert worker.stop() == 0


def test_the_long_example_names_what_it_cannot_do(installed, ranks):
    (address,) = ranks("tcp", 1, "--compute-gate-on-attention")
    done = run([installed.examples / "generate", ARITH, "4", address, "5"], check=False)
    assert done.returncode == 1 and "--compute-gate-on-attention" in done.stderr
