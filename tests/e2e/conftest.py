"""The official client and what the tests of the API share."""

import contextlib
import json
import os
import pathlib
import subprocess

import openai
import pytest

from tests.conftest import ARITH, BINARY, START_LIMIT_S

MODEL = "arith"
SCRIPTED_SERVER = os.environ.get("TANDEM_SCRIPTED_SERVER", str(pathlib.Path(BINARY).parent / "scripted_server"))
QUESTION = "Tom has 12 apples. He buys 7 more apples. How many apples does Tom have now?"


@pytest.fixture(scope="session")
def server(tandem_server):
    return tandem_server("serve")


def make_client(server):
    # No retries: a test must see the first answer. The key is not checked.
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=120)


@pytest.fixture(scope="session")
def client(server):
    return make_client(server)


@pytest.fixture(scope="session")
def vocabulary():
    return json.loads((ARITH / "tokenizer.json").read_text())["model"]["vocab"]


@pytest.fixture(scope="session")
def context_tokens():
    return json.loads((ARITH / "config.json").read_text())["max_position_embeddings"]


@contextlib.contextmanager
def scripted_server(answers, directory):
    """The URL of a server of DeepSeek-V4's format, model "scripted": seed i gives the i-th of the answers."""
    path = directory / "answers.json"
    path.write_text(json.dumps(list(answers)))
    process = subprocess.Popen([SCRIPTED_SERVER, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    line = process.stdout.readline().split()
    assert line and line[0] == "ready", line
    yield line[1]
    process.stdin.close()
    assert process.wait(START_LIMIT_S) == 0
    process.stdout.close()


def user(content):
    return [{"role": "user", "content": content}]
