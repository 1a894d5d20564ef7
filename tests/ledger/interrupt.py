"""Ctrl-C at a chosen line: a tracer that counts the lines that run in ``nanovllm_edu/engine`` and raises at one."""
from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import nanovllm_edu.engine

ENGINE = str(Path(nanovllm_edu.engine.__file__).parent)

Place = tuple[str, int]
"""File name and line number."""


class Tracer:
    """Notes every line of the engine that runs inside ``with``; raises KeyboardInterrupt at line number ``at``."""

    def __init__(self, at: int | None = None, skip: tuple[str, ...] = ()) -> None:
        self.at, self.skip = at, skip
        self.lines: list[Place] = []

    def __enter__(self) -> Tracer:
        self._previous = sys.gettrace()
        sys.settrace(self._call)
        return self

    def __exit__(self, *exc: object) -> None:
        sys.settrace(self._previous)

    def _call(self, frame: FrameType, event: str, arg: Any) -> Callable | None:
        code = frame.f_code
        return self._line if code.co_filename.startswith(ENGINE) and code.co_name not in self.skip else None

    def _line(self, frame: FrameType, event: str, arg: Any) -> Callable:
        if event == "line":
            self.lines.append((Path(frame.f_code.co_filename).name, frame.f_lineno))
            if len(self.lines) == self.at:
                raise KeyboardInterrupt(f"at line {self.lines[-1]}")
        return self._line


def first(lines: list[Place]) -> list[int]:
    """For each distinct line the number, from 1, of its first run."""
    return [lines.index(place) + 1 for place in dict.fromkeys(lines)]


def first_and_last(lines: list[Place]) -> list[int]:
    """For each distinct line the numbers, from 1, of its first and of its last run."""
    last = [len(lines) - number + 1 for number in first(lines[::-1])]
    return sorted({*first(lines), *last})
