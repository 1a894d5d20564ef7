"""One learner at one exercise: what ``exercise("free-order")`` gives. Answers are judged here and written down."""

from __future__ import annotations

import html
from dataclasses import replace
from random import Random
from typing import Any

from .exercise import Exercise, Params, Question
from .grading import Result, grade
from .kinds import Malformed
from .store import Document, now, record_of, store

ATTEMPTS_BEFORE_REVEAL = 2
"""Different wrong answers that someone has to give before the right one is shown."""
MAX_ATTEMPTS_KEPT = 50


class Desk:
    """``check(answer)``, ``hint()``, ``reveal()``, ``reset()``, ``widget()``; shown by itself, it prints the question.

    Nothing here raises for what a learner answers. Progress is read anew each time, so two notebooks agree.
    """

    def __init__(self, exercise: Exercise) -> None:
        self.exercise = exercise

    # --- to read ---------------------------------------------------------------------------------------------------

    @property
    def params(self) -> Params:
        """This learner's own numbers."""
        return draw(self.exercise, store().read())

    @property
    def question(self) -> Question:
        """The question with this learner's numbers in it."""
        return self.exercise.ask(self.params)

    @property
    def record(self) -> dict[str, Any]:
        """What is written down of this exercise: variant, attempts, hints, revealed."""
        return record_of(store().read(), self.exercise.id)

    def __repr__(self) -> str:
        return f"{self.exercise.title}\n\n{self.question.text()}\n\nAnswer: {self.exercise.kind.how}. {self._call()}"

    def _repr_html_(self) -> str:
        return static_html(self.exercise, self.question, self._call())

    def _call(self) -> str:
        return f'exercise("{self.exercise.id}").check(your answer)'

    # --- to do -----------------------------------------------------------------------------------------------------

    def check(self, answer: Any = None) -> Result:
        """Judge an answer and write it down. A wrong one never raises."""
        where = store()
        result = grade(self.exercise, draw(self.exercise, where.read()), answer)
        if result.outcome in ("correct", "wrong"):
            plain = self.exercise.kind.parse(answer, self.question)
            entry = {"time": now(), "answer": plain, "outcome": result.outcome, "misconception": result.misconception}

            def write(document: Document) -> None:
                attempts = record_of(document, self.exercise.id)["attempts"]
                attempts.append(entry)
                del attempts[:-MAX_ATTEMPTS_KEPT]

            where.change(write)
        return replace(result, notice=where.take_notice())

    def hint(self) -> Result:
        """The next hint; after the last one, all of them again."""
        def write(document: Document) -> None:
            record = record_of(document, self.exercise.id)
            record["hints"] = min(record["hints"] + 1, len(self.exercise.hints))

        where = store()
        taken = record_of(where.read(), self.exercise.id)["hints"]
        if taken == len(self.exercise.hints):
            shown = "\n".join(f"{i}. {hint}" for i, hint in enumerate(self.exercise.hints, 1))
            return Result("note", f"These were all the hints:\n{shown}", notice=where.take_notice())
        where.change(write)
        return Result("note", f"Hint {taken + 1} of {len(self.exercise.hints)}: {self.exercise.hints[taken]}",
                      notice=where.take_notice())

    def reveal(self) -> Result:
        """The right answer and why, once it was tried in earnest."""
        where = store()
        document = where.read()
        record = record_of(document, self.exercise.id)
        if not may_reveal(record):
            missing = ATTEMPTS_BEFORE_REVEAL - len(different_wrong(record))
            return Result("note", f"The answer is shown after {ATTEMPTS_BEFORE_REVEAL} different wrong ones; "
                                  f"{missing} to go. Take a hint, or try one: a wrong answer costs nothing and is "
                                  "told what misled it.", notice=where.take_notice())
        where.change(lambda document: record_of(document, self.exercise.id).update(revealed=True))
        params = draw(self.exercise, document)
        answer = self.exercise.kind.show(self.exercise.answer(params))
        return Result("note", f"The answer: {answer}. {self.exercise.explain(params)} reset() draws new numbers to "
                              "try it again.", notice=where.take_notice())

    def reset(self) -> Result:
        """Forget attempts, hints and reveal of this exercise, and draw new numbers."""
        where = store()
        reset_in(where.change, self.exercise.id)
        return Result("note", "This exercise is new again, with other numbers.", notice=where.take_notice())

    def widget(self) -> Any:
        """The exercise as a form with an instant check (an anywidget)."""
        from .card import ExerciseCard

        return ExerciseCard(self)


def draw(exercise: Exercise, document: Document) -> Params:
    """The learner's parameters, the same ones until a reset."""
    variant = document["exercises"].get(exercise.id, {}).get("variant", 0)
    return exercise.draw(Random(f"{document['learner']}:{exercise.id}:{variant}"))


def different_wrong(record: dict[str, Any]) -> list[Any]:
    """The wrong answers of a record, each once."""
    found: list[Any] = []
    for attempt in record["attempts"]:
        if attempt["outcome"] == "wrong" and attempt.get("answer") not in found:
            found.append(attempt.get("answer"))
    return found


def is_solved(record: dict[str, Any]) -> bool:
    return any(attempt["outcome"] == "correct" for attempt in record["attempts"])


def may_reveal(record: dict[str, Any]) -> bool:
    return record["revealed"] or is_solved(record) or len(different_wrong(record)) >= ATTEMPTS_BEFORE_REVEAL


def reset_in(change: Any, exercise_id: str) -> None:
    """Put one exercise back to new in the store that ``change`` writes to."""
    def edit(document: Document) -> None:
        variant = record_of(document, exercise_id)["variant"]
        document["exercises"][exercise_id] = {"variant": variant + 1, "attempts": [], "hints": 0, "revealed": False}

    change(edit)


def last_answer(exercise: Exercise, question: Question, record: dict[str, Any]) -> Any:
    """The latest answer that was written down, if it can still be read; else None."""
    if not record["attempts"]:
        return None
    try:
        return exercise.kind.parse(record["attempts"][-1].get("answer"), question)
    except Malformed:
        return None


def static_html(exercise: Exercise, question: Question, call: str) -> str:
    """The question without a form: for a page whose kernel is gone, for a printout, for a screen without widgets."""
    e = html.escape
    border = "1px solid var(--jp-border-color1, #98a1ae)"
    parts = [f'<div style="border:{border};border-radius:8px;padding:8px 14px;margin:4px 0"><b>{e(exercise.title)}</b>']
    parts += [f"<p>{e(paragraph)}</p>" for paragraph in question.paragraphs]
    for row in question.figure:
        chips = " ".join(f'<code style="border:{border};border-radius:4px;padding:1px 5px">{e(chip.text)}'
                         f'{f" <small>{e(chip.note)}</small>" if chip.note else ""}</code>' for chip in row.chips)
        parts.append(f"<div>{e(row.label)}: {chips or f'<i>{e(row.empty)}</i>'}</div>")
    parts += [f"<div><code>{e(key)}</code> {e(text)}</div>" for key, text in question.options]
    parts.append(f"<p><small>The answer is {e(exercise.kind.how)}. To give it: <code>{e(call)}</code></small></p>")
    return "".join(parts) + "</div>"
