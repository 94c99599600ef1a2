"""What DSpark is asked for and cannot do is refused by name; what it is shows in `inspect`."""

import json
import shutil

import pytest

from tests.native_v4.test_native_files import run


@pytest.fixture(scope="module")
def prompt(tmp_path_factory):
    path = tmp_path_factory.mktemp("prompts") / "prompts.jsonl"
    path.write_text(json.dumps({"prompt_ids": list(range(2, 30))}) + "\n")
    return path


def generate(model, prompt, *flags, statuses=(0,)):
    return run("generate", "--model", model, "--prompts-file", prompt, "--json", "--ignore-eos", "--max-tokens", "20", "--log-level", "info", *flags,
               statuses=statuses)


def test_more_drafts_than_a_block_has_are_refused(with_drafter, prompt):
    refused = generate(with_drafter("dspark"), prompt, "--num-speculative-tokens", "6", statuses=(1, 2)).stderr
    assert "engine.num_speculative_tokens: 6" in refused and "blocks of 5 (dspark_block_size)" in refused
    answered = json.loads(generate(with_drafter("dspark"), prompt, "--num-speculative-tokens", "2", "--speculative", "on").stdout)
    assert answered["execution"]["drafted"] > 0


def test_blocks_that_are_too_long_are_done_without_or_refused(with_drafter, prompt, tmp_path):
    folder = tmp_path / "long"
    shutil.copytree(with_drafter("dspark"), folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "dspark_block_size": 17}))
    refused = generate(folder, prompt, "--speculative", "on", statuses=(1, 2)).stderr
    assert "engine.speculative: on: blocks of 17 drafts (dspark_block_size): up to 16 are implemented; use auto or off" in refused
    without = generate(folder, prompt)
    assert json.loads(without.stdout)["execution"]["drafted"] == 0
    assert "no drafts: blocks of 17 drafts" in without.stderr


def test_inspect_counts_the_drafter_by_itself(with_drafter):
    plain, dspark = (json.loads(run("inspect", with_drafter(drafter), "--json").stdout) for drafter in ("mtp", "dspark"))
    assert plain["parameters"] == dspark["parameters"]
    assert dspark["drafter"]["kind"] == "dspark" and dspark["drafter"]["stages"] == 3 and dspark["drafter"]["block_size"] == 5
    assert dspark["drafter"]["parameters"] > 2 * plain["drafter"]["parameters"]
    assert "dspark: 3 stages, blocks of 5 tokens" in run("inspect", with_drafter("dspark")).stdout
