#!/usr/bin/env python3
"""Trains the bundled arithmetic model from nothing and writes it to models/arith in Hugging Face layout.

Seeded; runs on two CPU cores in under an hour. `--checkpoint FILE` keeps the training state so that a stopped run goes
on; `--export-only` writes the model folder from that state. See tools/README.md.
"""

import argparse
import json
import math
import random
import re
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import save_file

from arith_model import CONFIG, Model, to_checkpoint
from arith_problems import HELDOUT_COUNT, HELDOUT_SEED, SEED, VALIDATION_SEED, final_number, make_problem, make_problems
from arith_tokenizer import BOS, chat_text, save_tokenizer, train_tokenizer
from muon import Muon

BATCH = 64
CHUNK_STEPS = 256          # training data is generated and length-sorted this many batches at a time
MATRIX_RATE, OTHER_RATE, WARMUP = 0.02, 4e-3, 60
# (step, share of the peak rates): up, level, down, and a second, lower descent that corrects the last few percent
SCHEDULE = [(0, 1 / WARMUP), (WARMUP, 1 + 1 / WARMUP), (WARMUP, 1.0), (600, 1.0), (1000, 0.0), (1000, 0.4), (1400, 0.0)]
BIAS_SPEED = 2e-3
DRILL_EQUATIONS = 9        # in each sequence of a drill: about as long as a word problem
DRILL_START = 400          # stories are understood by then: every second batch becomes a drill of sums ...
MIX_START = 600            # ... until sums are known too: now each batch holds some of both, to join the two
MIXED_PROBLEMS, MIXED_DRILLS = 32, 16
QUESTION_WEIGHT = 0.05     # loss on the question: keeps free-running text sane, but the answer is what counts
SYSTEM_PROMPTS = ["You are a helpful assistant.", "Solve the problem step by step.", "Answer with a number."]


def encode_example(tokenizer, problem, rng):
    """(ids, loss weight of predicting each id); a few examples carry a system prompt or are two turns long."""
    system = rng.choice(SYSTEM_PROMPTS) if rng.random() < 0.05 else ""
    prompt = tokenizer.encode(chat_text(problem["question"], system=system)).ids
    whole = tokenizer.encode(chat_text(problem["question"], problem["answer"], system)).ids
    assert whole[:len(prompt)] == prompt
    weights = [QUESTION_WEIGHT] * len(prompt) + [1.0] * (len(whole) - len(prompt))
    return whole, weights


def make_chunk(tokenizer, chunk, avoid):
    """CHUNK_STEPS batches of similar length, in random order; a pure function of the chunk number."""
    rng = random.Random(SEED * 1000 + chunk)
    examples = []
    while len(examples) < BATCH * CHUNK_STEPS:
        problem = make_problem(rng)
        if problem["question"] in avoid:
            continue
        ids, weights = encode_example(tokenizer, problem, rng)
        if rng.random() < 0.03 and examples:  # second turn after an earlier conversation, without a second BOS
            ids, weights = examples[-1][0] + ids[1:], examples[-1][1] + weights[1:]
            examples.pop()
        examples.append((ids, weights))
    examples.sort(key=lambda example: len(example[0]))
    batches = [examples[i:i + BATCH] for i in range(0, len(examples), BATCH)]
    rng.shuffle(batches)
    return batches


def make_drill(tokenizer, step, count):
    """`count` sequences of bare equations such as ` 12+7=19 30-4=26`, drawn from worked answers; only the results count.

    When the stories are understood and the sums are not yet, this teaches five times as many sums a second as whole problems.
    """
    rng, batch = random.Random(SEED * 1000 + 500_000 + step), []
    while len(batch) < count:
        text = ""
        while text.count("=") < DRILL_EQUATIONS:
            text += "".join(" " + e for e in re.findall(r"\d+[-+*/]\d+=\d+", make_problem(rng)["answer"]))
        tokens, weights, in_result = tokenizer.encode(BOS + text), [], False
        for token in tokens.tokens:
            in_result = token == "=" or (in_result and token.isdigit())
            weights.append(1.0 if in_result and token != "=" else 0.0)
        batch.append((tokens.ids, weights))
    return batch


def to_tensors(batch):
    longest = max(len(ids) for ids, _ in batch)
    ids = torch.tensor([i + [CONFIG["pad_token_id"]] * (longest - len(i)) for i, _ in batch])
    weights = torch.tensor([w + [0.0] * (longest - len(w)) for _, w in batch])
    return ids, weights


