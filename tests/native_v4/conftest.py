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
def dspark(tmp_path_factory):
    return files.make(tmp_path_factory.mktemp("native_v4") / "model", drafter="dspark")
