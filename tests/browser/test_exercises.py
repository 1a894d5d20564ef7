"""The exercises' forms, worked as a learner would: wrong answers, hints, right ones, by keyboard, after a restart."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

FORMS = ["from nanovllm_edu.exercises import exercise, reset_progress", "shown = reset_progress()",
         *(f'exercise("{name}").widget()' for name in ("give-way", "free-order", "second-turn"))]


def answer(book: Any, name: str) -> Any:
    return book.kernel.ask(f'(lambda d: d.exercise.answer(d.params))(exercise("{name}"))')


def wrong(book: Any, name: str) -> list[Any]:
    """A wrong answer for each misconception."""
    book.kernel.run("from nanovllm_edu.exercises.exercise import wrong_answers")
    return book.kernel.ask(f'(lambda d: [a[0] for a in wrong_answers(d.exercise, d.params).values()])'
                             f'(exercise("{name}"))')


class Form:
    def __init__(self, book: Any, name: str) -> None:
        self.selector = f'[data-exercise="{name}"]'
        self.root = book.page.locator(self.selector)
        self.root.wait_for()

    def press(self, action: str) -> None:
        """Press a button and wait until Python has answered."""
        serial = self.root.get_attribute("data-serial")
        self.root.locator(f'[data-action="{action}"]').click()
        self.root.page.wait_for_function("([selector, old]) => document.querySelector(selector).dataset.serial !== old",
                                         arg=[self.selector, serial])

    def hand_in(self, value: Any) -> str:
        """Fill the form, press Check; the outcome."""
        kind = self.root.get_attribute("data-kind")
        if kind == "numeric":
            self.root.locator('[data-input="answer"]').fill(str(value))
        elif kind == "choice":
            self.root.locator(f'[data-option="{value}"]').check()
        else:
            self.root.get_by_role("button", name="Clear").click()
            for block_id in value:
                self.root.locator(f'[data-item-id="{block_id}"]').click()
        self.press("check")
        return self.root.get_attribute("data-outcome")

    @property
    def verdict(self) -> str:
        return self.root.locator(".nve-ex-verdict").inner_text()


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_from_wrong_to_right(notebook: Callable[..., Any], theme: str):
    book = notebook(FORMS, theme=theme, height=1800)
    book.run_all()
    assert book.errors() == []
    for name in ("give-way", "free-order", "second-turn"):
        form = Form(book, name)
        form.press("check")
        assert form.root.get_attribute("data-outcome") == "not_attempted"
        first, second = wrong(book, name)[:2]
        assert form.hand_in(first) == "wrong"
        told = form.verdict
        form.press("hint")
        assert form.verdict == told and form.root.locator(".nve-ex-hints li").count() == 1
        assert form.root.locator('[data-action="reveal"]').is_disabled()
        assert form.hand_in(second) == "wrong" and form.verdict != told
        assert form.root.locator('[data-action="reveal"]').is_enabled()
        assert form.hand_in(answer(book, name)) == "correct"
        assert "solved" in form.root.locator(".nve-ex-pill").inner_text()
    assert book.kernel.ask("__import__('nanovllm_edu.exercises', fromlist=['progress']).progress('00').solved") == 3


def test_the_order_by_keyboard_alone_and_no_key_reaches_the_notebook(notebook: Callable[..., Any]):
    book = notebook(FORMS, height=1800)
    book.run_all()
    form, right, cells = Form(book, "free-order"), answer(book, "free-order"), book.cells()
    swapped = [right[1], right[0], *right[2:]]
    for block_id in swapped:
        form.root.locator(f'[data-item-id="{block_id}"]').focus()
        book.page.keyboard.press("Enter")
    form.root.locator("[data-answer-id]").first.focus()
    for key in ("b", "a", "d", "d", "ArrowRight"):
        book.page.keyboard.press(key)
    assert [int(chip.get_attribute("data-answer-id")) for chip in form.root.locator("[data-answer-id]").all()] == right
    assert book.cells() == cells
    book.page.keyboard.press("Enter")
    form.root.page.wait_for_selector('[data-exercise="free-order"][data-outcome="correct"]')


def test_new_numbers_and_a_form_that_is_made_again_remember(notebook: Callable[..., Any]):
    book = notebook(FORMS, height=1800)
    book.run_all()
    form = Form(book, "second-turn")
    before = form.root.locator("p").all_inner_texts()
    form.press("reset")
    assert form.root.locator("p").all_inner_texts() != before
    assert form.root.evaluate("e => e.contains(document.activeElement)"), "a key would go to the notebook"
    right = answer(book, "second-turn")
    assert form.hand_in(right) == "correct"
    book.kernel.run("again = exercise('second-turn').widget()")
    assert book.kernel.ask("[again.view['answer'], again.view['outcome']]") == [right, "correct"]
