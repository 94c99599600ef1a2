"""Where weights lie changes no bit: huge pages or not, one memory node or two (emulated: everything but the binding happens)."""

import json
import os
import subprocess

import pytest

from .test_bit_equality import BINARY, MODELS, generate, outcome, prompts  # noqa: F401: prompts is a fixture

TWO_NODES = {"HWLOC_SYNTHETIC": "numa:2 core:1 pu:1"}


def run(*flags, environment=None, model="arith"):
    command = [BINARY, "generate", "--model", str(MODELS[model]), "--prompt=1+1=", "--json", "--deterministic", "--max-tokens", "8",
               "--max-context-tokens", "128", "--kv-cache-tokens", "256", "--threads", "2", *flags]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, env={**os.environ, **(environment or {})})


@pytest.mark.parametrize("model", ("deepseek_v3", "deepseek_v4", "granitemoe", "qwen3_moe"))
def test_two_nodes_give_the_bits_of_one(model, prompts, tmp_path, monkeypatch):  # noqa: F811
    one = generate(model, prompts, "--threads", "2")
    monkeypatch.setenv("HWLOC_SYNTHETIC", TWO_NODES["HWLOC_SYNTHETIC"])
    assert outcome(generate(model, prompts, "--threads", "2")) == outcome(one)
    split = ("--ffn", "2", "--transport", "inproc", "--threads", "2")
    assert outcome(generate(model, prompts, *split)) == outcome(one)
    for start in (1, 2):  # into memory of the process, where pages can be bound, rather than mapped
        assert outcome(generate(model, prompts, "--threads", "2", "--weights-cache", str(tmp_path))) == outcome(one), start


def test_the_log_says_which_node_has_what(tmp_path):
    plain = run("--numa", "off", environment=TWO_NODES)
    assert plain.returncode == 0 and "NUMA" not in plain.stderr
    done = run(environment=TWO_NODES)
    assert done.returncode == 0, done.stderr
    assert "NUMA: threads: 1 on node 0 with 1 CPUs, 1 on node 1 with 1 CPUs" in done.stderr
    [line] = [line for line in done.stderr.splitlines() if "NUMA: weights by node: " in line]
    assert "node 0 " in line and "node 1 " in line and line.endswith("(emulated: not bound)")
    assert json.loads(done.stdout)["logits_hash"] == json.loads(plain.stdout)["logits_hash"]
    cached = [run("--weights-cache", str(tmp_path), environment=TWO_NODES) for _ in range(2)]
    assert " copied from " in cached[1].stderr and "NUMA: weights by node: " in cached[1].stderr
    assert {json.loads(each.stdout)["logits_hash"] for each in cached} == {json.loads(plain.stdout)["logits_hash"]}


def test_huge_pages_are_given_or_refused_by_name(tmp_path):
    off, automatic, on = (run("--huge-pages", mode) for mode in ("off", "auto", "on"))
    assert off.returncode == automatic.returncode == 0
    assert json.loads(off.stdout)["logits_hash"] == json.loads(automatic.stdout)["logits_hash"]
    if on.returncode != 0:
        assert "engine.huge_pages: on: the kernel gave none" in on.stderr and "vm.nr_hugepages" in on.stderr
        return
    assert json.loads(on.stdout)["logits_hash"] == json.loads(off.stdout)["logits_hash"]
    cached = [run("--huge-pages", "on", "--weights-cache", str(tmp_path)) for _ in range(2)]
    assert " copied from " in cached[1].stderr


def test_doctor_says_what_a_trial_got():
    done = subprocess.run([BINARY, "doctor", "--json", "--port", "0"], capture_output=True, text=True, timeout=60)
    findings = json.dumps(json.loads(done.stdout))
    assert "of a trial; transparent: " in findings and "reserved pages are free" in findings and "NUMA" in findings