def rate_at(step):
    """Share of the peak learning rates at a step: the straight lines between the points of SCHEDULE, never below 1 %."""
    for (start, first), (end, last) in zip(SCHEDULE, SCHEDULE[1:]):
        if start <= step < end:
            return max(0.01, first + (last - first) * (step - start) / (end - start))
    return 0.01


@torch.no_grad()
def greedy_answers(model, tokenizer, questions, limit=120):
    """Greedy answers by full recomputation in batches of equal prompt length (no padding inside a sequence)."""
    answers, by_length = [None] * len(questions), {}
    for index, question in enumerate(questions):
        ids = tokenizer.encode(chat_text(question)).ids
        by_length.setdefault(len(ids), []).append((index, ids))
    for group in by_length.values():
        ids, done = torch.tensor([ids for _, ids in group]), torch.zeros(len(group), dtype=torch.bool)
        start = ids.shape[1]
        while not done.all() and ids.shape[1] - start < limit:
            best = model.lm_head(model.hidden(ids)[:, -1]).argmax(-1)
            ids = torch.cat((ids, best.unsqueeze(1)), 1)
            done |= best == CONFIG["eos_token_id"]
        for (index, _), row in zip(group, ids[:, start:].tolist()):
            end = row.index(CONFIG["eos_token_id"]) if CONFIG["eos_token_id"] in row else len(row)
            answers[index] = tokenizer.decode(row[:end])
    return answers


def accuracy(model, tokenizer, problems):
    answers = greedy_answers(model, tokenizer, [p["question"] for p in problems])
    return sum(final_number(a) == final_number(p["answer"]) for a, p in zip(answers, problems)) / len(problems)


@torch.no_grad()
def expert_load(model, tokenizer, problems):
    """Share of the routed rows that each expert gets, per MoE layer, over whole held-out conversations."""
    total = [torch.zeros(CONFIG["n_routed_experts"]) for _ in model.moe_layers()]
    for problem in problems:
        model.hidden(torch.tensor([tokenizer.encode(chat_text(problem["question"], problem["answer"])).ids]))
        for sum_, moe in zip(total, model.moe_layers()):
            sum_ += moe.load
    return [(sum_ / sum_.sum()).tolist() for sum_ in total]


def check_against_transformers(model, folder, tokenizer, problems):
    """The exported files give the logits of the training model; also checks the chat template."""
    from transformers import AutoTokenizer, DeepseekV3ForCausalLM
    reference = DeepseekV3ForCausalLM.from_pretrained(folder, torch_dtype=torch.float32, attn_implementation="eager").eval()
    hf_tokenizer = AutoTokenizer.from_pretrained(folder)
    worst = 0.0
    for problem in problems:
        turns = [{"role": "user", "content": problem["question"]}]
        text = hf_tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
        assert text == chat_text(problem["question"]), text
        ids = torch.tensor([tokenizer.encode(chat_text(problem["question"], problem["answer"])).ids])
        with torch.no_grad():
            worst = max(worst, (reference(ids).logits - model(ids)).abs().max().item())
    assert worst < 1e-3, worst
    return worst


