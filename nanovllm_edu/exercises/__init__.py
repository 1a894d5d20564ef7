"""Questions that check themselves: ``exercise("free-order").widget()``, or ``.check(answer)`` in a cell.

Exercises are data (``lab00.py`` …) and are judged by ``grading``; ``desk`` is one learner at one exercise; ``store``
keeps what was done. Right answers come from running the engine's ledger (``standin``), so nothing here loads torch.
"""

from .catalogue import CATALOGUE, UnknownExerciseError, exercise
from .data import UnknownDataError, data
from .grading import OUTCOMES, Result
from .progress import Progress, progress, reset_progress
from .store import progress_path

__all__ = ["CATALOGUE", "OUTCOMES", "Progress", "Result", "UnknownDataError", "UnknownExerciseError", "data",
           "exercise", "progress", "progress_path", "reset_progress"]
