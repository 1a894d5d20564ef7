"""The course tests itself: right is right, every misconception is met by its name, and nothing is given away."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from nanovllm_edu.exercises import CATALOGUE, exercise
from nanovllm_edu.exercises.exercise import Exercise, wrong_answers
from nanovllm_edu.exercises.grading import grade

ROOT = Path(__file__).resolve().parents[2]
ALL = list(CATALOGUE.values())
each = pytest.mark.parametrize("one", ALL, ids=[one.id for one in ALL])
VARIANTS, GRADED = 1000, 40


def solutions() -> dict[str, Any]:
    found: dict[str, Any] = {}
    for path in sorted((ROOT / "labs" / "solutions").glob("*.py")):
        spec = importlib.util.spec_from_file_location(f"solutions_{path.stem}", path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        found |= module.SOLUTIONS
    return found


SOLUTIONS = solutions()


def test_every_exercise_has_a_solution_and_no_solution_is_left_over():
    assert set(SOLUTIONS) == set(CATALOGUE)


@each
def test_untouched_is_not_attempted(one: Exercise):
    for nothing in (None, ..., "", "  ", "...", [], ()):
        result = exercise(one.id).check(nothing)
        assert result.outcome == "not_attempted"
    assert exercise(one.id).record["attempts"] == []


@each
def test_a_thousand_learners_each_get_a_well_posed_question(one: Exercise):
    met: dict[str, int] = {}
    for number in range(VARIANTS):
        params = one.draw(Random(f"learner {number}"))
        assert json.loads(json.dumps(params)) == params
        question, right = one.ask(params), one.answer(params)
        assert one.kind.parse(right, question) == right
        assert SOLUTIONS[one.id](question) == right
        wrong = wrong_answers(one, params)
        assert len(wrong) >= 3, "an exercise that few misconceptions can miss teaches little"
        flat = [answer for answers in wrong.values() for answer in answers]
        assert right not in flat
        for name, answers in wrong.items():
            met[name] = met.get(name, 0) + 1
            for answer in answers:
                assert one.kind.parse(answer, question) == answer, "a learner could not even hand this in"
    assert set(met) == {m.name for m in one.misconceptions}
    assert min(met.values()) > VARIANTS / 4, f"a misconception that hardly ever shows: {met}"


@each
def test_every_misconception_is_met_by_its_own_message(one: Exercise):
    messages = {m.name: m.message for m in one.misconceptions}
    assert len(set(messages.values())) == len(messages)
    for number in range(GRADED):
        params = one.draw(Random(number))
        result = grade(one, params, one.answer(params))
        assert (result.outcome, result.message) == ("correct", one.explain(params))
        for name, answers in wrong_answers(one, params).items():
            for answer in answers:
                result = grade(one, params, answer)
                assert (result.outcome, result.misconception) == ("wrong", name)
                assert result.message == messages[name]


@each
def test_no_word_to_someone_who_is_wrong_holds_the_right_answer(one: Exercise):
    fixed = [m.message for m in one.misconceptions] + [one.otherwise, one.checked, one.not_checked, one.title]
    assert not any(re.search(r"\d", text) for text in fixed), "numbers in a fixed text can only mislead or give away"
    told = "\n".join([*fixed, *one.hints])
    for number in range(VARIANTS):
        right = one.answer(one.draw(Random(f"learner {number}")))
        if isinstance(right, list):
            right = ", ".join(map(str, right))
        assert not re.search(rf"\b{re.escape(str(right))}\b", told)


@each
def test_hints_come_one_by_one_and_the_answer_after_two_different_wrong_ones(one: Exercise):
    desk = exercise(one.id)
    for number, hint in enumerate(one.hints, 1):
        assert desk.hint().message == f"Hint {number} of 3: {hint}"
    assert all(hint in desk.hint().message for hint in one.hints)
    assert desk.record["hints"] == 3

    shown = one.kind.show(one.answer(desk.params))
    first, second = [answers[0] for answers in wrong_answers(one, desk.params).values()][:2]
    for answer in (first, first):
        desk.check(answer)
        assert shown not in desk.reveal().message and not desk.record["revealed"]
    desk.check(second)
    assert shown in desk.reveal().message and desk.record["revealed"]


@each
def test_a_reset_draws_other_numbers(one: Exercise):
    desk = exercise(one.id)
    before = desk.params
    assert exercise(one.id).params == before, "the numbers stay until a reset"
    desk.check(one.answer(before))
    desk.reset()
    assert desk.params != before
    assert desk.record == {"variant": 1, "attempts": [], "hints": 0, "revealed": False}


class Hostile:
    def __index__(self) -> int:
        raise SystemError("boom")

    def __repr__(self) -> str:
        raise SystemError("boom")


def endless():
    while True:
        yield 1


NONSENSE = [True, 3.5, float("nan"), "x" * 10_000, "<script>", b"1", {"a": 1}, object(), [None], [[1]], "1e400",
            "9" * 5000, ["#99"], -1, 10**30, 10**5000, endless(), [0, 0], "#1 #1"]


@each
def test_nonsense_is_named_as_such_and_never_raises(one: Exercise):
    desk = exercise(one.id)
    for answer in NONSENSE:
        assert desk.check(answer).outcome in ("malformed", "wrong"), type(answer)
    assert desk.check(Hostile()).outcome in ("crashed", "malformed")
    assert desk.check([Hostile()]).outcome in ("crashed", "malformed")


def test_a_fault_of_the_exercise_itself_is_told_as_a_crash_and_costs_no_attempt(monkeypatch):
    one = CATALOGUE["second-turn"]
    monkeypatch.setitem(CATALOGUE, one.id, replace(one, answer=lambda params: 1 / 0))
    assert exercise(one.id).check("5").outcome == "crashed"
    assert exercise(one.id).record["attempts"] == []


@pytest.mark.parametrize(("name", "ways"), [
    ("second-turn", [lambda n: f" {n} tokens ", lambda n: float(n), lambda n: str(n)]),
    ("free-order", [lambda ids: " ".join(f"#{i}" for i in ids), lambda ids: ", ".join(map(str, ids)), tuple, str,
                    lambda ids: [f"#{i}" for i in ids]]),
    ("give-way", [str.lower, lambda key: f"[{key}]", lambda key: f"request {key}"]),
])
def test_an_answer_may_be_written_in_any_sensible_way(name: str, ways: list[Any]):
    desk = exercise(name)
    right = desk.exercise.answer(desk.params)
    for way in ways:
        assert desk.check(way(right)).outcome == "correct"


def test_numpy_numbers_are_numbers():
    import numpy as np

    desk = exercise("second-turn")
    assert desk.check(np.int64(desk.exercise.answer(desk.params))).outcome == "correct"
    order = exercise("free-order")
    assert order.check(np.array(order.exercise.answer(order.params))).outcome == "correct"


def test_an_unknown_name_gets_a_suggestion():
    with pytest.raises(LookupError, match='did you mean "free-order"'):
        exercise("free_ordre")
    with pytest.raises(LookupError, match="give-way, free-order, second-turn"):
        exercise("zzz")


def test_exercises_load_no_torch():
    code = ("import sys; from nanovllm_edu.exercises import exercise; exercise('free-order').check([1]); "
            "print([m for m in ('torch', 'transformers', 'anywidget') if m in sys.modules])")
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True,
                          ).stdout.strip() == "[]"
