"""What a control room shows, read through the document contract; what is true, read from the scheduler's own objects.

Both are brought into one form: `blocks` [[id, ref_count, state, hash]], `queue` [ids, head to tail] and `tables`
{seq_id: [[logical, physical], ...]} of the requests that hold blocks.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.browser.jupyter import Notebook

READ = """root => ({
  frame: Number(root.dataset.frame),
  blocks: [...root.querySelectorAll('[data-panel=pool] [data-block-id]')].map(
    b => [Number(b.dataset.blockId), Number(b.dataset.refCount), b.dataset.state, b.dataset.hash]),
  queue: [...root.querySelectorAll('[data-panel=queue] [data-queue-id]')].map(b => Number(b.dataset.queueId)),
  tables: Object.fromEntries([...root.querySelectorAll('[data-panel=tables] [data-seq-id]')]
    .map(r => [r.dataset.seqId, [...r.querySelectorAll('[data-physical]')].map(
      c => [Number(c.dataset.logical), Number(c.dataset.physical)])])
    .filter(([, cells]) => cells.length)),
})"""

# No module of the lab is used here: the chapter's own names alone.
LEDGER = """(lambda s, m: {
    'blocks': [[b.block_id, b.ref_count,
                'used' if b.ref_count else 'cached' if b.hash != -1 and m.hash_to_block_id.get(b.hash) == b.block_id
                else 'free', '' if b.hash == -1 else format(b.hash, '016x')] for b in m.blocks],
    'queue': list(m.free_block_ids),
    'tables': {str(q.seq_id): [[i, b] for i, b in enumerate(q.block_table)]
               for q in [*s.running, *s.waiting] if q.block_table}})(llm.scheduler, llm.scheduler.block_manager)"""

# The same document of frames of a trace, for a replay.
FRAMES = """[(lambda s: {
    'blocks': [[i, b['ref_count'], 'used' if b['ref_count'] else
                'cached' if b['hash'] and s['map'].get(b['hash']) == i else 'free', b['hash']]
               for i, b in enumerate(s['blocks'])],
    'queue': s['queue'],
    'tables': {k: [[i, b] for i, b in enumerate(q['block_table'])] for k, q in s['seqs'].items() if q['block_table']}
    })(trace.frames[k].state) for k in range(len(trace.frames))]"""

SCRUB = f"""async (root, frames) => {{
  const bar = root.querySelector('[data-input=scrub]');
  const shown = [];
  for (const frame of frames) {{
    bar.value = frame;
    bar.dispatchEvent(new Event('input', {{bubbles: true}}));
    await new Promise(requestAnimationFrame);  // the view asked for the same one before
    shown.push(({READ})(root));
  }}
  return shown;
}}"""

# The cell of a notebook whose view is compared with the engine.
WATCH = "room = watch(llm)\nroom"
COMMANDS = {"step", "run", "pause", "abort", "reset", "submit", "abort-one"}


def catch_up(book: Notebook, view: View) -> int:
    """Wait until a live view's commands have reached the kernel and their effect the page; the number of events.

    The page and the test's own client talk to the kernel side by side, so a question may overtake a command.
    """
    heard = f"sum(action != 'resync' for action in {view.heard})"
    view.until(lambda: book.kernel.ask(heard) >= view.sent, "the commands to reach the kernel")
    total = book.kernel.ask(f"({view.name}.session.settle(), len({view.name}.trace.events))[1]")
    view.until_frame(total)
    return total


def check(book: Notebook, view: View) -> None:
    """A live view shows all that has happened, and shows what the scheduler's own objects hold."""
    catch_up(book, view)
    assert view.ledger() == book.kernel.ask(LEDGER)


def finish(book: Notebook, view: View) -> None:
    """Run the engine to the end of all its requests, and pause it."""
    view.press("run")
    view.until(lambda: book.kernel.ask("llm.is_finished()"), "the end of all requests")
    view.press("pause")
    view.until_status("paused")
    check(book, view)


class View:
    """One control room on a page; `root` is a Playwright locator of its `data-nve-view`.

    A live one, given its notebook, counts the commands that it sent; `name` is its widget's variable in the kernel.
    """

    def __init__(self, root: Any, book: Notebook | None = None, name: str = "room") -> None:
        self.root, self.page, self.name, self.sent = root, root.page, name, 0
        root.wait_for(state="visible", timeout=60_000)
        if book is not None:
            self.heard = f"_heard_{id(self)}"
            book.kernel.run(f"{self.heard} = []\n"
                            f"{name}.on_msg(lambda widget, content, _: {self.heard}.append(content['action']))")

    # --- reading ---
    def read(self) -> dict[str, Any]:
        return self.root.evaluate(READ)

    def ledger(self) -> dict[str, Any]:
        """What is shown, without the frame."""
        shown = self.read()
        del shown["frame"]
        return shown

    def scrub(self, frames: list[int]) -> list[dict[str, Any]]:
        """Drag the bar to each of these frames; what is shown there."""
        return self.root.evaluate(SCRUB, frames)

    @property
    def frame(self) -> int:
        return int(self.root.get_attribute("data-frame"))

    @property
    def frames(self) -> int:
        return int(self.root.get_attribute("data-frames"))

    @property
    def status(self) -> str:
        return self.root.get_attribute("data-status")

    def text(self, selector: str) -> str:
        return self.root.locator(selector).first.inner_text()

    # --- doing ---
    def button(self, action: str) -> Any:
        return self.root.locator(f"[data-action={action}]")

    def press(self, action: str) -> None:
        self.button(action).click()
        self.sent += action in COMMANDS

    def submit(self, prompt: str, raw: bool | None = None, max_tokens: int | None = None) -> None:
        if raw is not None:
            self.root.locator("[data-input=raw]").set_checked(raw)
        if max_tokens is not None:
            self.root.locator("[data-input=max-tokens]").fill(str(max_tokens))
        box = self.root.locator("[data-input=prompt]")
        box.fill(prompt)
        box.press("Enter")
        self.sent += 1

    # --- waiting ---
    def until(self, condition: Callable[[], Any], what: str, timeout_s: float = 60) -> Any:
        """Wait until `condition()` is true; its value. Raises AssertionError, saying `what` did not come."""
        deadline = time.monotonic() + timeout_s
        while not (value := condition()):
            if time.monotonic() > deadline:
                raise AssertionError(f"waited {timeout_s:.0f} s in vain for: {what}. The view says: {self.summary()}")
            self.page.wait_for_timeout(40)
        return value

    def until_frame(self, frame: int) -> None:
        self.until(lambda: self.frame == frame, f"frame {frame}")

    def until_status(self, status: str, timeout_s: float = 60) -> None:
        self.until(lambda: self.status == status, f"status {status}", timeout_s)

    def summary(self) -> str:
        return (f"frame {self.frame} of {self.frames}, status {self.status}, "
                f"error {self.text('[role=alert]')!r}, notice {self.text('.nve-notice')!r}")
