"""Lab 00 in a real JupyterLab: what the page shows is what the scheduler's own objects hold, step by step and back.

The walks of those objects are made in the notebook's kernel and know nothing of traces, states or patches.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from typing import Any

import pytest

from nanovllm_edu.start import shipped_labs
from tests.browser.jupyter import PANEL, Notebook
from tests.browser.view import LEDGER, View, catch_up, check, finish

LIVE = f"{PANEL} [data-nve-view]:has([data-input=prompt])"
BASE = "One plain rule of the old town is that every shop opens at nine and closes at six, on all days of the year. "
PROMPTS = [BASE + "On a rainy Monday in March the baker came late, and the children who waited said",
           BASE + "On a rainy Monday in March the baker came late, and nobody knew that",
           BASE + "The clock on the tower, however, has been wrong since the winter of the big storm, and therefore"]

# Walks the scheduler's objects at the end of every step, whoever runs it. Keyed by the number of events until then.
WATCHER = f"""
class _Walks:
    def __init__(self):
        self.count, self.walks = len(room.trace.events), {{}}
    def on_event(self, event):
        self.count += 1
        if type(event).__name__ == 'StepEnded':
            self.walks[self.count] = {LEDGER}
_walks = _Walks()
llm.scheduler.emit.attach(_walks)
"""


@pytest.fixture
def lab(notebook: Callable[..., Notebook], server: Any) -> Callable[[str], tuple[Notebook, View]]:
    """open(theme) → a learner's copy of lab 00, all cells run, and its live control room."""

    def open_lab(theme: str) -> tuple[Notebook, View]:
        name = f"lab00_{theme}_{len(list(server.root.glob('lab00_*')))}.ipynb"
        shutil.copy(shipped_labs() / "00_start.ipynb", server.root / name)
        book = notebook(name, theme=theme)
        book.run_all()
        assert book.errors() == []
        return book, live_view(book)

    return open_lab


def live_view(book: Notebook) -> View:
    view = View(book.page.locator(LIVE), book)
    view.root.scroll_into_view_if_needed()
    return view


def walk_back_and_forward(view: View, walks: dict[int, Any]) -> None:
    """Step back through the recorded steps, and forward again: each time the page shows what was walked then."""
    steps = [frame for frame in sorted(walks, reverse=True) if frame < view.frame]
    for frame in steps:
        view.press("step-back")
        view.until_frame(frame)
        assert view.ledger() == walks[frame], f"stepping back, frame {frame}"
    for frame in reversed(steps[:-1]):
        view.press("step-forward")
        view.until_frame(frame)
        assert view.ledger() == walks[frame], f"stepping forward, frame {frame}"


def own_conversation(book: Notebook, view: View) -> None:
    """The learner's own prompt: its text streams, and the second turn finds the first one's blocks."""
    view.press("reset")
    catch_up(book, view)
    first = book.kernel.ask("len(room.trace.events)")
    book.page.evaluate("""live => {
        const chat = document.querySelector(live).querySelector('[data-panel=chat]');
        window.seen = new Set();
        new MutationObserver(() => {
            const replies = [...chat.querySelectorAll('.nve-reply')];
            if (replies.length) window.seen.add(replies.at(-1).textContent);
        }).observe(chat, {subtree: true, childList: true, characterData: true});
    }""", LIVE)
    view.submit("What is the capital of France?", raw=False, max_tokens=24)
    check(book, view)
    first_id = book.kernel.ask("llm.scheduler.waiting[0].seq_id")
    view.press("step")
    check(book, view)
    table = dict(view.ledger()["tables"])[str(first_id)]
    finish(book, view)
    assert len(book.page.evaluate("[...window.seen]")) > 3, "the answer's text came in pieces"
    assert "Paris" in view.root.locator(".nve-reply").last.inner_text()

    view.submit("And of Italy?", max_tokens=24)
    check(book, view)
    view.press("step")
    check(book, view)
    second_id = book.kernel.ask("llm.scheduler.running[-1].seq_id")
    second = view.ledger()["tables"][str(second_id)]
    full = [cell for cell in table if view.ledger()["blocks"][cell[1]][3]]
    assert full and second[:len(full)] == full, "the second turn reads the first one's full blocks"
    reused = book.kernel.ask(f"[e.num_cached_tokens_after for e in room.trace.events[{first}:] "
                             f"if type(e).__name__ == 'PrefixReused' and e.seq_id == {second_id}]")
    assert reused and reused[0] >= 16 * len(full) > 0
    finish(book, view)
    assert "Rome" in view.root.locator(".nve-reply").last.inner_text()


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_page_shows_the_engines_own_objects(lab: Callable[[str], tuple[Notebook, View]], theme: str) -> None:
    book, view = lab(theme)
    assert view.root.get_attribute("data-theme") == theme
    check(book, view)
    view.press("reset")
    check(book, view)
    book.kernel.run(WATCHER)

    # Three requests, one step at a time, the later ones beside the first.
    walks: dict[int, Any] = {}
    for prompt in PROMPTS:
        view.submit(prompt, raw=True, max_tokens=60)
        check(book, view)
        for _ in range(2):
            view.press("step")
            check(book, view)
            walks[view.frame] = view.ledger()
    assert any(ref > 1 for _, ref, *_ in view.ledger()["blocks"]), "the prompts share blocks"

    # Run, pause in the middle, and go back to what was.
    at = view.frame
    view.press("run")
    view.until(lambda: view.frame > at + 30, "a running engine's events")
    view.press("pause")
    view.until_status("paused")
    check(book, view)
    assert book.kernel.ask("[len(llm.scheduler.running) + len(llm.scheduler.waiting), llm.is_finished()]") == [3, False]
    recorded = {int(frame): walk for frame, walk in book.kernel.ask("_walks.walks").items()}
    assert {frame: recorded[frame] for frame in walks} == walks
    walk_back_and_forward(view, recorded)

    # A command while looking at the past acts on the present, and shows it.
    view.press("event-back")
    view.press("step-back")
    view.press("step")
    check(book, view)

    # To the end: one of them is preempted on the way, for the pool is too small for three.
    finish(book, view)
    kinds = book.kernel.ask("sorted({type(e).__name__ for e in room.trace.events})")
    assert {"RequestPreempted", "BlockShared", "BlockRevived", "EntryEvicted"} <= set(kinds)
    recorded = {int(frame): walk for frame, walk in book.kernel.ask("_walks.walks").items()}
    assert len(recorded) > 40
    order = [*sorted(recorded, reverse=True), *sorted(recorded)]
    for shown in view.scrub(order):
        frame = shown.pop("frame")
        assert shown == recorded[frame], f"on the bar, frame {frame}"

    own_conversation(book, view)


def test_all_cells_run_twice_in_one_kernel(lab: Callable[[str], tuple[Notebook, View]]) -> None:
    book, view = lab("light")
    threads = "sorted(t.name for t in __import__('threading').enumerate() if 'nanovllm' in t.name)"
    once = book.kernel.ask(threads)
    assert len(once) == 1
    book.run_all()
    assert book.errors() == []
    view = live_view(book)
    check(book, view)
    view.submit("Once more", raw=True, max_tokens=4)
    view.press("step")
    check(book, view)
    assert book.kernel.ask(threads) == once, "the first engine's thread is gone"
