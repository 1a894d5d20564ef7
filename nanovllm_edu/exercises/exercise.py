"""What an exercise is: data, and small functions of the learner's own parameters.

``draw`` makes the parameters, ``ask`` the question, ``answer`` the right answer, which it gets by running the engine's
own ledger and never from a constant. Every misconception says which wrong answer it would lead to for the same
parameters, so that a wrong answer can be met by its cause. The idea of exercises as data is rustlings'; that of
outcomes by kind is learntools'.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from .kinds import Kind

Params = dict[str, Any]
"""Plain JSON-able values: the progress store and a teacher's export carry them."""


@dataclass(frozen=True)
class Chip:
    """One block in a figure: its text ("#3") and a note under it ("×2"), which may be empty."""

    text: str
    note: str = ""


@dataclass(frozen=True)
class Row:
    """One line of a figure: a label and blocks in order."""

    label: str
    chips: tuple[Chip, ...]
    empty: str = "empty"


@dataclass(frozen=True)
class Question:
    """What the learner reads: paragraphs, a figure of rows, and what an answer is made of.

    ``items``: the block ids to choose from (kind "order"). ``options``: pairs of key and text (kind "choice").
    """

    paragraphs: tuple[str, ...]
    figure: tuple[Row, ...] = ()
    items: tuple[int, ...] = ()
    options: tuple[tuple[str, str], ...] = ()

    def text(self) -> str:
        """The question in plain text."""
        lines = list(self.paragraphs)
        for row in self.figure:
            chips = " ".join(f"{chip.text} ({chip.note})" if chip.note else chip.text for chip in row.chips)
            lines.append(f"  {row.label}: {chips or row.empty}")
        lines += [f"  [{key}] {text}" for key, text in self.options]
        return "\n".join(lines)


@dataclass(frozen=True)
class Misconception:
    """A way to be wrong: its name, the answers it leads to, and what to tell someone who gave one of them.

    The message names the idea that misleads and never the right answer; it has no numbers in it.
    """

    name: str
    wrong: Callable[[Params], Sequence[Any]]
    message: str


@dataclass(frozen=True)
class Exercise:
    """One exercise of the course; see the module's docstring. ``hints`` go from a nudge to nearly there."""

    id: str
    lab: str
    title: str
    kind: Kind
    draw: Callable[[Random], Params]
    ask: Callable[[Params], Question]
    answer: Callable[[Params], Any]
    misconceptions: tuple[Misconception, ...]
    hints: tuple[str, str, str]
    explain: Callable[[Params], str]
    checked: str
    not_checked: str
    otherwise: str = "Not this one, and none of the usual slips either. Go through it block by block."
    tags: tuple[str, ...] = field(default=())


def wrong_answers(exercise: Exercise, params: Params) -> dict[str, list[Any]]:
    """For these parameters: misconception to the wrong answers that only it leads to.

    An answer that happens to be right, or that an earlier misconception leads to as well, is left out; so is a
    misconception with nothing left.
    """
    taken = [exercise.answer(params)]
    found: dict[str, list[Any]] = {}
    for misconception in exercise.misconceptions:
        for answer in misconception.wrong(params):
            if answer not in taken:
                taken.append(answer)
                found.setdefault(misconception.name, []).append(answer)
    return found
