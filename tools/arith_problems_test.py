"""The generated problems are right, and the held-out file is what its seed gives. Needs the standard library only."""

import json
import random
import re
from pathlib import Path

from arith_problems import BUILDERS, HELDOUT_COUNT, HELDOUT_SEED, final_number, make_problem, make_problems

HELDOUT = Path(__file__).resolve().parent.parent / "models" / "arith" / "heldout.jsonl"


def check(problem):
    *steps, last = problem["answer"].split("\n")
    assert 1 <= len(steps) <= 3, problem
    for step in steps:
        left, operator, right, result = re.search(r"(\d+)([-+*/])(\d+)=(\d+)", step).groups()
        a, b = int(left), int(right)
        expected = {"+": a + b, "-": a - b, "*": a * b}.get(operator)
        if operator == "/":
            assert a % b == 0, problem
            expected = a // b
        assert expected == int(result) < 110, problem
    assert last == f"#### {result}", problem
    assert final_number(problem["answer"]) == result
    for number in re.findall(r"\d+", problem["question"]):  # nothing in the question is left unused
        assert any(number in re.findall(r"\d+", step) for step in steps), problem


def test_every_kind_of_problem_is_worked_correctly():
    rng = random.Random(3)
    for problem in (make_problem(rng) for _ in range(5000)):
        check(problem)
    assert len(BUILDERS) == 7


def test_heldout_file_is_reproduced_by_its_seed():
    problems = [json.loads(line) for line in HELDOUT.read_text().splitlines()]
    assert problems == make_problems(HELDOUT_SEED, HELDOUT_COUNT)
    assert len({problem["question"] for problem in problems}) == HELDOUT_COUNT


def test_avoided_questions_do_not_come_back():
    avoid = {problem["question"] for problem in make_problems(5, 300)}
    assert avoid.isdisjoint(problem["question"] for problem in make_problems(5, 300, avoid))


def test_final_number():
    assert final_number("a\n#### 12 ") == "12"
    assert final_number("no mark") is None
