"""A real JupyterLab and a real Chromium: start them, open notebooks, run cells, ask the same kernel, put all away.

Nothing here knows of pytest, so that scripts/screenshot.py can use it too.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import nbformat
from jupyter_client import BlockingKernelClient

FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update",
         "--disable-sync", "--force-device-scale-factor=1", "--font-render-hinting=none"]
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
PANEL = ".jp-NotebookPanel:not(.lm-mod-hidden)"
VIEW = f"{PANEL} [data-nve-view]"
THEMES = {"light": "JupyterLab Light", "dark": "JupyterLab Dark"}
START_S = 90        # a cold disk makes JupyterLab's start slow
RUN_MS = 240_000    # all cells of a lab, the model's load included

PROMPTS = f"{PANEL} .jp-CodeCell .jp-InputArea-prompt"
ERRORS = f"{PANEL} .jp-RenderedText[data-mime-type='application/vnd.jupyter.error']"

# Notices that the last code cell's number changes. A new kernel counts from 1 again, so the number may be the old one.
WATCH_LAST = """prompts => {
    window.lastCellMoved = false;
    const last = [...document.querySelectorAll(prompts)].at(-1);
    new MutationObserver(() => { window.lastCellMoved = true; }).observe(
        last.closest('.jp-InputArea'), {subtree: true, childList: true, characterData: true});
}"""
# All code cells have run, none waits or runs; or one of them failed.
ALL_RAN = r"""([prompts, errors]) => {
    const ran = [...document.querySelectorAll(prompts)].every(node => /\[\d+\]/.test(node.textContent));
    return window.lastCellMoved && ran || document.querySelector(errors);
}"""


def system_browser() -> str | None:
    """The path of a Chromium that is installed, or None."""
    return next((path for name in BROWSERS if (path := shutil.which(name))), None)


@contextlib.contextmanager
def chromium() -> Iterator[Any]:
    """A running headless browser: the system's, else the one that Playwright downloaded."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=system_browser(), args=FLAGS)
        try:
            yield browser
        finally:
            browser.close()


class Server:
    """One JupyterLab on a free port with its own root, runtime and settings folders, all below `folder`."""

    def __init__(self, folder: Path, environment: dict[str, str] | None = None) -> None:
        self.root, self.runtime, self.settings = folder / "root", folder / "runtime", folder / "settings"
        for path in (self.root, self.runtime, self.settings, folder / "config"):
            path.mkdir(parents=True)
        self.write_setting("notification", {"fetchNews": "false", "checkForUpdates": False})
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.url = f"http://127.0.0.1:{free.getsockname()[1]}"
        # Two kernels at once on a small machine: one thread each, and the same sums in every run.
        self.environment = {**os.environ, "JUPYTER_RUNTIME_DIR": str(self.runtime), "OMP_NUM_THREADS": "2",
                            "JUPYTERLAB_SETTINGS_DIR": str(self.settings), "JUPYTER_CONFIG_DIR": str(folder / "config"),
                            "JUPYTERLAB_WORKSPACES_DIR": str(folder / "workspaces"), **(environment or {})}
        self.log = folder / "server.log"
        self._process: subprocess.Popen[bytes] | None = None

    def write_setting(self, name: str, values: dict[str, Any]) -> None:
        folder = self.settings / "@jupyterlab" / "apputils-extension"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{name}.jupyterlab-settings").write_text(json.dumps(values), "utf-8")

    def start(self) -> None:
        """Raises RuntimeError, with the end of the log, if it does not answer in time."""
        port = self.url.rsplit(":", 1)[1]
        command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--ip=127.0.0.1", f"--port={port}",
                   "--ServerApp.port_retries=0", "--IdentityProvider.token=",
                   "--ServerApp.disable_check_xsrf=True", "--allow-root", f"--ServerApp.root_dir={self.root}"]
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(command, env=self.environment, stdout=log, stderr=log, cwd=self.root)
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline and self._process.poll() is None:
            with contextlib.suppress(OSError, urllib.error.URLError):
                self.api("GET", "/api/status")
                return
            time.sleep(0.2)
        self.stop()
        raise RuntimeError(f"JupyterLab did not start:\n{self.log.read_text('utf-8', 'replace')[-3000:]}")

    def stop(self) -> None:
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(20)

    def api(self, method: str, path: str) -> Any:
        request = urllib.request.Request(self.url + path, method=method)
        with urllib.request.urlopen(request, timeout=20) as answer:
            body = answer.read()
        return json.loads(body) if body else None

    def kernels_of(self, name: str) -> list[str]:
        """Ids of the kernels that run the notebook `name`."""
        return [session["kernel"]["id"] for session in self.api("GET", "/api/sessions") if session["path"] == name]

    def end_kernels(self) -> None:
        for session in self.api("GET", "/api/sessions"):
            self.api("DELETE", f"/api/sessions/{session['id']}")

    def new_notebook(self, name: str, cells: Iterable[str]) -> None:
        """Write a notebook with these code cells."""
        notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
        notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
        nbformat.write(notebook, self.root / name)


