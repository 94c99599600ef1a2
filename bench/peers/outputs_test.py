"""Parsers on recorded lines, shortened; figures are those of the engines' own formats."""

import json

import pytest

import outputs

LLAMA_BENCH = """warning: not compiled with GPU offload support
[
  {
    "build_number": 0, "model_filename": "M1-bf16.gguf", "model_type": "granitemoe 1B BF16", "n_batch": 2048, "n_ubatch": 512,
    "n_threads": 2, "flash_attn": true, "n_prompt": 512, "n_gen": 0, "avg_ns": 2039402214, "avg_ts": 251.05, "stddev_ts": 0.4,
    "samples_ns": [ 2039402214 ], "samples_ts": [ 251.05 ]
  },
  {
    "n_prompt": 2048, "n_gen": 0, "avg_ts": 222.5, "samples_ts": [ 222.5 ]
  },
  {
    "n_prompt": 0, "n_gen": 32, "avg_ts": 44.0, "samples_ts": [ 44.0 ]
  }
]
"""

def test_llama_bench_gives_the_prefills():
    assert outputs.llama_bench(LLAMA_BENCH) == {"prefill 512": 251.05, "prefill 2048": 222.5}


def test_workers_may_log_beside_their_lines():
    text = 'Loading 100%\nready\n{"cell": "prefill 512", "tokens_per_second": 494.1}\n{not json\n{"cell": "decode b8", "tokens_per_second": 95.0}\n'
    assert outputs.worker(text) == {"prefill 512": 494.1, "decode b8": 95.0}


@pytest.mark.parametrize("parse", [outputs.llama_bench, outputs.worker, outputs.tandem_one_by_one, outputs.tandem_batch,
                                   outputs.roofs])
def test_an_output_without_figures_is_refused(parse):
    with pytest.raises(ValueError, match="no "):
        parse("terminate called after throwing an instance of 'std::bad_alloc'\n")


def test_the_rate_counts_only_while_all_decode():
    # The first sequence begins to decode at 1 s, the second has its first token at 2 s; the first one ends at 12 s.
    first = [1.0, *(2.0 + i for i in range(1, 11))]
    second = [2.0, *(2.5 + i for i in range(1, 20))]
    # In (2, 12]: ten tokens of the first, nine of the second.
    assert outputs.decode_rate([first, second]) == pytest.approx(19 / 10)


def test_too_few_common_tokens_are_refused():
    with pytest.raises(ValueError, match="generate more"):
        outputs.decode_rate([[0.0, 1.0, 2.0], [1.5, 2.5]])


def answers(*pairs):
    return json.dumps({"model": "m", "answers": [
        {"prompt_tokens": tokens, "first_token_seconds": times[0], "seconds": times[-1], "token_seconds": times} for tokens, times in pairs]})


def test_tandem_one_by_one_takes_the_last_of_each_length():
    decode = [0.5 + 0.1 * i for i in range(11)]
    text = answers((512, [9.0, 9.1]), (512, [0.5, 0.6]), (2048, [4.0, 4.1]), (256, decode))
    cells = outputs.tandem_one_by_one(text)
    assert cells == {"prefill 512": 1024.0, "prefill 2048": 512.0, "decode b1": pytest.approx(10.0)}


def test_tandem_batch():
    times = [0.1 * i for i in range(1, 12)]
    assert outputs.tandem_batch(answers((256, times), (256, times))) == {"decode b2": pytest.approx(20.0)}


def test_an_older_tandem_is_refused():
    with pytest.raises(ValueError, match="token_seconds"):
        outputs.tandem_batch('{"answers": [{"prompt_tokens": 1, "first_token_seconds": 1}]}')


def test_roofs_are_those_of_the_table_in_use():
    def kernels(in_use, read, dot):
        return {"table": "t", "in_use": in_use, "bf16_dot": {"one_thread": 1, "all_threads": dot},
                "read": {"small_pages": {"one_thread": 20, "all_threads": read}, "huge_pages": {"one_thread": 21, "all_threads": read + 2}}}
    text = json.dumps({"threads": 2, "tables": [kernels(False, 9, 9), kernels(True, 40.5, 930)]})
    assert outputs.roofs("tandem: a line of its log\n" + text) == {"read_gigabytes_per_second": 42.5, "bf16_gigaflops": 930}
