"""Parsers on recorded lines, shortened; figures are those of the engines' own formats."""

import json

import pytest

import outputs

def test_the_rate_counts_only_while_all_decode():
    # The first sequence begins to decode at 1 s, the second has its first token at 2 s; the first one ends at 12 s.
    first = [1.0, *(2.0 + i for i in range(1, 11))]
    second = [2.0, *(2.5 + i for i in range(1, 20))]
    # In (2, 12]: ten tokens of the first, nine of the second.
    assert outputs.decode_rate([first, second]) == pytest.approx(19 / 10)


def test_too_few_common_tokens_are_refused():
    with pytest.raises(ValueError, match="generate more"):
        outputs.decode_rate([[0.0, 1.0, 2.0], [1.5, 2.5]])


def answers(*pairs, cached=0):
    return {"model": "m", "answers": [{"prompt_tokens": tokens, "cached_tokens": cached, "first_token_seconds": times[0], "token_seconds": times}
                                      for tokens, times in pairs]}


def test_tandem_prefill():
    assert outputs.tandem_prefill(answers((512, [0.5]))) == 1024.0
    with pytest.raises(ValueError, match="496 tokens of a new prompt came from the prefix cache"):
        outputs.tandem_prefill(answers((512, [0.5]), cached=496))


def test_tandem_decode():
    times = [0.1 * i for i in range(1, 12)]
    assert outputs.tandem_decode(answers((256, times), (256, times), cached=240)) == pytest.approx(20.0)


@pytest.mark.parametrize("parse", [outputs.tandem_prefill, outputs.tandem_decode])
def test_an_answer_with_an_error_is_refused(parse):
    with pytest.raises(ValueError, match="no room"):
        parse({"answers": [{"error": "no room", "token_seconds": []}]})


def test_roofs_are_those_of_the_table_in_use():
    def kernels(in_use, read, dot):
        return {"table": "t", "in_use": in_use, "bf16_dot": {"one_thread": 1, "all_threads": dot},
                "read": {"small_pages": {"one_thread": 20, "all_threads": read}, "huge_pages": {"one_thread": 21, "all_threads": read + 2}}}
    text = json.dumps({"threads": 2, "tables": [kernels(False, 9, 9), kernels(True, 40.5, 930)]})
    assert outputs.roofs(text) == {"read_gigabytes_per_second": 42.5, "bf16_gigaflops": 930}
    with pytest.raises(ValueError, match="no roofs"):
        outputs.roofs(json.dumps({"tables": [kernels(False, 9, 9)]}))
