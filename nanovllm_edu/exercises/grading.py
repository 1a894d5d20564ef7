"""From an answer to a verdict. Pure: no store, no view, and never an exception for what a learner hands in."""

from __future__ import annotations

import html
from dataclasses import dataclass
from typing import Any

from .exercise import Exercise, Params, wrong_answers
from .kinds import Malformed, is_blank

OUTCOMES = ("correct", "wrong", "not_attempted", "malformed", "crashed")
_SIGNS = {"correct": "✓", "wrong": "✗", "not_attempted": "○", "malformed": "?", "crashed": "!", "note": "→"}
_WORDS = {"correct": "Right.", "wrong": "Not yet.", "not_attempted": "Not answered yet.",
          "malformed": "Not readable as an answer.", "crashed": "The check itself failed.", "note": ""}
_COLOURS = {"correct": "#1a7f4b", "wrong": "#b3261e"}


@dataclass(frozen=True)
class Result:
    """The verdict on one answer, or (outcome "note") something told beside: a hint, an answer revealed.

    outcome: one of OUTCOMES, or "note". message: what to tell the learner. misconception: the name of the one that
    leads to this answer, else "". checked / not_checked: what the verdict rests on. notice: about the progress file.
    """

    outcome: str
    message: str
    misconception: str = ""
    checked: str = ""
    not_checked: str = ""
    notice: str = ""

    def lines(self) -> list[str]:
        """The verdict as sentences, the headline first."""
        head = " ".join(part for part in (_SIGNS[self.outcome], _WORDS[self.outcome], self.message) if part)
        lines = [head]
        if self.checked and self.outcome in ("correct", "wrong"):
            lines.append(f"Checked: {self.checked}. Not checked: {self.not_checked}.")
        return [*lines, self.notice] if self.notice else lines

    def __str__(self) -> str:
        return "\n".join(self.lines())

    __repr__ = __str__

    def _repr_html_(self) -> str:
        colour = _COLOURS.get(self.outcome, "var(--jp-border-color1, #98a1ae)")
        head, *rest = (html.escape(line) for line in self.lines())
        small = "".join(f'<div style="opacity:.75;font-size:.9em">{line}</div>' for line in rest)
        return (f'<div role="status" style="border-left:4px solid {colour};padding:4px 10px;margin:4px 0">'
                f'<div style="white-space:pre-wrap">{head}</div>{small}</div>')


def grade(exercise: Exercise, params: Params, answer: Any) -> Result:
    """Judge an answer for these parameters."""
    try:
        if is_blank(answer):
            return Result("not_attempted", f"The answer is {exercise.kind.how}.")
        try:
            value = exercise.kind.parse(answer, exercise.ask(params))
        except Malformed as problem:
            return Result("malformed", str(problem))
        return _judge(exercise, params, value)
    except Exception as error:  # an answer may be any object, and an exercise may have a fault
        return Result("crashed", f"{type(error).__name__} came up while the answer was looked at, so nothing was "
                                 f"checked. The answer is {exercise.kind.how}.")


def _judge(exercise: Exercise, params: Params, value: Any) -> Result:
    about = {"checked": exercise.checked, "not_checked": exercise.not_checked}
    if value == exercise.answer(params):
        return Result("correct", exercise.explain(params), **about)
    for name, answers in wrong_answers(exercise, params).items():
        if value in answers:
            message = next(m.message for m in exercise.misconceptions if m.name == name)
            return Result("wrong", message, misconception=name, **about)
    return Result("wrong", exercise.otherwise, **about)
