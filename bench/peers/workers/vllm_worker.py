"""vLLM's CPU build, bf16, through its engine's own step loop: no server, no text, no sampling beyond the best token."""

import os
import sys
import time

import measuring

# As its documentation advises: Intel's OpenMP, which its wheel brings along.
OPENMP = os.path.join(sys.prefix, "lib", "libiomp5.so")
if os.path.exists(OPENMP) and "libiomp5" not in os.environ.get("LD_PRELOAD", ""):
    os.environ["LD_PRELOAD"] = ":".join(filter(None, [OPENMP, os.environ.get("LD_PRELOAD")]))
    os.execv(sys.executable, [sys.executable, "-B", *sys.argv])

# In this process, on the cores that the others get; nothing of it asks a network.
os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_KVCACHE_SPACE": "2", "VLLM_LOGGING_LEVEL": "ERROR",
               "VLLM_CPU_OMP_THREADS_BIND": f"0-{measuring.THREADS - 1}", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1",
               "OMP_NUM_THREADS": str(measuring.THREADS)}

from vllm import EngineArgs, LLMEngine, SamplingParams  # noqa: E402

# The same limits in every process: what it compiles at the first start is taken from its cache at the others. Prompts of a batch come
# again in each round, out of the prefix cache; those whose prefill is measured are new ones.
engine = LLMEngine.from_engine_args(EngineArgs(
    model=measuring.MODEL, dtype="bfloat16", max_model_len=4096, max_num_seqs=32, max_num_batched_tokens=2048,
    enable_prefix_caching=True, disable_log_stats=True))
ids = iter(range(1 << 30))


def run(prompts, tokens):
    """Times of each sequence's tokens from submission."""
    sampling = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True, detokenize=False)
    times, counts = {}, {}
    for prompt in prompts:
        name = str(next(ids))
        times[name], counts[name] = [], 0
        engine.add_request(name, {"prompt_token_ids": prompt}, sampling)
    start = time.perf_counter()
    while engine.has_unfinished_requests():
        for output in engine.step():
            seconds, count = time.perf_counter() - start, len(output.outputs[0].token_ids)
            name = output.request_id
            times[name] += [seconds] * (count - counts[name])
            counts[name] = count
    return list(times.values())


def prepare_decode(prompts):
    run(prompts, 4)  # with steps in which all decode, which it compiles or warms up
    return prompts


measuring.serve(prefill=lambda prompt: run([prompt], 1)[0][0], prepare_decode=prepare_decode,
                # Two steps that are not counted: sequences begin one after the other.
                decode=lambda prompts, generated: measuring.decode_rate(run(prompts, generated + 2)))
