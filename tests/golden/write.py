"""Writes the files of the golden frames. Files that are there are never changed: a frame whose bytes would differ is an error, and a new
major version of the protocol.

python3 -m tests.golden.write          writes what is missing
python3 -m tests.golden.write --check  says what differs
"""

import pathlib
import struct
import sys

from . import frames, wire

FOLDER = pathlib.Path(__file__).resolve().parent
HEX_FIELDS = {"session": "{:#018x}", "incarnation": "{:#010x}", "header_crc": "{:#010x}"}
NAMES = {number: name for name, number in wire.KINDS.items()}


def number(value):
    """As printf %g writes it, whole numbers as such: the replay writes the same."""
    return f"{value:d}" if isinstance(value, int) else f"{value:g}".replace("-nan", "nan")


def reading(frame):
    """What stands in each 16 bytes of header and descriptors, then where payloads begin: {offset: words}."""
    h = frame.header
    words = {0: f"magic, {h['major']}.{h['minor']}, {h['header_bytes']} bytes, kind {h['kind']} {frame.kind}, flags {h['flags']}, {h['total_bytes']} bytes",
             16: f"session, incarnation, step {h['step']}",
             32: f"layer {h['layer']}, lane {h['lane']}, tile {h['tile']} of {h['tiles']}, epoch {h['map_epoch']}, rows {h['rows']}",
             48: f"capacity {h['capacity']}, attempt {h['attempt']}, class {h['row_class']}, {h['descriptors']} descriptors, program {h['program']}, checksum"}
    for index, (payload, d) in enumerate(zip(frame.payloads, frame.table)):
        at = 64 + 32 * index
        words[at] = f"{payload.role}, {payload.dtype}, {d['rows']} x {d['cols']}, {d['stride']} bytes a row"
        words[at + 16] = f"at {d['offset']}, {d['bytes']} bytes" + (", must be understood" if d["flags"] & 1 else "")
        if not d["bytes"] or d["offset"] % 16 != 0:
            continue
        if isinstance(payload.values, str):
            words[d["offset"]] = f"{payload.role}: {payload.values.split(chr(10))[0][:60]}"
        else:
            words[d["offset"]] = f"{payload.role}: {' '.join(number(value) for value in payload.values[:8])}"
    return words


def hex_lines(data, words):
    lines = []
    for at in range(0, len(data), 16):
        text = f"{at:03x}  {data[at:at + 16].hex(' '):<47}"
        lines.append(f"{text}  {words[at]}" if at in words else text.rstrip())
    return lines


def verdict(pair):
    return "served" if pair is None else f"refused {pair[0]}: {pair[1]}"


def frame_file(name, golden):
    frame = golden["frame"]
    lines = [f"about: {golden['about']}"]
    if golden["settings"] is not None:
        agreed = {**frames.SETTINGS_DEFAULT, **golden["settings"]}
        lines.append("settings: " + " ".join(f"{key}={value}" for key, value in agreed.items()))
    lines.append(f"frame: {'accepted' if golden['refused'] is None else verdict(golden['refused'])}")
    if golden["settings"] is not None:
        lines.append(f"request: {verdict(golden['request'])}")
    lines.append(f"encoder: {'writes these bytes' if golden['encode'] else 'writes no such frame'}")
    if golden["refused"] is None:
        for field, _ in wire.HEADER[1:]:
            value = frame.header[field]
            lines.append(f"header {field}: " + (NAMES[value] if field == "kind" else HEX_FIELDS.get(field, "{}").format(value)))
        lines.append(f"header header_crc: {frame.header['header_crc']:#010x}")
        for payload, d in zip(frame.payloads, frame.table):
            lines.append(f"payload: {payload.role} {payload.dtype} rows={d['rows']} cols={d['cols']} stride={d['stride']} block={d['block']} "
                         f"offset={d['offset']} bytes={d['bytes']} flags={d['flags']}")
            if isinstance(payload.values, str):
                lines += [f"text: {line}" for line in payload.values.splitlines()]
            elif payload.values:
                lines.append("values: " + " ".join(number(value) for value in payload.values))
    return "\n".join(lines + ["bytes:"] + hex_lines(frame.bytes, reading(frame) if golden["refused"] is None else {})) + "\n"


def carrier_file(about, heads, body):
    lines, data, words = [f"about: {about}"], b"", {}
    for kind, channel, value in heads:
        lines.append(f"head: {kind} channel={channel} value={value}")
        words[len(data)] = f"magic, kind {frames.TCP_KINDS[kind]} {kind}, channel {channel}, value {value}, checksum"
        data += wire.tcp_head(frames.TCP_KINDS[kind], channel, value)
    if heads[0][0] == "hello":
        slots, slot_bytes, heartbeat, silence = struct.unpack_from("<I4xQQQ", body, 8)
        lines.append(f"hello: version=1 slots={slots} slot_bytes={slot_bytes} heartbeat_us={heartbeat} silence_us={silence} carrier=0 security=0")
        words.update({16: f"magic, version 1, {slots} slots, 0", 32: f"slots of {slot_bytes} bytes, a heartbeat every {heartbeat} us",
                      48: f"silent after {silence} us, carrier 0 (tcp), security 0", 64: "the host's token, of ucx only"})
    elif body:
        words[len(data)] = "the message"
    return "\n".join(lines + ["bytes:"] + hex_lines(data + body, words)) + "\n"


def files():
    wanted = {f"{name}.txt": frame_file(name, golden) for name, golden in frames.GOLDEN.items()}
    wanted |= {f"{name}.txt": carrier_file(*carrier) for name, carrier in frames.CARRIER.items()}
    return wanted


def bytes_of(text):
    """The bytes of a file, or of a block of the documents: {offset: byte} of every line that begins with an offset."""
    found = {}
    for line in text.splitlines():
        columns = line[:3 + 2 + 47].split()
        if len(columns) > 1 and len(columns[0]) == 3 and all(len(column) == 2 for column in columns[1:]):
            for index, column in enumerate(columns[1:]):
                found[int(columns[0], 16) + index] = int(column, 16)
    return found


def main():
    different = 0
    for name, text in files().items():
        path = FOLDER / name
        if not path.exists() and "--check" not in sys.argv:
            path.write_text(text)
            print(f"wrote {name}")
        elif not path.exists() or path.read_text() != text:
            print(f"{name} {'differs' if path.exists() else 'is missing'}")
            different += 1
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
