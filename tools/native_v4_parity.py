"""Reference outputs beside a native DeepSeek-V4 checkpoint, in the layout of tests/fixtures/README.md: what native_v4_reference.py and
native_v4_dspark.py compute from its files."""

import json

import numpy as np

import native_v4
import native_v4_dspark
import native_v4_reference

PROMPT_LENGTHS = (1, 17, 130, 200)  # the window is 16: inside it, beyond it, past 4 and 128 windows' entries
GREEDY_STEPS = 8
TOKEN_MARGIN = 1e-2    # between the two best tokens at every greedy step
CHOICE_MARGIN = 2e-5   # between the last chosen and the first dropped score, of routers and of the indexer
DRAFT_MARGIN = 2e-3    # between the two best tokens of a row of DSpark's block: there are many rows, and those too near are left out
ATTEMPTS = 300


def dspark_outputs(model, ids):
    """Drafts behind positions of a prompt that `model` has just computed, where no choice hangs on rounding; None: behind none."""
    window = model.config["sliding_window"]
    near = {0, 1, 2, window - 2, window - 1, window, window + 1, len(ids) - 2}
    positions = [p for p in range(len(ids) - 1) if p in near or p % 8 == 7]
    dspark, kept = native_v4_dspark.Dspark(model), []
    context = dspark.context(model.taps)
    for position in positions:
        model.margin = np.inf
        draft = dspark.draft(context[:, :position + 1], position, ids[position + 1])
        ordered = np.sort(draft.logits, axis=-1)
        if model.margin >= CHOICE_MARGIN and (ordered[:, -1] - ordered[:, -2]).min() >= DRAFT_MARGIN:
            kept.append((position, draft))
    if not kept:
        return None
    return {"dspark_positions": np.array([position for position, _ in kept]),
            "dspark_ids": np.array([draft.ids for _, draft in kept]),
            "dspark_logits": np.array([draft.logits for _, draft in kept]),
            "dspark_confidence": np.array([draft.confidence for _, draft in kept])}


def draft_outputs(model, ids):
    """What the model's drafter computes for a prompt; None where a choice is too near."""
    if len(ids) == 1:
        return {}
    if "dspark_block_size" in model.config:
        return dspark_outputs(model, ids)
    if model.config["num_nextn_predict_layers"] != 1:
        return {}
    logits = model.draft_logits(ids)
    return {"draft_logits": logits} if model.margin >= CHOICE_MARGIN else None


def try_prompt(model, ids, greedy_steps):
    """The outputs for one prompt; None where a near tie makes equal choices a matter of rounding."""
    prefill = logits = model.logits(ids)
    if model.margin < CHOICE_MARGIN:
        return None
    routing, sequence, tokens, rows = dict(model.routing), list(ids), [], []
    drafts = draft_outputs(model, ids)
    if drafts is None:
        return None
    model.margin = np.inf
    for step in range(greedy_steps):
        best = np.sort(logits[-1])[-2:]
        if best[1] - best[0] < TOKEN_MARGIN or model.margin < CHOICE_MARGIN:
            return None
        rows.append(logits[-1])
        tokens.append(int(logits[-1].argmax()))
        sequence.append(tokens[-1])
        if step + 1 < greedy_steps:
            logits = model.logits(np.array(sequence))
    result = {"ids": ids, "logits": prefill, "greedy_ids": np.array(tokens), "greedy_logits": np.array(rows), **drafts}
    for layer, (chosen, weight) in routing.items():
        result[f"layer.{layer}.router_ids"], result[f"layer.{layer}.router_weights"] = chosen, weight
    return result


def write(folder, prompt_lengths=PROMPT_LENGTHS, greedy_steps=GREEDY_STEPS, seed=native_v4.SEED, **rounding):
    """`rounding`: of native_v4_reference.Reference."""
    model, random = native_v4_reference.Reference(folder, **rounding), np.random.default_rng(seed)
    config, out = model.config, native_v4.Checkpoint(folder)
    for number, length in enumerate(prompt_lengths):
        for _ in range(ATTEMPTS):
            result = try_prompt(model, random.integers(2, config["vocab_size"], length), greedy_steps)
            if result:
                break
        assert result, f"no fair prompt of length {length}: change the seed"
        for key, value in result.items():
            whole = value.dtype.kind == "i"
            out.add(f"prompt.{number}.{key}", "I32" if whole else "F32", value.astype(np.int32 if whole else np.float32))
    out.flush()
    out.files[0][0].rename(folder / "parity.safetensors")
    parity = {"reference": "tools/native_v4_reference.py, float64", "seed": seed, "vocab_size": config["vocab_size"],
              "top_k": config["num_experts_per_tok"], "moe_layers": list(range(config["num_hidden_layers"])),
              "greedy_steps": greedy_steps, "prompts": [{"length": length} for length in prompt_lengths],
              "token_margin": TOKEN_MARGIN, "router_margin": CHOICE_MARGIN, **rounding}
    (folder / "parity.json").write_text(json.dumps(parity, indent=2) + "\n")
