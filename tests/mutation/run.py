#!/usr/bin/env python3
"""Applies each mutant of mutants.py to a copy of the tree, builds the test that must notice, and demands that it fails.

    tests/mutation/run.py                   every mutant; status 0: each is killed, and the tree as it stands passes
    tests/mutation/run.py --only scale      those whose name contains "scale"
    tests/mutation/run.py --list            the mutants, without running them

The copy lies in a temporary folder (--folder keeps it: the next run builds what has changed only). Compilers go through
ccache where it is there. A mutant that does not apply, or does not compile, is an error that names it, not a kill.
"""

import argparse
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))

from tests.mutation.mutants import MUTANTS  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[2]
COPIED = ("CMakeLists.txt", "cmake", "src", "client", "bench", "models", "tests")
# A mutant may hang, where the test waits for what never comes; the slowest named test takes seconds.
TEST_LIMIT_S = 120


class MutationError(Exception):
    """Says what cannot be judged."""


def apply(mutant, text):
    count = text.count(mutant.old)
    if count != 1:
        raise MutationError(f"'{mutant.name}' does not apply any more: its line stands {count} times in {mutant.file}; mend tests/mutation/mutants.py")
    return text.replace(mutant.old, mutant.new)


def write_if_changed(path, content):
    """An unchanged file keeps its time, and is not built again."""
    if not path.exists() or path.read_bytes() != content:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def copy_tree(folder):
    wanted = set()
    for name in COPIED:
        source = ROOT / name
        for path in [source] if source.is_file() else source.rglob("*"):
            if path.is_file() and "__pycache__" not in path.parts:
                relative = path.relative_to(ROOT)
                wanted.add(relative)
                write_if_changed(folder / relative, path.read_bytes())
    for name in COPIED:
        for path in (folder / name).rglob("*"):
            if path.is_file() and path.relative_to(folder) not in wanted:
                path.unlink()


def run(command, folder, limit=None):
    """Status and output; None: it ran past the limit and was ended with its children."""
    environment = {**os.environ, "CCACHE_BASEDIR": str(folder), "CCACHE_NOHASHDIR": "1"}
    process = subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                               errors="replace", start_new_session=True)
    try:
        output, _ = process.communicate(timeout=limit)
        return process.returncode, output
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        output, _ = process.communicate()
        return None, output


def build(folder, targets, jobs):
    if not (folder / "build" / "build.ninja").exists():
        status, output = run(["cmake", "-S", ".", "-B", "build", "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release"], folder)
        if status != 0:
            raise MutationError(f"cmake failed:\n{output[-2000:]}")
    return run(["ninja", "-C", "build", f"-j{jobs}", *targets], folder)


def run_test(folder, mutant):
    """passed, failed, crashed or hung; and what it said."""
    status, output = run([f"build/{mutant.target}", f"--gtest_filter={mutant.test}", "--gtest_brief=0"], folder, TEST_LIMIT_S)
    if status is None:
        return "hung", output
    if status == 0:
        if "[  PASSED  ] 0 tests" in output or "[==========] Running 0 tests" in output:
            raise MutationError(f"'{mutant.name}': {mutant.target} has no test {mutant.test}")
        return "passed", output
    return ("failed" if "[  FAILED  ]" in output else "crashed"), output


def judge(folder, mutant, jobs):
    path = folder / mutant.file
    original = path.read_text()
    path.write_text(apply(mutant, original))
    try:
        status, output = build(folder, [mutant.target], jobs)
        if status != 0:
            raise MutationError(f"'{mutant.name}' does not compile:\n{output[-1500:]}")
        return run_test(folder, mutant)[0]
    finally:
        path.write_text(original)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="mutants whose name contains this")
    parser.add_argument("--folder", help="where the copy lies; kept")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--list", action="store_true")
    arguments = parser.parse_args()
    chosen = [mutant for mutant in MUTANTS if arguments.only in mutant.name]
    if not chosen:
        print(f"run.py: no mutant's name contains '{arguments.only}'", file=sys.stderr)
        return 2
    if arguments.list:
        for mutant in chosen:
            print(f"{mutant.name}: {mutant.file}; {mutant.target} {mutant.test}")
        return 0
    folder = pathlib.Path(arguments.folder or tempfile.mkdtemp(prefix="tandem-mutation-")).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    try:
        return run_all(folder, chosen, arguments.jobs)
    finally:
        if not arguments.folder:
            shutil.rmtree(folder, ignore_errors=True)


def run_all(folder, chosen, jobs):
    copy_tree(folder)
    errors = []
    for mutant in chosen:  # before the long part
        try:
            apply(mutant, (folder / mutant.file).read_text())
        except (MutationError, OSError) as error:
            errors.append(str(error))
    if errors:
        print("\n".join(errors), file=sys.stderr)
        return 1
    begin = time.monotonic()
    print(f"building the tree as it stands in {folder}", flush=True)
    status, output = build(folder, sorted({mutant.target for mutant in chosen}), jobs)
    if status != 0:
        print(f"the tree as it stands does not build:\n{output[-3000:]}", file=sys.stderr)
        return 1
    for mutant in chosen:
        state, output = run_test(folder, mutant)
        if state != "passed":
            print(f"without a mutant, {mutant.target} {mutant.test} {state}:\n{output[-3000:]}", file=sys.stderr)
            return 1
    print(f"every named test passes ({time.monotonic() - begin:.0f} s); {len(chosen)} mutants", flush=True)
    survivors = 0
    for number, mutant in enumerate(chosen, 1):
        started = time.monotonic()
        try:
            state = judge(folder, mutant, jobs)
        except MutationError as error:
            print(f"ERROR     {error}", flush=True)
            survivors += 1
            continue
        killed = state != "passed"
        survivors += not killed
        left = (time.monotonic() - begin) / number * (len(chosen) - number)
        print(f"{'killed' if killed else 'SURVIVED':<9} {mutant.name}  [{mutant.target} {mutant.test}: {state}, "
              f"{time.monotonic() - started:.0f} s, about {left:.0f} s left]", flush=True)
    print(f"{len(chosen) - survivors} of {len(chosen)} mutants killed in {time.monotonic() - begin:.0f} s")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
