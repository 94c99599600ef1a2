"""The API's own description: /openapi.json and docs/api.md against the fields that the server knows, and the server against the document
(schemathesis)."""

import json
import re

import pytest

from tests.conftest import ROOT
from tests.e2e.conftest import MODEL, user

BODIES = {
    "/v1/chat/completions": {"messages": user("7"), "max_tokens": 1},
    "/v1/completions": {"prompt": "7", "max_tokens": 1},
    "/v1/responses": {"input": "7", "max_output_tokens": 1},
    "/v1/messages": {"messages": user("7"), "max_tokens": 1},
    "/v1/messages/count_tokens": {"messages": user("7")},
    "/tokenize": {"prompt": "7"},
    "/detokenize": {"tokens": [7]},
}
# What is refused of no value but others.
ONLY = {"stream_options": {"include_obfuscation": True}, "best_of": 7, "suffix": "x", "function_call": "f", "modalities": ["audio"],
        "service_tier": "flex", "truncation": "auto", "speed": "fast", "spaces_between_special_tokens": False}


@pytest.fixture(scope="module")
def document(server):
    return server.request("GET", "/openapi.json").json()


def known_fields(server, path):
    """As the server says them: its refusal of an unknown field lists them."""
    reply = server.request("POST", path, {"model": MODEL, **BODIES[path], "zzz": 1})
    message = reply.json()["error"]["message"]
    assert reply.status == 400 and message.startswith('"zzz" is not a known field'), message
    return set(message.rsplit("known are ", 1)[1].split(", "))


def schema_of(document, path):
    reference = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]["$ref"]
    return document["components"]["schemas"][reference.rsplit("/", 1)[1]]


def test_every_path_is_there(server, document):
    listing = server.request("GET", "/nothing").json()["error"]["message"].split("has: ")[1].split(", ")
    paths = {f"{method.upper()} {path.replace('{id}', '*')}" for path, methods in document["paths"].items() for method in methods}
    assert paths == set(listing)
    text = (ROOT / "docs/api.md").read_text()
    for each in listing:
        assert f"`{each.replace('*', '{id}')}`" in text, f"docs/api.md has no {each}"


@pytest.mark.parametrize("path", BODIES)
def test_every_field_is_there(server, document, path):
    """A field that the server knows is in the document, or is refused by name; docs/api.md has both."""
    known, described = known_fields(server, path), set(schema_of(document, path)["properties"])
    if path == "/tokenize":
        described.discard("messages")  # with it the fields are those of a chat
    assert described <= known, f"in the document, and unknown: {described - known}"
    text = (ROOT / "docs/api.md").read_text()
    words = set(re.findall(r"`([a-z_]+)(?:`|\.|:)", text))
    assert known <= words, f"not in docs/api.md: {sorted(known - words)}"
    for field in known - described:
        reply = server.request("POST", path, {"model": MODEL, **BODIES[path], field: ["x"]})
        assert reply.status == 400, f"{field} is taken, and not in the document"
        assert reply.json()["error"]["message"].startswith(f"{field} is not supported: "), reply.body


def test_schemathesis(tandem_server):
    """Requests made of the document, good and bad: no server error, no status or body that the document does not have."""
    schemathesis = pytest.importorskip("schemathesis")
    import hypothesis

    # Small answers: what is long is not what is looked for.
    server = tandem_server("serve", "--max-context-tokens", "64")
    schema = schemathesis.openapi.from_dict(json.loads(server.request("GET", "/openapi.json").body))
    schema.config.update(base_url=server.url)
    checks = [schemathesis.checks.not_a_server_error]
    from schemathesis.specs.openapi import checks as openapi_checks

    checks += [openapi_checks.status_code_conformance, openapi_checks.content_type_conformance, openapi_checks.response_schema_conformance]
    count = 0
    for result in schema.get_all_operations():
        operation = result.ok()

        @hypothesis.settings(max_examples=25, deadline=None, database=None, derandomize=True,
                             suppress_health_check=list(hypothesis.HealthCheck))
        @hypothesis.given(case=operation.as_strategy())
        def run(case):
            nonlocal count
            count += 1
            response = case.call()
            case.validate_response(response, checks=checks)

        run()
    assert count > 100
    assert server.request("GET", "/health").status == 200
