"""The control room under a learner's hands: commands, errors, strange text, two views, a kernel that goes away."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import nbformat
import pytest

from tests.browser.jupyter import Notebook
from tests.browser.view import FRAMES, WATCH, View, check, finish

Room = Callable[..., tuple[Notebook, View]]
SAME = "The river rose for three days, and on the fourth morning the people of the lower town went to see "


def test_pause_abort_reset(control_room: Room) -> None:
    book, view = control_room()
    assert view.status == "paused" and view.frame == 0
    assert view.button("pause").is_disabled() and view.button("abort").is_disabled()
    for end in ("the bridge.", "what was left of the mill.", "the church."):
        view.submit(SAME + end, raw=True, max_tokens=150)
    check(book, view)
    view.press("run")
    view.until_status("running")
    assert view.button("step").is_disabled() and not view.button("pause").is_disabled()
    view.until(lambda: view.frame > 60, "a running engine's events")
    view.press("pause")
    view.until_status("paused")
    check(book, view)
    stopped = view.frame
    view.page.wait_for_timeout(300)
    assert view.frame == stopped == book.kernel.ask("len(room.trace.events)"), "paused is paused"

    # One alone, by the button on its card; then all that are left.
    view.root.get_by_role("button", name="Abort request B").click()
    view.sent += 1
    check(book, view)
    assert set(view.ledger()["tables"]) == {"0", "2"}
    view.press("abort")
    check(book, view)
    shown = view.ledger()
    assert shown["tables"] == {} and len(shown["queue"]) == 16
    assert {state for _, _, state, _ in shown["blocks"]} == {"free", "cached"}, "what was computed stays findable"
    view.press("reset")
    check(book, view)
    assert {state for _, _, state, _ in view.ledger()["blocks"]} == {"free"}

    # The engine takes new work after all that, also from a cell, and the view shows it.
    assert "Paris" in book.kernel.ask("llm.chat([{'role': 'user', 'content': 'What is the capital of France?'}], "
                                      "SamplingParams(temperature=0, max_tokens=12)).text")
    check(book, view)


def test_errors_are_shown_and_the_engine_goes_on(control_room: Room) -> None:
    book, view = control_room()
    alert = view.root.get_by_role("alert")
    view.submit("word " * 400, raw=True, max_tokens=8)  # for a pool of 256 tokens
    view.until(lambda: alert.is_visible(), "the error")
    assert "256" in alert.inner_text() and "401" in alert.inner_text()
    check(book, view)
    view.submit("   ")
    view.until(lambda: "prompt" in alert.inner_text().lower(), "the error of an empty prompt")
    view.submit("Hello there", raw=True, max_tokens=0)
    view.sent -= 1  # the browser itself refuses it, and says why
    assert view.root.locator("[data-input=max-tokens]").evaluate("box => box.validity.rangeUnderflow")
    check(book, view)
    kinds = book.kernel.ask("[type(event).__name__ for event in room.trace.events]")
    assert kinds == ["RequestRefused"], "nothing of it was added"

    view.submit("Hello there", raw=True, max_tokens=4)
    view.until(lambda: not alert.is_visible(), "the error to be gone")
    finish(book, view)
    assert view.root.locator(".nve-reply").last.inner_text().strip()


def test_text_is_text(control_room: Room) -> None:
    book, view = control_room()
    evil = """<img src=x onerror="alert('!')"><script>alert(1)</script><b>bold</b>"""
    view.submit(evil, raw=True, max_tokens=6)
    view.press("step")
    check(book, view)
    finish(book, view)
    assert evil in view.root.locator("[data-panel=chat]").inner_text()
    for tile in view.root.locator("[data-state=cached], [data-queue-id]").all()[:6]:
        tile.hover()
    view.press("step-back")
    view.root.locator("[data-panel=tables] [data-physical]").first.hover()
    assert view.root.locator("img, script, b:text-is('bold')").count() == 0
    # The still picture of the same frame, as a page without the widget would show it.
    still = book.kernel.ask("room.still()")
    found = book.page.evaluate("""html => {
        const box = document.createElement('div');
        document.body.append(box);
        box.innerHTML = html;
        const count = box.querySelectorAll('img, script').length;
        box.remove();
        return count;
    }""", still)
    book.page.wait_for_timeout(200)
    assert found == 0 and "img src" in still
    assert book.page.dialogs == []


def test_two_views_of_one_engine(control_room: Room) -> None:
    book, _ = control_room(WATCH, "other = watch(llm, panels=['queue', 'pool', 'tables', 'chat'])\nother")
    first = View(book.page.locator("[data-nve-view]").first, book)
    second = View(book.page.locator("[data-nve-view]").last, book, "other")
    shown = second.root.locator("[data-panel]").evaluate_all("panels => panels.map(panel => panel.dataset.panel)")
    assert sorted(shown) == ["chat", "pool", "queue", "tables"]
    first.submit(SAME + "the bridge.", raw=True, max_tokens=12)
    first.press("step")
    check(book, first)
    second.until_frame(first.frame)
    assert second.ledger() == first.ledger()

    # The one that looks at the past stays there, and says that there is more.
    first.press("step-back")
    first.until_frame(0)
    past = first.ledger()
    second.press("step")
    check(book, second)
    assert first.ledger() == past
    assert "newer event" in first.root.locator("[data-action=present]").inner_text()
    finish(book, second)
    assert first.ledger() == past
    first.press("present")
    first.until_frame(second.frame)
    assert first.ledger() == second.ledger()

    book.kernel.run("room.close()")  # one view goes, the other and the engine stay
    second.submit("Another", raw=True, max_tokens=3)
    second.press("step")
    check(book, second)


RECORD = f"""with record(llm) as trace:
    llm.generate(["{SAME}the bridge.", "{SAME}the mill."], SamplingParams(temperature=0, max_tokens=12))
    llm.generate("{SAME}what was left.", SamplingParams(temperature=0, max_tokens=20))