class Kernel:
    """A second client of a notebook's kernel, to ask what is true there."""

    def __init__(self, connection_file: Path) -> None:
        self._client = BlockingKernelClient(connection_file=str(connection_file))
        self._client.load_connection_file()
        self._client.start_channels()
        self._client.wait_for_ready(timeout=60)

    def run(self, code: str, timeout: float = 120) -> str:
        """Run code, return what it printed. Raises RuntimeError with the traceback when it fails."""
        printed: list[str] = []

        def keep(message: dict[str, Any]) -> None:
            if message["msg_type"] == "stream":
                printed.append(message["content"]["text"])

        reply = self._client.execute_interactive(code, timeout=timeout, store_history=False, output_hook=keep)
        if reply["content"]["status"] != "ok":
            raise RuntimeError("\n".join(reply["content"].get("traceback", [])) or str(reply["content"]))
        return "".join(printed)

    def ask(self, expression: str, timeout: float = 120) -> Any:
        """The value of a JSON-able expression."""
        printed = self.run(f"import json as _json; print('@@' + _json.dumps({expression}))", timeout)
        return json.loads(printed[printed.index("@@") + 2:].strip().splitlines()[0])

    def close(self) -> None:
        self._client.stop_channels()


class Notebook:
    """A notebook that is open in a page."""

    def __init__(self, server: Server, page: Any, name: str) -> None:
        self.server, self.page, self.name = server, page, name
        self._kernel: Kernel | None = None

    def open(self) -> Notebook:
        self.page.goto(f"{self.server.url}/lab/tree/{self.name}?reset")
        self.page.wait_for_selector(f"{PANEL} .jp-Notebook", timeout=60_000)
        self.wait_idle()
        deadline = time.monotonic() + START_S
        while not self.server.kernels_of(self.name) and time.monotonic() < deadline:
            time.sleep(0.1)
        return self

    def menu(self, menu: str, item: str) -> None:
        self.page.click(f".lm-MenuBar-itemLabel:text-is('{menu}')")
        self.page.click(f".lm-Menu-itemLabel:text-is('{item}')")

    def wait_idle(self, timeout_ms: int = 60_000) -> None:
        self.page.wait_for_selector(f"{PANEL} .jp-Notebook-ExecutionIndicator[data-status=idle]", timeout=timeout_ms,
                                    state="attached")

    def run_all(self, timeout_ms: int = RUN_MS) -> None:
        """Run all cells and wait until the last code cell has run. A cell that fails stops it: see `errors`."""
        self.page.evaluate(WATCH_LAST, PROMPTS)
        self.menu("Run", "Run All Cells")
        self.page.wait_for_function(ALL_RAN, arg=[PROMPTS, ERRORS], timeout=timeout_ms)
        self.wait_idle(timeout_ms)

    def errors(self) -> list[str]:
        """Tracebacks on the page."""
        return self.page.eval_on_selector_all(ERRORS, "nodes => nodes.map(n => n.textContent)")

    def cells(self) -> int:
        return self.page.locator(f"{PANEL} .jp-Notebook .jp-Cell").count()

    @property
    def kernel(self) -> Kernel:
        if self._kernel is None:
            (kernel_id,) = self.server.kernels_of(self.name)
            self._kernel = Kernel(self.server.runtime / f"kernel-{kernel_id}.json")
        return self._kernel

    def forget_kernel(self) -> None:
        """After a restart: the next question goes to the new one."""
        if self._kernel is not None:
            self._kernel.close()
            self._kernel = None


def open_page(browser: Any, width: int = 1400, height: int = 1000) -> Any:
    """A page that keeps what goes wrong on it in `console_errors` and every dialog's text in `dialogs`."""
    context = browser.new_context(viewport={"width": width, "height": height}, reduced_motion="reduce")
    page = context.new_page()
    page.console_errors, page.dialogs = [], []
    page.on("console", lambda message: page.console_errors.append(f"{message.text} ({message.location.get('url', '')})")
            if message.type == "error" else None)
    page.on("pageerror", lambda error: page.console_errors.append(f"uncaught: {error}"))

    def dismiss(dialog: Any) -> None:
        page.dialogs.append(dialog.message)
        dialog.dismiss()

    page.on("dialog", dismiss)
    page.set_default_timeout(30_000)
    return page
