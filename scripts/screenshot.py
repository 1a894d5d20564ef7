"""Take the pictures of docs/ from the real thing: a real model's run in a real JupyterLab.

    .venv/bin/python scripts/screenshot.py [folder]      default: docs/

control-room-light.png and -dark.png: three questions with the template's system prompt on 16 blocks, at the moment when
the one that was preempted comes back, shares the prefix and lifts a block of its own out of the free queue. The run is
greedy and in fp32, so the moves are the same everywhere; tokens per second are blanked, for they are not.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.browser.jupyter import THEMES, Notebook, Server, chromium, open_page  # noqa: E402
from tests.browser.view import View, catch_up  # noqa: E402

WIDTH = 1400  # of the view, in px

CELLS = ["""
from nanovllm_edu import LLM, watch
llm = LLM(dtype="float32", kvcache_block_size=16, num_kvcache_blocks=16)
""", """
room = watch(llm, panels=["pool", "tables", "sequences", "timeline", "queue", "hashes", "chat"])
room""", """
session = room.session
for questions in ["Why is the sky blue?"], ["How do birds find their way?", "Why do leaves turn red in autumn?"]:
    for question in questions:
        session.submit(question, max_tokens=72)
    for _ in range(2):
        session.step()
session.settle()
while not llm.is_finished():
    llm.step()
session.settle()
"""]

# The frame of the last block that was lifted out of the queue's middle while another request ran, a preemption before.
MOMENT = """max(frame.index for frame in room.trace.frames if type(frame.event).__name__ == 'BlockRevived'
    and frame.event.queue_prev is not None and frame.state['running']
    and any(block['ref_count'] > 1 for block in frame.state['blocks'])
    and any(seq['num_preemptions'] for seq in frame.state['seqs'].values()))"""


def show(book: Notebook, width: int = WIDTH) -> View:
    """Run the cells, make the view `width` px wide, go to the moment."""
    page = book.page
    page.keyboard.press("Control+b")  # the left side bar away
    book.run_all()
    view = View(page.locator("[data-nve-view]").last, book)
    catch_up(book, view)
    page.set_viewport_size({"width": 1600, "height": 1900})
    page.wait_for_timeout(300)
    page.set_viewport_size({"width": 1600 + width - round(view.root.bounding_box()["width"]), "height": 1900})
    (moment,) = view.scrub([book.kernel.ask(MOMENT)])
    view.until_frame(moment["frame"])
    speed = view.root.locator(".nve-kpis > div", has_text="tokens/s").locator("strong")
    speed.evaluate("node => { node.textContent = '–'; }")
    view.root.scroll_into_view_if_needed()
    page.mouse.move(0, 0)
    page.wait_for_timeout(500)
    return view


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch, chromium() as browser:
        server = Server(Path(scratch))
        server.new_notebook("room.ipynb", CELLS)
        server.start()
        try:
            for name, theme in THEMES.items():
                server.write_setting("themes", {"theme": theme})
                book = Notebook(server, open_page(browser, 1600, 1000), "room.ipynb").open()
                path = folder / f"control-room-{name}.png"
                show(book).root.screenshot(path=path)
                print(path)
                book.forget_kernel()
                book.page.context.close()
                server.end_kernels()
        finally:
            server.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs")
