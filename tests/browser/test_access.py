"""The control room for everyone: by keyboard alone, by axe's rules, at the width of half a screen."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe

from tests.browser.jupyter import PANEL, Notebook
from tests.browser.layout import overflow, overlaps
from tests.browser.view import LEDGER, View, check

Room = Callable[..., tuple[Notebook, View]]
SAME = "The river rose for three days, and on the fourth morning the people of the lower town went to see "

FOCUSED = """() => {
  const node = document.activeElement, view = node.closest('[data-nve-view]');
  if (!view) return null;
  const {action, input, blockId, queueId, logical} = node.dataset;
  return action ?? input ?? (blockId && `block ${blockId}`) ?? (queueId && `queue ${queueId}`)
    ?? (logical && `cell ${logical}`) ?? node.className;
}"""


def focused(page: Any) -> str | None:
    """What of the view has the focus, in the contract's names."""
    return page.evaluate(FOCUSED)


def tab_to(page: Any, name: str, limit: int = 60, key: str = "Tab") -> None:
    """Press Tab until `name` has the focus."""
    seen = []
    for _ in range(limit):
        page.keyboard.press(key)
        seen.append(focused(page))
        if seen[-1] == name:
            return
    raise AssertionError(f"{key} did not lead to {name!r}, but to {seen}")


def test_by_keyboard_alone(control_room: Room) -> None:
    book, view = control_room()
    page = book.page
    keyboard = page.keyboard
    view.root.focus()
    tab_to(page, "prompt")
    keyboard.type(SAME + "the bridge.")
    tab_to(page, "raw")
    keyboard.press("Space")
    tab_to(page, "prompt", key="Shift+Tab")
    for key, place in ("Enter", ""), ("Enter", "step"), ("Space", ""):
        if place:
            tab_to(page, place, key="Shift+Tab")
        keyboard.press(key)
        view.sent += 1
        check(book, view)
        assert view.frame > 0
    assert book.kernel.ask("llm.scheduler.step") == 2

    # Time: on the sentence, which says so.
    view.root.locator(".nve-say").focus()
    last = view.frame
    for key, frame in [("ArrowLeft", last - 1), ("ArrowLeft", last - 2), ("ArrowRight", last - 1), ("Home", 0),
                       ("ArrowRight", 1), ("End", last)]:
        keyboard.press(key)
        view.until_frame(frame)
    keyboard.press("Shift+ArrowLeft")
    view.until(lambda: view.frame < last - 2, "the step before")
    keyboard.press("Shift+ArrowRight")
    view.until_frame(last)
    assert view.ledger() == book.kernel.ask(LEDGER)
    keyboard.press("Home")
    keyboard.press("Space")
    view.until(lambda: view.frame > 0, "playback")
    keyboard.press("Space")

    # The pool is one tab stop; arrows move inside it.
    keyboard.press("End")
    view.until_frame(last)
    tab_to(page, "block 0")
    for key, block in [("ArrowRight", 1), ("ArrowRight", 2), ("ArrowLeft", 1), ("End", 15), ("Home", 0)]:
        keyboard.press(key)
        assert focused(page) == f"block {block}"
    keyboard.press("ArrowDown")
    below = int(focused(page).split()[1])
    assert below > 0
    keyboard.press("ArrowUp")
    assert focused(page) == "block 0"
    keyboard.press("Enter")
    assert view.root.locator("[data-block-id='0']").get_attribute("aria-selected") == "true"
    tab_to(page, "cell 0")
    keyboard.press("ArrowRight")
    assert focused(page) == "cell 1"


def test_no_key_reaches_the_notebook(control_room: Room) -> None:
    book, view = control_room()
    view.submit(SAME, raw=True, max_tokens=3)
    view.press("step")
    check(book, view)
    sources = "nodes => nodes.map(n => n.querySelector('.cm-content').textContent)"
    before = book.page.eval_on_selector_all(f"{PANEL} .jp-CodeCell", sources)
    for place in ("[data-block-id='3']", "[data-queue-id]", "[data-physical]", ".nve-say", "[data-action=step]", ""):
        target = view.root.locator(place).first if place else view.root
        target.focus()
        for key in ("b", "d", "d", "a", "x", "z", "m", "y", "Shift+M", "c", "v", "ArrowUp", "ArrowDown", "j", "k"):
            book.page.keyboard.press(key)
        assert view.root.evaluate("root => root.contains(document.activeElement)"), f"the focus left from {place}"
        assert book.page.eval_on_selector_all(f"{PANEL} .jp-CodeCell", sources) == before, f"from {place}"
    assert book.cells() == len(before)
    box = view.root.locator("[data-input=prompt]")
    box.focus()
    book.page.keyboard.type("bad day, x")
    assert box.input_value() == "bad day, x" and book.cells() == len(before)


@pytest.fixture
def busy_room(control_room: Room) -> Callable[..., tuple[Notebook, View]]:
    """open(width) → a room with all kinds of blocks, requests in all states, and an error."""

    def open_room(**options: Any) -> tuple[Notebook, View]:
        book, view = control_room(blocks=14, **options)
        view.submit("A short one", raw=True, max_tokens=2)
        for _ in range(2):
            view.press("step")
            check(book, view)
        for end in ("the bridge of the lower town.", "what was left of the mill and the old garden."):
            view.submit(SAME + end, raw=True, max_tokens=60)
            view.press("step")
            check(book, view)
        view.submit("The capital of France is a city on a river, and " * 8, raw=True, max_tokens=5)
        view.press("step")
        check(book, view)
        view.submit("too long " * 300, raw=True)
        view.until(lambda: view.root.get_by_role("alert").is_visible(), "the error")
        return book, view

    return open_room


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_nothing_serious(busy_room: Callable[..., tuple[Notebook, View]], theme: str) -> None:
    book, view = busy_room(theme=theme)
    for _ in range(2):  # at the newest step, and in the past
        results = Axe().run(book.page, context="[data-nve-view]").response
        grave = [rule for rule in results["violations"] if rule["impact"] in ("serious", "critical")]
        found = [f"{rule['id']} ({rule['impact']}): {node['target']} {node['failureSummary']}"
                 for rule in grave for node in rule["nodes"]]
        assert found == []
        assert {"color-contrast", "button-name", "label"} <= {rule["id"] for rule in results["passes"]}
        view.press("step-back")


def test_nothing_sticks_out_or_lies_over_something(busy_room: Callable[..., tuple[Notebook, View]]) -> None:
    book, view = busy_room(width=900)
    for width in (900, 1280, 1600):
        book.page.set_viewport_size({"width": width, "height": 1000})
        for _ in range(2):
            assert overflow(view.root) == []
            assert overlaps(view.root) == []
            frame = view.frame
            view.press("step-back")
            view.until(lambda frame=frame: view.frame < frame, "the step before")

    # The measures do see what is wrong: a text pushed over its neighbours, a panel wider than the view.
    note = view.root.locator("[data-panel=queue] .nve-note")
    note.evaluate("node => { node.style.cssText = 'position: relative; top: -40px'; }")
    assert any("queue" in found for found in overlaps(view.root))
    view.root.locator("[data-panel=tables]").evaluate("node => { node.style.width = '3000px'; }")
    assert overflow(view.root) != []
