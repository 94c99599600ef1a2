"""transformers, bf16, experts grouped: the baseline that Python users have. One padded-free batch: all prompts have one length."""

import time

import measuring
import torch
from transformers import AutoModelForCausalLM

model_folder, threads, prefill, context, generated, batches, vocab_size = measuring.arguments()
torch.set_num_threads(threads)
try:
    model = AutoModelForCausalLM.from_pretrained(model_folder, dtype=torch.bfloat16, experts_implementation="grouped_mm")
except (TypeError, ValueError):  # families or versions without the choice
    model = AutoModelForCausalLM.from_pretrained(model_folder, dtype=torch.bfloat16)
model.eval()
prompts = measuring.Prompts(vocab_size)


def ids(sequences, length):
    return torch.tensor([prompts(length) for _ in range(sequences)])


with torch.inference_mode():
    for length in prefill:
        measuring.report(f"prefill {length}", length / measuring.best_of(2, lambda: model(ids(1, length), logits_to_keep=1)))
    for batch in batches:
        state = model(ids(batch, context), use_cache=True, logits_to_keep=1)
        token, start = state.logits[:, -1:].argmax(-1), 0.0
        for step in range(generated + 2):  # two that are not counted
            if step == 2:
                start = time.perf_counter()
            state = model(token, past_key_values=state.past_key_values, use_cache=True)
            token = state.logits[:, -1:].argmax(-1)
        measuring.report(f"decode b{batch}", batch * generated / (time.perf_counter() - start))
