"""DSpark's drafts: those of an independent reading of the files, block by block and as the engine uses them; refusals by name."""

import json

import numpy as np
import pytest

from tests.native_v4 import files
from tests.native_v4.test_native_files import run, spoil

LEAST_CONFIDENCE = 0.2  # kLeastDraftConfidence: a block ends where the chance that all of it is accepted is less
TOKENS = 24


@pytest.fixture(scope="module")
def dspark(with_drafter):
    return with_drafter("dspark")


@pytest.fixture(scope="module")
def drafter(dspark):
    return files.native_v4_parity.native_v4_dspark.Dspark(files.native_v4_parity.native_v4_reference.Reference(dspark))


@pytest.fixture(scope="module")
def answers(drafter):
    """Of each prompt its ids, the greedy answer, and the drafter's context behind all of it."""
    rng = np.random.default_rng(4)
    found = []
    for length in (1, 5, 15, 16, 17, 40):
        prompt = rng.integers(2, 320, length).tolist()
        ids = list(prompt)
        for _ in range(TOKENS):
            ids.append(int(drafter.model.logits(np.array(ids))[-1].argmax()))
        found.append((prompt, ids[length:], drafter.context(drafter.model.taps)))
    return found


def course(drafter, prompt, answer, context, most):
    """What an engine drafts and accepts on its way through an answer, one sequence by itself: the number of drafts, and of accepted ones at
    each place of a block."""
    drafted, accepted_at, said = 0, np.zeros(8, int), 1
    while said < TOKENS:
        wanted = min(most, TOKENS - said - 1)  # the step that verifies gives one token more than it accepts
        position = len(prompt) + said - 2
        draft = drafter.draft(context[:, :position + 1], position, answer[said - 1])
        drafts = draft.ids[:wanted][np.cumprod(draft.confidence[:wanted]) >= LEAST_CONFIDENCE]
        right = np.cumprod(drafts == answer[said:said + len(drafts)]).sum()
        drafted += len(drafts)
        accepted_at[:right] += 1
        said += 1 + right
    return drafted, accepted_at


@pytest.mark.parametrize("most", (5, 2))
def test_the_engine_drafts_and_accepts_what_the_reference_does(most, dspark, drafter, answers, tmp_path):
    path = tmp_path / "prompts.jsonl"
    path.write_text("".join(json.dumps({"prompt_ids": prompt}) + "\n" for prompt, _, _ in answers))
    document = json.loads(run("generate", "--model", dspark, "--prompts-file", path, "--json", "--ignore-eos", "--max-tokens", TOKENS,
                              "--compute-dtype", "float32", "--speculative", "on", "--num-speculative-tokens", most).stdout)
    assert [got["tokens"] for got in document["answers"]] == [answer for _, answer, _ in answers]
    courses = [course(drafter, *answer, most) for answer in answers]
    ran = document["execution"]
    assert ran["drafted"] == sum(drafted for drafted, _ in courses) > 50
    assert ran["accepted_at"] == sum(accepted for _, accepted in courses).tolist()
    assert ran["accepted_at"][1] > 0


def without(name):
    return lambda checkpoint: checkpoint.tensors.pop(name)


def of_shape(name, *shape):
    def change(checkpoint):
        dtype, _, data = checkpoint.tensors[name]
        checkpoint.tensors[name] = (dtype, list(shape), (data * 4)[:int(np.prod(shape)) * files.ELEMENT_BYTES[dtype]])
    return change


def configured(**keys):
    return lambda checkpoint: checkpoint.config.update(keys)


