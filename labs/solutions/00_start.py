"""How a learner would solve lab 00's exercises: from the text and the figure alone, without the engine.

The tests hold these answers equal to the engine's.
"""

from __future__ import annotations

import re
from typing import Any


def blocks(question: Any, label: str) -> list[tuple[int, str]]:
    """The blocks of the figure's row whose label begins so: (id, note)."""
    row = next(row for row in question.figure if row.label.startswith(label))
    return [(int(chip.text.removeprefix("#")), chip.note) for chip in row.chips]


def give_way(question: Any) -> str:
    """The newest of the running requests."""
    return re.search(r"in the order ([A-Z, ]+)\.", question.paragraphs[0])[1].split(", ")[-1]


def free_order(question: Any) -> list[int]:
    """What stood there, then the blocks that nobody else holds, from the last to the first."""
    leaver = re.search(r"Now (\w) finishes", question.paragraphs[0])[1]
    own = [block_id for block_id, note in blocks(question, f"{leaver}'s block table") if note == "×1"]
    return [block_id for block_id, _ in blocks(question, "free queue")] + own[::-1]


def second_turn(question: Any) -> int:
    """Whole blocks of prompt and answer."""
    size, prompt, answer = map(int, re.findall(r"\d+", question.paragraphs[0]))
    return (prompt + answer) // size * size


SOLUTIONS = {"give-way": give_way, "free-order": free_order, "second-turn": second_turn}
