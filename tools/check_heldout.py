#!/usr/bin/env python3
"""Greedy accuracy of models/arith on its held-out problems, computed by transformers from the files alone.

For comparison with `tandem eval gsm8k`: same prompt (the chat template), same grading (the text after the last `####` must
equal the reference), no sampling. `--json FILE` writes every answer, so that two engines can be compared problem by problem.
"""

import argparse
import json
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from arith_problems import final_number


def main():
    model_folder = Path(__file__).resolve().parent.parent / "models" / "arith"
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, default=model_folder)
    parser.add_argument("--data", type=Path, default=model_folder / "heldout.jsonl")
    parser.add_argument("--limit", type=int, help="only the first LIMIT problems")
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32", help="of the computation")
    parser.add_argument("--max-tokens", type=int, default=160)
    parser.add_argument("--batch", type=int, default=50)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", type=Path, help="write prompts' answers and verdicts to this file")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)

    problems = [json.loads(line) for line in args.data.read_text().splitlines()][:args.limit]
    tokenizer = AutoTokenizer.from_pretrained(args.model, padding_side="left")
    model = AutoModelForCausalLM.from_pretrained(args.model, dtype=getattr(torch, args.dtype)).eval()
    # Similar lengths together: little padding, and padding on the left leaves positions as in an unpadded prompt.
    order = sorted(range(len(problems)), key=lambda i: len(problems[i]["question"]))
    results = [None] * len(problems)
    for start in range(0, len(order), args.batch):
        part = order[start:start + args.batch]
        turns = [[{"role": "user", "content": problems[i]["question"]}] for i in part]
        inputs = tokenizer.apply_chat_template(turns, add_generation_prompt=True, padding=True, return_tensors="pt", return_dict=True)
        inputs.pop("token_type_ids", None)
        with torch.no_grad():
            output = model.generate(**inputs, do_sample=False, max_new_tokens=args.max_tokens)
        for i, row in zip(part, output[:, inputs["input_ids"].shape[1]:]):
            answer = tokenizer.decode(row, skip_special_tokens=True)
            want = final_number(problems[i]["answer"])
            results[i] = {"question": problems[i]["question"], "answer": answer, "want": want, "correct": final_number(answer) == want}
    correct = sum(result["correct"] for result in results)
    print(f"{correct} of {len(results)} correct: {100 * correct / len(results):.1f} % ({args.dtype})")
    if args.json:
        args.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
