"""All exercises of the course, by id."""

from __future__ import annotations

import difflib

from ..errors import NanoVLLMError
from .desk import Desk
from .exercise import Exercise
from .lab00 import EXERCISES as LAB_00

CATALOGUE: dict[str, Exercise] = {exercise.id: exercise for exercise in LAB_00}


class UnknownExerciseError(NanoVLLMError, LookupError):
    """There is no exercise of this id."""


def exercise(name: str) -> Desk:
    """The exercise of this id, with the learner's own numbers.

    Raises UnknownExerciseError, with the nearest id, when there is none.
    """
    return Desk(find(name))


def find(name: str) -> Exercise:
    """The exercise itself. Raises UnknownExerciseError."""
    if isinstance(name, str) and name in CATALOGUE:
        return CATALOGUE[name]
    close = difflib.get_close_matches(str(name).casefold(), CATALOGUE, n=1, cutoff=0.5)
    hint = f'did you mean "{close[0]}"?' if close else f"there are: {', '.join(CATALOGUE)}"
    raise UnknownExerciseError(f"no exercise is called {name!r}: {hint}")
