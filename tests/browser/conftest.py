"""One JupyterLab and one Chromium for all tests in this folder; each test has a page and a kernel of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from nanovllm_edu.start import lay_labs
from tests.browser.jupyter import THEMES, Notebook, Server, chromium, open_page, system_browser
from tests.browser.view import WATCH, View

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker("browser")


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """A headless Chromium. Where none is, the tests are skipped (in CI that counts as failed, see tests/ci.py)."""
    from playwright.sync_api import Error

    launched = chromium()
    try:
        running = launched.__enter__()
    except Error as error:
        if system_browser() is not None:
            raise
        pytest.skip(f"no Chromium: apt install chromium, or playwright install chromium ({str(error).splitlines()[0]})")
    yield running
    launched.__exit__(None, None, None)


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory, browser: Any) -> Iterator[Server]:
    """JupyterLab on a learner's copy of the labs, with the learner's progress in a folder of this run."""
    folder = tmp_path_factory.mktemp("jupyter")
    server = Server(folder, {"NANOVLLM_EDU_PROGRESS": str(folder / "progress.json")})
    lay_labs(server.root)
    server.start()
    yield server
    server.stop()


@pytest.fixture
def notebook(server: Server, browser: Any, request: pytest.FixtureRequest) -> Iterator[Callable[..., Notebook]]:
    """open(cells or name of a notebook, theme="light", width=1400, height=1000) → an open `Notebook`.

    At the end its kernel is shut down and the console must hold no error.
    """
    opened: list[Notebook] = []

    def open_notebook(content: str | list[str], theme: str = "light", width: int = 1400,
                      height: int = 1000) -> Notebook:
        server.write_setting("themes", {"theme": THEMES[theme]})
        name = content
        if isinstance(content, list):
            name = f"test_{len(list(server.root.glob('test_*.ipynb')))}.ipynb"
            server.new_notebook(name, content)
        page = open_page(browser, width, height)
        opened.append(Notebook(server, page, name))
        opened[-1].open()
        light = "true" if theme == "light" else "false"
        page.wait_for_selector(f"body[data-jp-theme-light={light}]", state="attached")
        return opened[-1]

    yield open_notebook
    errors = []
    for one in opened:
        errors += one.page.console_errors
        one.forget_kernel()
        one.page.context.close()
    server.end_kernels()
    assert errors == [], "errors in the browser's console"


@pytest.fixture
def control_room(notebook: Callable[..., Notebook]) -> Callable[..., tuple[Notebook, View]]:
    """open(*cells, theme="light", width=1400, blocks=16, block_size=16) → a notebook with a live engine and its view.

    `cells` follow one that makes `llm`; by default `room = watch(llm)` alone. The view is the page's last.
    """

    def open_room(*cells: str, theme: str = "light", width: int = 1400, blocks: int = 16, block_size: int = 16,
                  ) -> tuple[Notebook, View]:
        engine = (f"from nanovllm_edu import LLM, SamplingParams, watch, record, replay\nllm = LLM(dtype='float32', "
                  f"kvcache_block_size={block_size}, num_kvcache_blocks={blocks}, max_model_len=1024)")
        book = notebook([engine, *(cells or [WATCH])], theme=theme, width=width)
        book.run_all()
        assert book.errors() == []
        live = book.kernel.ask("'room' in globals()")
        return book, View(book.page.locator("[data-nve-view]").last, book if live else None)

    return open_room