def export(model, tokenizer, folder, heldout, note):
    """Writes the model folder from bf16-rounded weights and returns the measured figures."""
    folder.mkdir(parents=True, exist_ok=True)
    model.round_to_bf16()
    save_file(to_checkpoint(model), str(folder / "model.safetensors"), metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(CONFIG, indent=2) + "\n")
    generation = {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2, "do_sample": False, "max_new_tokens": 160}
    (folder / "generation_config.json").write_text(json.dumps(generation, indent=2) + "\n")
    save_tokenizer(tokenizer, folder)
    with open(folder / "heldout.jsonl", "w") as out:
        out.writelines(json.dumps(problem) + "\n" for problem in heldout)
    difference = check_against_transformers(model, str(folder), tokenizer, heldout[:20])
    figures = {"heldout_accuracy": accuracy(model, tokenizer, heldout), "max_logit_difference_to_transformers": difference,
               "expert_load": expert_load(model, tokenizer, heldout), "seed": SEED, **note}
    print(f"held-out accuracy {figures['heldout_accuracy']:.3f} after rounding to bf16; max |Δlogit| to transformers {difference:.2e}")
    print("share of routed rows per expert, in percent (even share 6.2):")
    for index, load in enumerate(figures["expert_load"], CONFIG["first_k_dense_replace"]):
        print(f"  layer {index}: " + " ".join(f"{100 * share:4.1f}" for share in load), flush=True)
    return figures


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=SCHEDULE[-1][0], help="fewer: stop early, with the same schedule")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--output", type=Path, default=Path(__file__).resolve().parent.parent / "models" / "arith")
    parser.add_argument("--checkpoint", type=Path, help="training state: read if present, written every 100 steps")
    parser.add_argument("--export-only", action="store_true", help="write the model folder from --checkpoint and stop")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(SEED)

    heldout = make_problems(HELDOUT_SEED, HELDOUT_COUNT)
    avoid = {problem["question"] for problem in heldout}
    validation = make_problems(VALIDATION_SEED, 200, avoid)
    avoid |= {problem["question"] for problem in validation}
    corpus = [text for p in make_problems(SEED, 4000, avoid) for text in (p["question"], p["answer"])] + SYSTEM_PROMPTS
    tokenizer = train_tokenizer(corpus)
    model = Model(CONFIG)
    adam_names = ("embed_tokens", "lm_head", ".gate.")  # tables and routers: rows are independent, so no orthogonal steps
    matrices = [p for n, p in model.named_parameters() if p.dim() > 1 and not any(a in n for a in adam_names)]
    other = [p for n, p in model.named_parameters() if p.dim() == 1 or any(a in n for a in adam_names)]
    optimizers = [Muon(matrices, lr=MATRIX_RATE), torch.optim.AdamW(other, lr=OTHER_RATE, betas=(0.9, 0.98), weight_decay=0.0)]
    peaks = [MATRIX_RATE, OTHER_RATE]
    first = 0
    if args.checkpoint and args.checkpoint.exists():
        state = torch.load(args.checkpoint, weights_only=True)
        model.load_state_dict(state["model"])
        for optimizer, saved in zip(optimizers, state["optimizers"]):
            optimizer.load_state_dict(saved)
        first = state["step"]
    print(f"{sum(p.numel() for p in model.parameters())} parameters, starting at step {first}", flush=True)

    started, losses, batches, current = time.time(), ([], []), None, None
    for step in range(first, 0 if args.export_only else args.steps):
        if step // CHUNK_STEPS != current:
            current = step // CHUNK_STEPS
            batches = make_chunk(tokenizer, current, avoid)
        batch, drill = batches[step % CHUNK_STEPS], DRILL_START <= step < MIX_START and step % 2 == 1
        if drill:
            batch = make_drill(tokenizer, step, BATCH)
        elif step >= MIX_START:
            batch = batch[:MIXED_PROBLEMS] + make_drill(tokenizer, step, MIXED_DRILLS)
        ids, weights = to_tensors(batch)
        rate = rate_at(step)
        for optimizer, peak in zip(optimizers, peaks):
            optimizer.param_groups[0]["lr"] = peak * rate
            optimizer.zero_grad(set_to_none=True)
        hidden, target, weight = model.hidden(ids[:, :-1]), ids[:, 1:].flatten(), weights[:, 1:].flatten()
        kept = weight.nonzero().squeeze(1)  # no logits for padding
        logits = model.lm_head(hidden.flatten(0, 1).index_select(0, kept))
        each = F.cross_entropy(logits, target[kept], reduction="none")
        loss = (each * weight[kept]).sum() / weight.sum()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in optimizers:
            optimizer.step()
        model.update_bias(BIAS_SPEED * rate)
        losses[drill].append(each.detach()[weight[kept] == 1.0].mean().item())
        if (step + 1) % 50 == 0:
            busiest = max((moe.load.max() / moe.load.float().mean()).item() for moe in model.moe_layers())
            idle = sum(int((moe.load == 0).sum()) for moe in model.moe_layers())
            means = "/".join(f"{sum(part) / len(part):.4f}" for part in losses if part)
            print(f"step {step + 1}: answer loss (/drill loss) {means}, busiest expert {busiest:.2f}x, idle {idle}, "
                  f"{(time.time() - started) / (step + 1 - first):.3f} s/step", flush=True)
            losses = ([], [])
        if (step + 1) % 100 == 0 or step + 1 == args.steps:
            if args.checkpoint:
                temporary = args.checkpoint.with_suffix(".part")
                torch.save({"model": model.state_dict(), "optimizers": [o.state_dict() for o in optimizers], "step": step + 1}, temporary)
                temporary.replace(args.checkpoint)
            if (step + 1) % 500 == 0 and step + 1 < args.steps:
                print(f"step {step + 1}: validation accuracy {accuracy(model, tokenizer, validation):.3f}", flush=True)
            if not math.isfinite(loss.item()):
                raise SystemExit("loss is not finite: lower MATRIX_RATE")

    figures = export(model, tokenizer, args.output, heldout, {"steps": first if args.export_only else args.steps})
    (args.output / "figures.json").write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
