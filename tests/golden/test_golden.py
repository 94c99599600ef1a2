"""The golden files are what their description makes, and the documents show these bytes. What Tandem makes of them: afd_golden_test."""

import pathlib
import re

from . import frames, wire, write

FOLDER = pathlib.Path(__file__).resolve().parent
EXAMPLES = FOLDER.parents[1] / "docs" / "protocol-examples.md"


def test_files_never_change():
    wanted = write.files()
    assert {path.name for path in FOLDER.glob("*.txt")} == set(wanted)
    different = [name for name, text in wanted.items() if (FOLDER / name).read_text() != text]
    assert not different, "golden frames changed; that is a new major version of the protocol"


def test_checksums_are_the_ones_the_page_names():
    assert wire.crc32c(b"123456789") == 0xE3069283  # the check value of CRC-32C
    assert wire.tcp_head(4)[:12] == b"TNDT" + bytes([4, 0, 0, 0, 0, 0, 0, 0])


def test_files_are_frames():
    """Without the descriptions: what is said in a file is what its bytes say."""
    for path in FOLDER.glob("*.txt"):
        text = path.read_text()
        data = bytes(byte for _, byte in sorted(write.bytes_of(text).items()))
        said = dict(re.findall(r"^header (\w+): (.*)$", text, re.MULTILINE))
        if said:
            assert len(data) == int(said["total_bytes"]), path.name
            assert int.from_bytes(data[60:64], "little") == int(said["header_crc"], 16), path.name


def examples():
    """(file, block) of every example of the page."""
    return re.findall(r"`tests/golden/(\w+\.txt)`[^`]*```\n(.*?)```", EXAMPLES.read_text(), re.DOTALL)


def test_the_page_shows_golden_bytes():
    shown = examples()
    assert len(shown) >= 12
    for name, block in shown:
        golden, bytes_shown = write.bytes_of((FOLDER / name).read_text()), write.bytes_of(block)
        assert len(bytes_shown) >= 16, name
        wrong = {offset: byte for offset, byte in bytes_shown.items() if golden.get(offset) != byte}
        assert not wrong, f"{name}: {wrong}"
        # Left-out lines are marked; without a mark the whole frame is there.
        assert "..." in block or len(bytes_shown) == len(golden), name


def test_every_kind_is_shown():
    shown = {name.removesuffix(".txt") for name, _ in examples()}
    kinds = {frames.GOLDEN[name]["frame"].kind for name in shown if name in frames.GOLDEN}
    assert kinds >= set(wire.KINDS) - {"canary", "drain", "goodbye"}
    assert shown >= {"tcp_hello", "tcp_data", "tcp_credit", "tcp_heartbeat", "tcp_bye"}
