"""Checkpoints that several files of tests read; none writes into them."""

import pytest

from tests.native_v4 import files


@pytest.fixture(scope="session")
def native(tmp_path_factory):
    return files.make(tmp_path_factory.mktemp("native_v4") / "model")


@pytest.fixture(scope="session")
def with_reference(tmp_path_factory):
    """with_reference(drafter): a checkpoint with reference outputs beside it; drafter None: a random one."""
    known = {}

    def of(drafter=None, shape="tiny", **outputs):
        key = (drafter, shape, *sorted(outputs.items()))
        if key not in known:
            known[key] = files.make(tmp_path_factory.mktemp("native_v4") / "model", drafter=drafter, shape=shape)
            files.native_v4_parity.write(known[key], **outputs)
        return known[key]

    return of


@pytest.fixture(scope="session")
def with_drafter(tmp_path_factory):
    """with_drafter("mtp" | "dspark"): a checkpoint whose drafter is right now and then."""
    known = {}

    def of(drafter, shape="tiny"):
        if (drafter, shape) not in known:
            known[drafter, shape] = files.make(tmp_path_factory.mktemp("native_v4") / "model", drafter=drafter, shape=shape)
        return known[drafter, shape]

    return of
