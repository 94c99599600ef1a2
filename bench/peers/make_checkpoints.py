#!/usr/bin/env python3
"""Writes M1, M2 and M3 (shapes.py) with random weights in Hugging Face layout: bf16 safetensors, config and tokenizer.

    bench/peers/make_checkpoints.py FOLDER [M1 M2 M3]      # 2.7, 6.3 and 5.2 GB; needs numpy

Every tensor has a seed of its own (its name and SEED), so the bytes do not depend on the order or on what else is written. A model
folder that is complete is left as it is: config.json is written last."""

import json
import math
import pathlib
import sys
import zlib

import numpy as np

from shapes import MODELS, files

SEED = 20261130


def bf16(values):
    """float32 -> bf16 bits, to nearest even. Nothing here is NaN or infinite."""
    bits = values.view(np.uint32)
    bits += ((bits >> 16) & 1) + 0x7FFF
    return (bits >> 16).astype(np.uint16)


def tensor(name, shape):
    if len(shape) == 1:  # a norm
        return np.full(shape, 0x3F80, np.uint16)
    random = np.random.Generator(np.random.SFC64([SEED, zlib.crc32(name.encode())]))
    values = random.standard_normal(math.prod(shape), np.float32)
    # Activations keep their scale through a product of this spread; embeddings as models are initialised.
    values *= np.float32(0.02 if name == "model.embed_tokens.weight" else shape[-1] ** -0.5)
    return bf16(values)


def write_safetensors(path, shapes):
    header, offset = {"__metadata__": {"format": "pt"}}, 0
    for name, shape in shapes.items():
        size = 2 * math.prod(shape)
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # tensors begin at a multiple of 8
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name, shape in shapes.items():
            file.write(tensor(name, shape).tobytes())
    return offset


def byte_letters():
    """The letter that byte-level BPE writes for each byte: itself where it prints, else the next one from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    spare = iter(range(0x100, 0x200))
    return [chr(byte if byte in printable else next(spare)) for byte in range(256)]


def write_tokenizer(folder, vocab_size):
    """Every id has a text: one special token, the bytes, then pairs of bytes, each made by one merge. All engines read it."""
    letters, special = byte_letters(), "<|endoftext|>"
    assert vocab_size <= 1 + 256 + 256 * 256
    pairs = [(a, b) for a in letters for b in letters][: vocab_size - 257]
    vocab = {token: i for i, token in enumerate([special, *letters, *(a + b for a, b in pairs)])}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    document = {"version": "1.0", "truncation": None, "padding": None,
                "added_tokens": [{"id": 0, "content": special, "single_word": False, "lstrip": False, "rstrip": False,
                                  "normalized": False, "special": True}],
                "normalizer": None, "pre_tokenizer": byte_level, "post_processor": None, "decoder": byte_level,
                "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                          "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False,
                          "ignore_merges": False, "vocab": vocab, "merges": [f"{a} {b}" for a, b in pairs]}}
    (folder / "tokenizer.json").write_text(json.dumps(document, ensure_ascii=False), encoding="utf-8")
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": special, "bos_token": special,
                "pad_token": special, "model_max_length": 4096,
                "chat_template": "{% for m in messages %}{{ m['content'] }}{% endfor %}"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=1))


def write_model(folder, config):
    folder.mkdir(parents=True, exist_ok=True)
    parts = list(files(config))
    index, total = {}, 0
    for number, shapes in enumerate(parts, 1):
        name = f"model-{number:05d}-of-{len(parts):05d}.safetensors"
        total += write_safetensors(folder / name, shapes)
        index |= dict.fromkeys(shapes, name)
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {"total_size": total}, "weight_map": index}))
    write_tokenizer(folder, config["vocab_size"])
    ids = {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0}
    (folder / "generation_config.json").write_text(json.dumps(ids))
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    return total


def main():
    names = sys.argv[2:] or list(MODELS)
    if len(sys.argv) < 2 or any(name not in MODELS for name in names):
        raise SystemExit(f"usage: make_checkpoints.py FOLDER [{' '.join(MODELS)}]")
    for name in names:
        folder = pathlib.Path(sys.argv[1]) / name
        if (folder / "config.json").exists():
            print(f"{name}: {folder} is there already")
            continue
        print(f"{name}: {write_model(folder, MODELS[name]) / 1e9:.2f} GB in {folder}", flush=True)


if __name__ == "__main__":
    main()
