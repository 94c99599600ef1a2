#!/usr/bin/env python3
"""The checkpoints as GGUF files, for the engines that read those: by llama.cpp's own convert_hf_to_gguf.py and llama-quantize.

    bench/peers/gguf_files.py MODELS OUT --convert llama.cpp/convert_hf_to_gguf.py [--quantize PATH/llama-quantize]
        [--only M1,M3] [--types bf16,q8_0,q4_0]

Runs under a Python that has what the converter imports (torch, transformers, numpy, safetensors). Both engines read the same files, so one
conversion serves both. The types of --quantize are pure: every matrix that can be has that type, as Tandem's --weights quantises all."""

import argparse
import pathlib
import runpy
import subprocess
import sys


def convert(script, model, out):
    """The converter in a process of its own, told that the tokenizer splits text as GPT-2's does: it only knows published tokenizers."""
    done = subprocess.run([sys.executable, "-B", __file__, "--as-converter", str(script), str(model), "--outtype", "bf16",
                           "--outfile", str(out)], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{script} on {model}: status {done.returncode}: {done.stderr.strip()[-800:]}")


def as_converter(script, words):
    sys.path.insert(0, str(pathlib.Path(script).parent))
    sys.path.insert(1, str(pathlib.Path(script).parent / "gguf-py"))
    sys.argv = [script, *words]
    try:  # newer layouts keep the model classes in a package
        from conversion import base
        classes = [base.TextModel]
    except ImportError:
        classes = []
    for each in classes:
        each.get_vocab_base_pre = lambda _self, _tokenizer: "gpt-2"
    if classes:
        runpy.run_path(script, run_name="__main__")
        return
    names = runpy.run_path(script, run_name="converter")
    for name in ("TextModel", "Model"):
        if name in names:
            names[name].get_vocab_base_pre = lambda _self, _tokenizer: "gpt-2"
    names["main"]()


def main():
    if sys.argv[1:2] == ["--as-converter"]:
        return as_converter(sys.argv[2], sys.argv[3:])
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("models", type=pathlib.Path)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--convert", required=True, type=pathlib.Path)
    parser.add_argument("--quantize")
    parser.add_argument("--only", default="M1,M2,M3")
    parser.add_argument("--types", default="bf16")
    options = parser.parse_args()
    if not options.convert.exists():
        raise SystemExit(f"{options.convert} is not there; give the path of llama.cpp's convert_hf_to_gguf.py")
    types = options.types.split(",")
    if types != ["bf16"] and not options.quantize:
        raise SystemExit(f"--types {options.types} needs --quantize PATH of llama-quantize")
    options.out.mkdir(parents=True, exist_ok=True)
    for name in options.only.split(","):
        source = options.out / f"{name}-bf16.gguf"
        if not source.exists():
            convert(options.convert, options.models / name, source.with_suffix(".part"))
            source.with_suffix(".part").rename(source)
        print(source, flush=True)
        for kind in types:
            file = options.out / f"{name}-{kind}.gguf"
            if not file.exists():
                subprocess.run([options.quantize, "--pure", str(source), str(file), kind.upper()], check=True, stdout=subprocess.DEVNULL,
                               stderr=subprocess.DEVNULL)
                print(file, flush=True)
    return None


if __name__ == "__main__":
    main()
