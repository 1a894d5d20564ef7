"""`python -m nanovllm_edu start`: lay the labs into a folder of the learner's, prepare the model, open JupyterLab.

A learner's notebook is never overwritten. What the course shipped when a copy was made is noted beside the copies
(`.nanovllm_edu.json`: file name to SHA-256), so that a newer version of the course can be announced.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from nanovllm_edu.errors import NanoVLLMError

FIRST_LAB = "00_start.ipynb"
NOTES = ".nanovllm_edu.json"
_PREPARE = """
import sys
from nanovllm_edu.errors import ModelLoadError
from nanovllm_edu.loading.packaged import packaged_folder
try:
    packaged_folder()
except ModelLoadError as error:
    sys.exit(f"{error}.")
"""


class StartError(NanoVLLMError, RuntimeError):
    """The labs cannot be opened; the message says what is missing and what to do."""


def shipped_labs() -> Path:
    """The folder with the course's own notebooks: `labs/` of a checkout, or what the wheel carries.

    Raises StartError when neither is here.
    """
    package = Path(__file__).resolve().parent
    for folder in (package.parent / "labs", package / "_labs"):
        if any(folder.glob("*.ipynb")):
            return folder
    raise StartError(
        f"no notebooks were found beside {package}: the installation is incomplete. Install nanovllm_edu again, "
        "or, in a checkout, write them with: make labs"
    )


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _read_notes(folder: Path) -> dict[str, str]:
    try:
        notes = json.loads((folder / NOTES).read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return {k: v for k, v in notes.items() if isinstance(v, str)} if isinstance(notes, dict) else {}


def lay_labs(folder: Path, shipped: Path | None = None) -> list[str]:
    """Copy the notebooks into `folder` (made where missing), leaving every file that is there as it is.

    Returns sentences for the learner: what was copied, and which notebooks the course has a newer version of.
    Raises StartError when the folder cannot be written, or is the course's own.
    """
    shipped = shipped or shipped_labs()
    if folder.resolve() == shipped.resolve():
        raise StartError(f"{folder} holds the course's own notebooks; name another folder for your copies: my_labs")
    told: list[str] = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        notes = _read_notes(folder)
        for source in sorted(shipped.glob("*.ipynb")):
            copy, version = folder / source.name, _digest(source)
            try:
                # "x" refuses an existing file in the same moment, whoever made it; no look before the leap.
                with open(copy, "xb") as file:
                    file.write(source.read_bytes())
            except FileExistsError:
                if notes.get(source.name, _digest(copy)) != version:
                    told.append(
                        f"{copy}: the course has a newer version of this lab; your copy is kept. To work with the "
                        f"new one, rename yours and start again."
                    )
                continue
            except OSError:
                copy.unlink(missing_ok=True)  # half a notebook would be kept for ever
                raise
            notes[source.name] = version
            told.append(f"{copy}: your own copy, kept from now on.")
        beside = folder / (NOTES + ".new")
        beside.write_text(json.dumps(notes, indent=1, sort_keys=True), "utf-8")
        os.replace(beside, folder / NOTES)
    except OSError as error:
        raise StartError(
            f"the labs cannot be written to {folder} ({error.strerror or error}). Make room or mend the permissions, "
            "or name another folder: python -m nanovllm_edu start FOLDER"
        ) from error
    return told


def prepare_model() -> None:
    """Convert the packaged model into the user's cache, unless that was done before; tells how long it took.

    It runs in a process of its own: the memory it takes (about 1 GB) is given back before JupyterLab starts.
    Raises StartError when there is no model to be had.
    """
    from nanovllm_edu.loading.cache import cache_dir, is_whole
    from nanovllm_edu.loading.packaged import ENTRY, MODEL_NAME

    if is_whole(cache_dir() / ENTRY):
        return
    began = time.monotonic()
    print(f"preparing the model {MODEL_NAME} in {cache_dir()} (once, some seconds) …", flush=True)
    done = subprocess.run([sys.executable, "-c", _PREPARE], stdin=subprocess.DEVNULL)
    if done.returncode:
        raise StartError("the model could not be prepared; the reason stands above")
    print(f"the model is ready ({time.monotonic() - began:.0f} s)", flush=True)


def jupyter_command(notebook: Path, arguments: Sequence[str] = (), browser: bool = True) -> list[str]:
    """The command that opens JupyterLab on a notebook, with this environment's Python."""
    command = [sys.executable, "-m", "jupyterlab", f"--ServerApp.root_dir={notebook.resolve().parent}"]
    # Not the notebook as an argument: then the address that JupyterLab prints would lead to its start page.
    command.append(f"--LabApp.default_url=/lab/tree/{notebook.name}")
    # The lab talks to nobody on the network but the browser, so neither news nor update checks.
    command += ["--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate", "--LabApp.news_url=None"]
    if not browser:
        command.append("--no-browser")
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        command.append("--allow-root")  # in containers there is often no other user
    return [*command, *arguments]


def start(folder: Path, jupyter_arguments: Sequence[str] = (), browser: bool = True, prepare_only: bool = False) -> int:
    """Lay the labs, prepare the model, open JupyterLab on lab 00; returns JupyterLab's exit status.

    With `prepare_only` it stops before JupyterLab. Raises StartError when something is missing.
    """
    if not prepare_only and importlib.util.find_spec("jupyterlab") is None:
        raise StartError(f"JupyterLab is missing. Install it with: {sys.executable} -m pip install 'nanovllm-edu[lab]'")
    for sentence in lay_labs(folder):
        print(sentence, flush=True)
    prepare_model()
    if prepare_only:
        return 0
    command = jupyter_command(folder / FIRST_LAB, jupyter_arguments, browser and not os.environ.get("NO_BROWSER"))
    if os.name != "posix":
        with contextlib.suppress(KeyboardInterrupt):
            return subprocess.run(command).returncode
        return 0
    sys.stdout.flush()
    return os.execv(command[0], command)  # JupyterLab takes this process's place, and so its Ctrl-C
