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

task = measuring.Task()
# In this process, on the cores that the others get; nothing of it asks a network.
os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_KVCACHE_SPACE": "2", "VLLM_LOGGING_LEVEL": "ERROR",
               "VLLM_CPU_OMP_THREADS_BIND": f"0-{task.threads - 1}", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1",
               "OMP_NUM_THREADS": str(task.threads)}

from vllm import EngineArgs, LLMEngine, SamplingParams  # noqa: E402

# The same limits in every process: what it compiles at the first start is taken from its cache at the others.
engine = LLMEngine.from_engine_args(EngineArgs(
    model=task.model, dtype="bfloat16", max_model_len=4096, max_num_seqs=32, max_num_batched_tokens=2048,
    enable_prefix_caching=False, disable_log_stats=True))
ids = iter(range(1 << 30))


def run(sequences, length, tokens, when_all_decode=lambda: None):
    """Times of each sequence's tokens from submission. Calls `when_all_decode` once each has one; times before it do not count."""
    sampling = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True, detokenize=False)
    times, counts, told = {}, {}, False
    for _ in range(sequences):
        name = str(next(ids))
        times[name], counts[name] = [], 0
        engine.add_request(name, {"prompt_token_ids": task.prompt(length)}, sampling)
    start = time.perf_counter()
    while engine.has_unfinished_requests():
        for output in engine.step():
            seconds, count = time.perf_counter() - start, len(output.outputs[0].token_ids)
            name = output.request_id
            times[name] += [seconds] * (count - counts[name])
            counts[name] = count
        if not told and all(len(each) > 1 for each in times.values()):
            when_all_decode()
            told, now = True, time.perf_counter() - start
            for each in times.values():
                each[:] = [now]
    return list(times.values())


if task.lengths:
    for length in task.lengths:
        run(1, length, 1)
    measuring.wait_until_told()
    for length in task.lengths:
        measuring.report(f"prefill {length}", length / run(1, length, 1)[0][0])
else:
    meanwhile = task.batch * task.context // 2048 + 3  # steps in which the first ones decode and the last ones prefill, and warm up
    times = run(task.batch, task.context, task.generated + meanwhile, measuring.wait_until_told)
    measuring.report(f"decode b{task.batch}", measuring.decode_rate(times))