replay(trace)"""


def test_a_replay_shows_every_frame_of_its_trace(control_room: Room) -> None:
    book, view = control_room(RECORD, blocks=10)
    frames = book.kernel.ask(FRAMES)
    assert len(frames) > 100 and view.frames == len(frames) - 1
    assert view.root.locator("[data-input=prompt], [data-action=step], [data-action=run]").count() == 0
    assert view.frame == 0 and view.ledger() == frames[0]
    for k in range(1, 6):
        view.press("event-forward")
        view.until_frame(k)
        assert view.ledger() == frames[k]

    # Every frame, forward and backward by leaps, by the bar.
    order = [*range(len(frames)), *range(len(frames) - 1, -1, -5)]
    for frame, seen in zip(order, view.scrub(order), strict=True):
        assert seen.pop("frame") == frame
        assert seen == frames[frame], f"frame {frame}"
    view.press("play")
    view.until(lambda: view.frame >= 2, "playback")
    view.press("play")
    stopped = view.frame
    assert view.ledger() == frames[stopped]



@pytest.mark.parametrize("how", ["restarted", "killed"])
def test_when_the_kernel_goes_away(control_room: Room, how: str) -> None:
    book, view = control_room()
    view.submit(SAME + "the bridge.", raw=True, max_tokens=10)
    view.press("step")
    check(book, view)
    last = view.frame
    past = view.scrub([0, last - 5, last])
    (kernel_id,) = book.server.kernels_of(book.name)
    process = book.kernel.ask("__import__('os').getpid()")
    book.menu("File", "Save Notebook")
    view.until(lambda: "widget-view" in (book.server.root / book.name).read_text("utf-8"), "the notebook to be saved")

    # The page stays as it was, says what is the matter, and what was recorded can be gone through.
    book.forget_kernel()
    strips = view.root.locator(".nve-strips")
    if how == "restarted":
        book.server.api("POST", f"/api/kernels/{kernel_id}/restart")
        view.until_status("closed")  # the old engine's last word
        assert "can still be looked at" in strips.inner_text()
        assert view.button("step").is_disabled()
    else:
        os.kill(process, signal.SIGKILL)
        book.page.locator(".jp-Dialog").wait_for()
        book.page.keyboard.press("Enter")
        view.press("step")
        view.until(lambda: "run the cell again" in strips.inner_text().lower(), "a word on the kernel", 15)
    assert view.scrub([0, last - 5, last]) == past
    view.press("step-back")
    view.until(lambda: view.frame < last, "the step before")

    # Loaded anew: JupyterLab says that the widget's model is gone, and the file has the still picture for whoever
    # shows it without widgets. The cells can be run again.
    assert book.page.console_errors == []
    book.open()
    book.page.get_by_text("model not found").wait_for()
    book.page.console_errors[:] = [text for text in book.page.console_errors if "widget model not found" not in text]
    (output,) = nbformat.read(book.server.root / book.name, 4).cells[1].outputs
    assert "<svg" in output.data["text/html"] and "#15" in output.data["text/html"]
    book.run_all()
    assert book.errors() == []
    view = View(book.page.locator("[data-nve-view]").last, book)
    view.submit("Again", raw=True, max_tokens=3)
    finish(book, view)
