"""A piece of work that one thread asks of another and waits for."""
from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any


class Task:
    """``fn`` to be run by the worker. ``wait`` gives its result, raises its exception, and can be interrupted."""

    def __init__(self, fn: Callable[[], Any]) -> None:
        self._fn: Callable[[], Any] | None = fn
        self._lock = threading.Lock()
        self._done = threading.Event()
        self._state = "queued"
        self._result: Any = None
        self._error: BaseException | None = None

    def run(self, call: Callable[[Callable[[], Any]], Any], after: Callable[[], None]) -> None:
        """On the worker: carry it out through ``call``, then ``after``, then let the waiting thread go on."""
        with self._lock:
            if self._state != "queued":
                return
            self._state = "running"
        try:
            self._result = call(self._fn)
        except BaseException as error:  # it belongs to the thread that waits
            self._error = error
        finally:
            self._fn = None
            after()
            self._done.set()

    def wait(self) -> Any:
        """Wait for the result. Interrupted before the work began, it is withdrawn; later, its end is awaited first,
        so that whoever handles the interrupt finds the engine between two pieces of work."""
        try:
            self._await()
        except BaseException:
            with self._lock:
                withdrawn = self._state == "queued"
                self._state = "withdrawn" if withdrawn else self._state
            if not withdrawn:
                self._await()
            raise
        if self._error is not None:
            try:
                raise self._error
            finally:
                self._error = None  # an error holds its frames, and they would hold this task
        return self._result

    def _await(self) -> None:
        while not self._done.wait(0.5):  # Windows interrupts only a wait that has an end
            pass
