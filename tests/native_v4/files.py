"""Native DeepSeek-V4 checkpoints for tests, and ways to spoil them: a folder is read, changed and written as bytes."""

import json
import pathlib
import struct
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tools"))

import native_v4  # noqa: E402
import native_v4_parity  # noqa: E402,F401


ELEMENT_BYTES = {"BF16": 2, "F32": 4, "I64": 8, "I8": 1, "F8_E4M3": 1, "F8_E8M0": 1}


class Files:
    """config.json and the tensors, as (dtype, shape, bytes), of a checkpoint with one shard."""

    def __init__(self, folder):
        self.folder = folder
        self.path = folder / "model-00001-of-00001.safetensors"
        data = self.path.read_bytes()
        length = struct.unpack("<Q", data[:8])[0]
        self.config = json.loads((folder / "config.json").read_text())
        self.tensors = {}
        for name, entry in json.loads(data[8:8 + length]).items():
            begin, end = entry["data_offsets"]
            self.tensors[name] = (entry["dtype"], entry["shape"], data[8 + length + begin:8 + length + end])

    def write(self, folder):
        folder.mkdir(parents=True, exist_ok=True)
        header, offset = {}, 0
        for name, (dtype, shape, data) in self.tensors.items():
            header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [offset, offset + len(data)]}
            offset += len(data)
        text = json.dumps(header).encode()
        with (folder / self.path.name).open("wb") as file:
            file.write(struct.pack("<Q", len(text)) + text)
            for _, _, data in self.tensors.values():
                file.write(data)
        index = {"metadata": {"total_size": offset}, "weight_map": dict.fromkeys(self.tensors, self.path.name)}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
        (folder / "config.json").write_text(json.dumps(self.config))


def make(folder, **options):
    native_v4.write(folder, **options)
    return folder