REFUSED = {
    **{name: (without(name), name) for name in (
        "mtp.0.main_proj.weight", "mtp.0.main_norm.weight", "mtp.2.norm.weight", "mtp.2.hc_head_fn", "mtp.2.hc_head_base", "mtp.2.hc_head_scale",
        "mtp.2.markov_head.markov_w1.weight", "mtp.2.markov_head.markov_w2.weight", "mtp.2.confidence_head.proj.weight",
        "mtp.1.attn.wq_a.weight", "mtp.1.ffn.gate.bias", "mtp.2.ffn.experts.7.w3.weight")},
    "main_proj for two layers": (of_shape("mtp.0.main_proj.weight", 128, 256), "mtp.0.main_proj.weight", "[128, 256]", "[128, 384]"),
    "main_proj's scale": (of_shape("mtp.0.main_proj.scale", 1, 2), "mtp.0.main_proj.scale", "[1, 2]"),
    "markov_w1 of another rank": (of_shape("mtp.2.markov_head.markov_w1.weight", 320, 64), "markov_w1.weight", "[320, 64]", "[320, 112]"),
    "markov_w2 turned": (of_shape("mtp.2.markov_head.markov_w2.weight", 112, 320), "markov_w2.weight", "[112, 320]", "[320, 112]"),
    "confidence without the token": (of_shape("mtp.2.confidence_head.proj.weight", 1, 128), "confidence_head.proj.weight", "[1, 128]", "[1, 240]"),
    "another rank": (configured(dspark_markov_rank=64), "markov_w1.weight", "[320, 112]", "[320, 64]"),
    "no rank": (configured(dspark_markov_rank=0), "dspark_markov_rank"),
    "a layer beyond the model": (configured(dspark_target_layer_ids=[3, 4, 5]), "dspark_target_layer_ids", "layer 5"),
    "no layers": (configured(dspark_target_layer_ids=[]), "dspark_target_layer_ids"),
    "two layers": (configured(dspark_target_layer_ids=[3, 4]), "mtp.0.main_proj.weight", "[128, 384]", "[128, 256]"),
    "noise beyond the vocabulary": (configured(dspark_noise_token_id=320), "dspark_noise_token_id"),
    "no block": (configured(dspark_block_size=0), "dspark_block_size"),
    "ratios for too few layers": (configured(compress_ratios=[0, 4, 128, 4]), "compress_ratios"),
    "ratios for the layers alone": (configured(compress_ratios=[0, 4, 128, 4, 0]), "compress_ratios"),
    "ratios for two stages": (configured(compress_ratios=[0, 4, 128, 4, 0, 0, 0], n_mtp_layers=3), "compress_ratios"),
    "ratios for four stages": (configured(compress_ratios=[0, 4, 128, 4, 0, 0, 0, 0, 0], n_mtp_layers=3), "compress_ratios"),
    "a stage with entries": (configured(compress_ratios=[0, 4, 128, 4, 0, 0, 4, 0]), "compress_ratios", "4", "draft stage"),
    "tensors of a third stage": (configured(compress_ratios=[0, 4, 128, 4, 0, 0, 0]), "mtp.1."),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_wrong_is_refused_by_name(case, dspark, tmp_path):
    change, *named = REFUSED[case]
    message = spoil(dspark, tmp_path, change, "--speculative", "on")
    assert all(text in message for text in named), message


@pytest.mark.parametrize("placement", ("serve", "shm"))
def test_a_server_counts_its_drafts_and_answers_as_without(placement, dspark, tandem_server):
    answers = []
    for drafts in ("off", "on"):
        server = tandem_server(placement, "--speculative", drafts, model=dspark)
        before = server.metrics()
        answers.append([server.request("POST", "/v1/completions", {
            "model": "model", "prompt": "a prompt that is longer than the window of sixteen tokens", "max_tokens": 32, "ignore_eos": True, **sampling}).json()
            ["choices"][0]["text"] for sampling in ({"temperature": 0}, {"temperature": 0.8, "seed": 5})])
        drafted, accepted = (server.metrics()[name] - before[name] for name in ("tandem_drafted_tokens_total", "tandem_accepted_tokens_total"))
        assert drafted > accepted > 0 if drafts == "on" else drafted == 0
    assert answers[0] == answers[1]
