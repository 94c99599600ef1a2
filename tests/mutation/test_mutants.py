"""Every mutant still applies, and its test is there; `--long` runs them all (tests/mutation/run.py)."""

import fnmatch
import re
import subprocess
import sys

import pytest

from tests.mutation.mutants import MUTANTS
from tests.mutation.run import ROOT, MutationError, apply

TEST = re.compile(r"^TEST(?:_F|_P)?\((\w+),\s*(\w+)\)", re.MULTILINE)


@pytest.fixture(scope="module")
def tests_there():
    """Names as `Suite.Test`, of every C++ test."""
    return {".".join(match) for path in (ROOT / "src").rglob("*_test.cc") for match in TEST.findall(path.read_text())}


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name.replace(" ", "-"))
def test_a_mutant_applies_and_its_test_is_there(mutant, tests_there):
    text = (ROOT / mutant.file).read_text()
    assert apply(mutant, text) != text
    # Parametrised suites stand behind a prefix and before a suffix: "Transports/ContractTest.Name/tcp".
    pattern = mutant.test.split("/")[0]
    assert any(fnmatch.fnmatchcase(name, pattern) for name in tests_there), f"no test {mutant.test}"


def test_there_are_enough_and_no_two_share_a_name():
    assert len(MUTANTS) >= 12
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)


def test_a_mutant_that_does_not_apply_is_named():
    with pytest.raises(MutationError, match=f"'{MUTANTS[0].name}' does not apply any more: its line stands 0 times"):
        apply(MUTANTS[0], "other text")


@pytest.mark.long
def test_every_mutant_is_killed():
    done = subprocess.run([sys.executable, ROOT / "tests" / "mutation" / "run.py"], capture_output=True, text=True, timeout=7200)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
