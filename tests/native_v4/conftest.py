"""Checkpoints that several files of tests read; none writes into them."""

import pytest

from tests.native_v4 import files


@pytest.fixture(scope="session")
def native(tmp_path_factory):
    return files.make(tmp_path_factory.mktemp("native_v4") / "model")


@pytest.fixture(scope="session")
def native_with_reference(tmp_path_factory):
    folder = files.make(tmp_path_factory.mktemp("native_v4") / "model")
    files.native_v4_parity.write(folder)
    return folder


@pytest.fixture(scope="session")
def with_drafter(tmp_path_factory):
    """with_drafter("mtp" | "dspark"): a checkpoint whose drafter is right now and then."""
    known = {}

    def of(drafter):
        if drafter not in known:
            known[drafter] = files.make(tmp_path_factory.mktemp("native_v4") / "model", drafter=drafter)
        return known[drafter]

    return of
