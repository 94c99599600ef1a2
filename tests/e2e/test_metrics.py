"""Names, types and labels of /metrics are an interface: docs/metrics.md has them all, and the dashboard asks for no others."""

import json
import re
import urllib.request

import pytest

from tests.conftest import ARITH, ROOT, FfnRank, TandemServer
from tests.e2e.conftest import MODEL, make_client, user

SUFFIX = re.compile(r"_(bucket|sum|count)$")


def documented():
    """name -> (type, labels, what)"""
    rows = re.findall(r"^\| `(tandem_\w+)` \| (\w+) \| ([\w, ]*) \| (\w*) \| (.*) \|$", (ROOT / "docs/metrics.md").read_text(), re.M)
    return {name: (kind, {label for label in labels.split(", ") if label}, what) for name, kind, labels, _, what in rows}


def exposed(server):
    return families(server.request("GET", "/metrics").body)


def families(text):
    types, helps = dict(re.findall(r"^# TYPE (\w+) (\w+)$", text, re.M)), dict(re.findall(r"^# HELP (\w+) (.*)$", text, re.M))
    labels = {name: set() for name in types}
    for name, given in re.findall(r"^(\w+)(?:\{(.*)\})? \S+$", text, re.M):
        family = name if name in types else SUFFIX.sub("", name)
        labels[family] |= set(re.findall(r'(\w+)="', given)) - {"le"}
    return {name: (types[name], labels[name], helps[name]) for name in types}


@pytest.fixture(scope="module")
def front(tmp_path_factory):
    """Two ranks behind a front: the most that a server can show."""
    server = TandemServer(["up", "--attention", "2", "--ffn", "1", "--transport", "shm", "--model", str(ARITH), "--port", "0"],
                          tmp_path_factory.mktemp("front")).wait_ready()
    make_client(server).chat.completions.create(model=MODEL, messages=user("7"), max_tokens=5)
    yield server
    assert server.stop() == 0


def test_the_page_is_complete(front, client, server):
    client.chat.completions.create(model=MODEL, messages=user("7"), max_tokens=5)
    page = {name: row for name, row in documented().items() if not name.startswith("tandem_ffn_rank_")}
    assert exposed(front) == page
    alone = exposed(server)
    assert alone == {name: row for name, row in page.items() if not name.startswith("tandem_attention_rank_")}


def test_an_ffn_rank_has_a_page_of_its_own(tmp_path):
    ffn = FfnRank(f"shm://{tmp_path}/ffn.sock", tmp_path, "--metrics-listen", "127.0.0.1:0")
    try:
        attention = TandemServer(["attention", "--model", str(ARITH), "--ffn", ffn.address, "--port", "0"], tmp_path).wait_ready()
        try:
            make_client(attention).chat.completions.create(model=MODEL, messages=user("7"), max_tokens=5)
            text = urllib.request.urlopen(ffn.facts["metrics"]).read().decode()
        finally:
            attention.stop()
    finally:
        ffn.close()
    assert families(text) == {name: row for name, row in documented().items() if name.startswith("tandem_ffn_rank_")}
    values = dict(re.findall(r"^(\w+) (\S+)$", text, re.M))
    assert float(values["tandem_ffn_rank_clients_per_call_sum"]) >= float(values["tandem_ffn_rank_calls_total"]) > 0
    assert float(values["tandem_ffn_rank_read_bytes_total"]) > 0
    assert re.search(r'^tandem_ffn_rank_client_rows_total\{client="attention rank 0 \(\S+\)",session="0x[0-9a-f]+"\} [1-9]', text, re.M), text


def test_the_dashboard_asks_for_what_there_is():
    dashboard = json.loads((ROOT / "docs/grafana-dashboard.json").read_text())
    page = documented()
    asked = {}
    for panel in dashboard["panels"]:
        for target in panel["targets"]:
            for name in re.findall(r"tandem_\w+", target["expr"]):
                asked[SUFFIX.sub("", name) if name not in page else name] = target["expr"]
    assert len(asked) > 25 and set(asked) <= set(page), set(asked) - set(page)
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])
