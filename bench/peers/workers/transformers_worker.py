"""transformers, bf16, experts grouped: the baseline that Python users have. One batch without padding: all prompts have one length."""

import time

import measuring
import torch
from transformers import AutoModelForCausalLM

task = measuring.Task()
torch.set_num_threads(task.threads)
try:
    model = AutoModelForCausalLM.from_pretrained(task.model, dtype=torch.bfloat16, experts_implementation="grouped_mm")
except (TypeError, ValueError):  # families or versions without the choice
    model = AutoModelForCausalLM.from_pretrained(task.model, dtype=torch.bfloat16)
model.eval()


def ids(sequences, length):
    return torch.tensor([task.prompt(length) for _ in range(sequences)])


with torch.inference_mode():
    if task.lengths:
        model(ids(1, 64), logits_to_keep=1)
        measuring.wait_until_told()
        for length in task.lengths:
            start = time.perf_counter()
            model(ids(1, length), logits_to_keep=1)
            measuring.report(f"prefill {length}", length / (time.perf_counter() - start))
    else:
        state = model(ids(task.batch, task.context), use_cache=True, logits_to_keep=1)
        measuring.wait_until_told()
        for step in range(task.generated + 2):  # two that are not counted
            if step == 2:
                start = time.perf_counter()
            state = model(state.logits[:, -1:].argmax(-1), past_key_values=state.past_key_values, use_cache=True)
        measuring.report(f"decode b{task.batch}", task.batch * task.generated / (time.perf_counter() - start))
