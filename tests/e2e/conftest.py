"""The official client and what the tests of the API share."""

import json

import openai
import pytest

from tests.conftest import ARITH

MODEL = "arith"
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


def user(content):
    return [{"role": "user", "content": content}]
