"""vLLM's CPU build, bf16, through its engine's own step loop: no server, no text, no sampling beyond the best token."""

import os
import time

import measuring

model, threads, prefill, context, generated, batches, vocab_size = measuring.arguments()
# In this process, on the cores that the others get; nothing of it asks a network.
os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_KVCACHE_SPACE": "2", "VLLM_LOGGING_LEVEL": "ERROR",
               "VLLM_CPU_OMP_THREADS_BIND": f"0-{threads - 1}", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1",
               "OMP_NUM_THREADS": str(threads)}

from vllm import EngineArgs, LLMEngine, SamplingParams  # noqa: E402

engine = LLMEngine.from_engine_args(EngineArgs(
    model=model, dtype="bfloat16", max_model_len=4096, max_num_seqs=max(batches), max_num_batched_tokens=max(prefill),
    enable_prefix_caching=False, disable_log_stats=True, enforce_eager=os.environ.get("PEERS_VLLM_EAGER") == "1"))
prompts, ids = measuring.Prompts(vocab_size), iter(range(1 << 30))


def run(sequences, length, tokens):
    """Times of each sequence's tokens from submission."""
    sampling = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True, detokenize=False)
    times, counts = {}, {}
    for _ in range(sequences):
        name = str(next(ids))
        times[name], counts[name] = [], 0
        engine.add_request(name, {"prompt_token_ids": prompts(length)}, sampling)
    start = time.perf_counter()
    while engine.has_unfinished_requests():
        for output in engine.step():
            seconds, count = time.perf_counter() - start, len(output.outputs[0].token_ids)
            times[output.request_id] += [seconds] * (count - counts[output.request_id])
            counts[output.request_id] = count
    return list(times.values())


for length in prefill:
    measuring.report(f"prefill {length}", length / measuring.best_of(2, lambda: run(1, length, 1)))
for batch in batches:
    meanwhile = batch * context // max(prefill) + 1  # steps in which the first ones decode and the last ones prefill
    run(batch, context, 2)
    measuring.report(f"decode b{batch}", measuring.decode_rate(run(batch, context, generated + meanwhile)))
