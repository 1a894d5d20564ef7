"""Recorded runs that come with the course, so that something moves before a model is loaded."""

from __future__ import annotations

from pathlib import Path

from ..errors import NanoVLLMError

FOLDER = Path(__file__).resolve().parent / "data"


class UnknownDataError(NanoVLLMError, LookupError):
    """The course has no recording of this name."""


def data(name: str) -> Path:
    """The file of a recorded run: ``Trace.load(data("00_start"))``. Raises UnknownDataError, naming those there are."""
    path = FOLDER / f"{name}.json.gz"
    if path.parent != FOLDER or not path.is_file():
        names = ", ".join(sorted(file.name.removesuffix(".json.gz") for file in FOLDER.glob("*.json.gz")))
        raise UnknownDataError(f"no recording is called {name!r}: there are {names or 'none'}")
    return path
