"""What was done so far, and how to begin again: for the command line and for the labs' last cells."""

from __future__ import annotations

import html
from dataclasses import dataclass

from .catalogue import CATALOGUE, find
from .desk import is_solved, reset_in
from .store import record_of, store


@dataclass(frozen=True)
class Line:
    """One exercise in the table. state: "solved", "shown" (revealed), "tried" or "new"."""

    id: str
    lab: str
    title: str
    state: str
    attempts: int
    hints: int


@dataclass(frozen=True)
class Progress:
    """All exercises with what was done; prints as a table."""

    lines: tuple[Line, ...]
    path: str
    notice: str = ""

    @property
    def solved(self) -> int:
        return sum(line.state == "solved" for line in self.lines)

    def __str__(self) -> str:
        rows = [f"  {line.lab}  {line.id:<14} {line.state:<7} {line.attempts:>3} answers {line.hints:>2} hints"
                for line in self.lines]
        head = f"{self.solved} of {len(self.lines)} exercises solved."
        return "\n".join([head, *rows, f"Kept in {self.path}", *([self.notice] if self.notice else [])])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        signs = {"solved": "✓ solved", "shown": "answer shown", "tried": "tried", "new": "—"}
        rows = "".join(
            f"<tr><td>{html.escape(line.lab)}</td><td style='text-align:left'>{html.escape(line.title)}</td>"
            f"<td>{signs[line.state]}</td><td>{line.attempts}</td><td>{line.hints}</td></tr>" for line in self.lines)
        notice = f"<p>{html.escape(self.notice)}</p>" if self.notice else ""
        return (f"<p><b>{self.solved} of {len(self.lines)}</b> exercises solved.</p><table><thead><tr><th>lab</th>"
                "<th style='text-align:left'>exercise</th><th>state</th><th>answers</th><th>hints</th></tr></thead>"
                f"<tbody>{rows}</tbody></table><p><small>Kept in {html.escape(self.path)}</small></p>{notice}")


def progress(lab: str | None = None) -> Progress:
    """What was done, of the whole course or of one lab ("00")."""
    where = store()
    document = where.read()
    lines = []
    for exercise in CATALOGUE.values():
        if lab is not None and exercise.lab != lab:
            continue
        record = record_of(document, exercise.id)
        state = ("solved" if is_solved(record) else "shown" if record["revealed"] else
                 "tried" if record["attempts"] else "new")
        lines.append(Line(exercise.id, exercise.lab, exercise.title, state, len(record["attempts"]), record["hints"]))
    return Progress(tuple(lines), str(where.path), where.take_notice())


def reset_progress(name: str | None = None) -> Progress:
    """Put one exercise back to new, or all of them. Raises UnknownExerciseError."""
    for exercise in [find(name)] if name is not None else list(CATALOGUE.values()):
        reset_in(store().change, exercise.id)
    return progress()
