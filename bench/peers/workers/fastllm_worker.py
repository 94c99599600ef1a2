"""fastllm on the CPU, bf16, through the calls that its own benchmark uses: token ids in, token times out."""

import ctypes
import time

import measuring
from ftllm import llm

llm.set_cpu_threads(measuring.THREADS)
model = llm.model(measuring.MODEL, dtype="bfloat16", moe_dtype="bfloat16")
# Its default, float16 activations, has no product with bfloat16 weights on the CPU and ends the process.
model.set_atype("bfloat16")
model.set_max_batch(32)
library = llm.fastllm_lib


def launch(prompt, tokens):
    count, stops = model.stop_token_ctypes(None)
    # Greedy, and at least as many tokens as at most: an end of sequence does not end it.
    return library.launch_response_llm_model(
        model.model, len(prompt), (ctypes.c_int * len(prompt))(*prompt), ctypes.c_int(tokens), ctypes.c_int(tokens), ctypes.c_bool(False),
        ctypes.c_float(1), ctypes.c_int(1), ctypes.c_float(1), ctypes.c_float(1), ctypes.c_bool(False), count, stops)


def run(prompts, tokens):
    """Times of each sequence's tokens from submission."""
    start = time.perf_counter()
    times = {launch(prompt, tokens): [] for prompt in prompts}
    open_handles = set(times)
    while open_handles:
        progress = False
        for handle in list(open_handles):
            if not library.can_fetch_response_llm_model(model.model, handle):
                continue
            progress = True
            if library.fetch_response_llm_model(model.model, handle) <= -1:
                open_handles.remove(handle)
            else:
                times[handle].append(time.perf_counter() - start)
        if not progress:
            time.sleep(0.0005)  # as often as its own benchmark looks
    if any(not each for each in times.values()):
        raise SystemExit("fastllm ended a sequence without a token")
    return list(times.values())


measuring.serve(prefill=lambda prompt: run([prompt], 1)[0][0],
                prepare_decode=lambda prompts: prompts,
                # Prompts are prefilled one after the other, and the first ones may decode meanwhile.
                decode=lambda prompts, generated: measuring.decode_rate(run(prompts, generated + len(prompts))))
