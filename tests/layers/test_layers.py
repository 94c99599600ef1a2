"""An include may only point down the layer list (docs/architecture.md)."""

import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parents[2]
# Highest first.
LAYERS = [
    "cli", "serving", "attention", "ffn", "afd", "model", "program", "moe",
    "checkpoint", "grammar", "tokenizer", "kernels", "transport", "base",
]
INCLUDE = re.compile(r'^\s*#\s*include\s+"([a-z_]+)/', re.MULTILINE)
# Third-party headers that are expensive to compile or that no public header may show.
HEAVY = re.compile(r"#\s*include\s+[<\"](nlohmann/json.hpp|boost/|spdlog/|CLI/|yaml-cpp/|prometheus/|openssl/)")


def sources():
    for path in sorted((ROOT / "src").rglob("*")):
        if path.suffix in (".h", ".cc"):
            yield path


def test_every_folder_is_a_layer():
    assert sorted(p.name for p in (ROOT / "src").iterdir() if p.is_dir()) == sorted(LAYERS)


def test_includes_point_down():
    wrong = []
    for path in sources():
        folder = path.relative_to(ROOT / "src").parts[0]
        for included in INCLUDE.findall(path.read_text()):
            if included in LAYERS and LAYERS.index(included) < LAYERS.index(folder):
                wrong.append(f"{path.relative_to(ROOT)} includes {included}/")
            if included == "bench" and folder != "cli":
                wrong.append(f"{path.relative_to(ROOT)} includes bench/")
    assert not wrong, "\n".join(wrong)


def test_heavy_third_party_headers_stay_inside_a_folder():
    """A header that includes one is private: no other folder includes it."""
    heavy = {
        path.relative_to(ROOT / "src").as_posix()
        for path in sources()
        if path.suffix == ".h" and HEAVY.search(path.read_text())
    }
    wrong = []
    for path in sources():
        folder = path.relative_to(ROOT / "src").parts[0]
        for header in re.findall(r'#\s*include\s+"([^"]+)"', path.read_text()):
            if header in heavy and not header.startswith(folder + "/"):
                wrong.append(f"{path.relative_to(ROOT)} includes {header}")
    assert not wrong, "\n".join(wrong)


def test_headers_open_with_a_contract():
    wrong = [
        str(path.relative_to(ROOT))
        for path in sources()
        if path.suffix == ".h" and not path.read_text().startswith("//")
    ]
    assert not wrong, "\n".join(wrong)


def test_files_stay_small():
    limit = 500
    wrong = []
    for path in sources():
        lines = path.read_text().count("\n")
        if lines > limit and "table" not in path.name:
            wrong.append(f"{path.relative_to(ROOT)}: {lines} lines")
    assert not wrong, "\n".join(wrong)
