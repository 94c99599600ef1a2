"""transformers, bf16, experts grouped: the baseline that Python users have. One batch without padding: all prompts have one length."""

import time

import measuring
import torch
from transformers import AutoModelForCausalLM

torch.set_num_threads(measuring.THREADS)
try:
    model = AutoModelForCausalLM.from_pretrained(measuring.MODEL, dtype=torch.bfloat16, experts_implementation="grouped_mm")
except (TypeError, ValueError):  # families or versions without the choice
    model = AutoModelForCausalLM.from_pretrained(measuring.MODEL, dtype=torch.bfloat16)
model.eval()


@torch.inference_mode()
def prefill(prompt):
    start = time.perf_counter()
    model(torch.tensor([prompt]), logits_to_keep=1)
    return time.perf_counter() - start


@torch.inference_mode()
def prepare_decode(prompts):
    return model(torch.tensor(prompts), use_cache=True, logits_to_keep=1)


@torch.inference_mode()
def decode(state, generated):
    """Each round begins behind the prompts again: the cache is cut to them."""
    cache, logits = state.past_key_values, state.logits
    context = cache.get_seq_length()
    for step in range(generated + 2):  # two that are not counted
        if step == 2:
            start = time.perf_counter()
        logits = model(logits[:, -1:].argmax(-1), past_key_values=cache, use_cache=True).logits
    rate = len(logits) * generated / (time.perf_counter() - start)
    cache.crop(context)
    return rate


measuring.serve(prefill, prepare_decode, decode)
