"""dense.py: sizes, combined rates, and a whole run against stand-ins for both programs."""

import json
import pathlib
import stat

import dense
import pytest


def script(path, text):
    path.write_text("#!/bin/sh\n" + text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def test_a_layers_experts_get_the_rows_that_were_asked_for():
    (_, projection, sized_by_tandem), (_, experts, products) = dense.cases((2048, 768, 128, 8), 64)
    assert projection[-1] == "64" and sized_by_tandem is None
    assert experts[-1] == "1024"  # 1024 rows of top 8 are 64 for each of 128 experts
    assert products == [(64, 1536, 2048), (64, 2048, 768)]


def test_combined_rates_weigh_by_work():
    assert dense.combined([(1, 2, 1), (1, 1, 1)], [10.0, 10.0]) == pytest.approx(10.0)
    assert dense.combined([(1, 2, 1), (1, 1, 1)], [20.0, 5.0]) == pytest.approx(3 / (2 / 20 + 1 / 5))


def test_size_of_a_case():
    assert dense.size_of({"name": "granite-1b output bf16 1024x2048 rows 64"}) == (1024, 2048)


@pytest.fixture
def tandem(tmp_path):
    def case(name, rate):
        return json.dumps({"cases": [{"name": name, "gigaflops": rate, "roof": "bf16 dot", "roof_giga_per_second": 500}]})
    return script(tmp_path / "tandem", f"""case "$*" in
*--list-shapes*) echo 'shape model hidden interm experts top_k'; echo 'tiny T 64 32 4 2 3 100' ;;
*moe*) echo '{case("moe tiny bf16 rows 16", 400)}' ;;
*output*) echo '{case("tiny output bf16 64x96 rows 8", 450)}' ;;
*) exit 3 ;;
esac
""")


def run(tandem, tmp_path, onednn, *more):
    dense.main(["--tandem", tandem, "--onednn-bench", script(tmp_path / "onednn", onednn), "--rows", "8", "--repetitions", "2",
                "--output", str(tmp_path / "out"), *more])
    return json.loads(pathlib.Path(tmp_path / "out.json").read_text())["table"]


def test_a_run_compares_the_same_sizes(tandem, tmp_path):
    seen = tmp_path / "seen"
    table = run(tandem, tmp_path, f"""echo ready
while read line; do echo "$line" >> {seen}; echo '{{"gigaflops": 300.0}}'; done
""", "--shapes", "tiny")
    assert seen.read_text().splitlines() == ["bf16 8 64 96", "bf16 8 64 64", "bf16 8 64 32"] * 2
    assert [(row["what"], row["ratio"], row["share"]) for row in table] == [("projection", 1.5, 0.9), ("experts", pytest.approx(400 / 300), 0.8)]


def test_a_failure_and_an_unknown_shape_are_named(tandem, tmp_path):
    with pytest.raises(SystemExit, match="status 2: no such instruction"):
        run(tandem, tmp_path, "echo 'no such instruction' >&2; exit 2\n", "--shapes", "tiny")
    with pytest.raises(SystemExit, match="there is no 'huge'"):
        run(tandem, tmp_path, "exit 0\n", "--shapes", "huge")
