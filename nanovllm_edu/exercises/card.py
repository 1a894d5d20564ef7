"""The form of one exercise in a notebook. It shows what ``Desk`` says and decides nothing itself.

Trait ``view``: the whole document that the browser draws (see ``_view``), always assigned anew. Messages from the
browser: {"action": "check", "answer": ...}, {"action": "hint"}, {"action": "reveal"}, {"action": "reset"}.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anywidget
import traitlets

from .desk import Desk, is_solved, last_answer, may_reveal, static_html
from .grading import Result, grade

_STATIC = Path(__file__).resolve().parent / "static"


class ExerciseCard(anywidget.AnyWidget):
    """Question, figure, form, verdict, hints; keyboard and screen reader included."""

    _esm = (_STATIC / "exercise.js").read_text("utf-8")
    _css = (_STATIC / "exercise.css").read_text("utf-8")
    view = traitlets.Dict().tag(sync=True)

    def __init__(self, desk: Desk) -> None:
        self.desk = desk
        self._serial = 0
        super().__init__(view=self._view(self._last_verdict()))
        self.on_msg(self._on_message)

    def _on_message(self, widget: Any, content: Any, buffers: Any) -> None:
        """One message from the browser. Nothing printed or raised here would be seen, so all of it goes to the view."""
        try:
            content = content if isinstance(content, dict) else {}
            verdict = {key: self.view[key] for key in ("outcome", "lines")}
            view = self._view(self._act(content))
            # A hint joins the list of hints; the verdict on the last answer stays where it is.
            self.view = {**view, **verdict} if content.get("action") == "hint" else view
        except Exception as error:
            self._serial += 1
            self.view = {**self.view, "serial": self._serial, "outcome": "crashed",
                         "lines": [f"{type(error).__name__}: {error}", "Run this cell again; if that does not help, "
                                   "please report it."]}

    def _act(self, content: dict[str, Any]) -> Result:
        action = content.get("action")
        if action == "check":
            return self.desk.check(content.get("answer"))
        if action in ("hint", "reveal", "reset"):
            return getattr(self.desk, action)()
        return Result("crashed", f"the page sent {action!r}, which this version does not know; reload the page.")

    def _last_verdict(self) -> Result:
        """After a restart: the verdict on the latest answer, judged again."""
        answer = last_answer(self.desk.exercise, self.desk.question, self.desk.record)
        return Result("note", "") if answer is None else grade(self.desk.exercise, self.desk.params, answer)

    def _view(self, result: Result) -> dict[str, Any]:
        """``key`` changes with the question; ``serial`` with every answer to a message. ``lines`` is the verdict."""
        self._serial += 1
        exercise, question, record = self.desk.exercise, self.desk.question, self.desk.record
        hints = exercise.hints[:record["hints"]]
        return {
            "key": f"{exercise.id}:{record['variant']}", "serial": self._serial, "id": exercise.id,
            "title": exercise.title, "kind": exercise.kind.name, "how": exercise.kind.how,
            "unit": getattr(exercise.kind, "unit", ""), "paragraphs": list(question.paragraphs),
            "figure": [{"label": row.label, "empty": row.empty, "chips": [[c.text, c.note] for c in row.chips]}
                       for row in question.figure],
            "items": list(question.items), "options": [list(option) for option in question.options],
            "answer": last_answer(exercise, question, record), "outcome": result.outcome,
            "lines": [line for line in result.lines() if line.strip(" →")], "hints": list(hints),
            "hints_left": len(exercise.hints) - len(hints), "attempts": len(record["attempts"]),
            "solved": is_solved(record), "revealed": record["revealed"], "may_reveal": may_reveal(record),
        }

    def _repr_mimebundle_(self, **kwargs: Any) -> Any:
        """The widget, with the question as plain HTML beside it for where no widget can live."""
        bundle = super()._repr_mimebundle_(**kwargs)
        if bundle is None:
            return None
        data, metadata = bundle if isinstance(bundle, tuple) else (bundle, {})
        desk = self.desk
        still = static_html(desk.exercise, desk.question, f'exercise("{desk.exercise.id}").check(your answer)')
        return {**data, "text/plain": repr(desk), "text/html": still}, metadata
