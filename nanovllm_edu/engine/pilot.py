"""A thread that finishes what it has begun, whatever interrupts the one who waits for it."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any

import torch

POLL = 0.2  # seconds between two looks while waiting


class Job:
    """A call on the pilot's thread: its result or its error, once it is done."""

    def __init__(self, fn: Callable[[], Any]) -> None:
        self._fn: Callable[[], Any] | None = fn
        self.done = threading.Event()
        self.result: Any = None
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            self.result = self._fn()
        except BaseException as error:  # noqa: BLE001 - handed to whoever waits
            self.error = error
        self._fn = None
        self.done.set()

    def wait(self, give_up: Callable[[], bool]) -> BaseException | None:
        """Wait until the job is done, or until give_up() says that it never will be.

        An interrupt of the waiting thread (KeyboardInterrupt, mostly) does not end the wait: it is returned.
        """
        interrupt: BaseException | None = None
        while not self.done.is_set():
            try:
                if not self.done.wait(POLL) and give_up():
                    break
            except BaseException as error:  # noqa: BLE001 - raised again by the caller
                interrupt = interrupt or error
        return interrupt


class Pilot:
    """One daemon thread that runs jobs in order, with `threads` of torch's threads for each operation."""

    def __init__(self, threads: int) -> None:
        self.jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=_fly, args=(self.jobs,), name="nanovllm_edu rank 0", daemon=True)
        self._thread.start()
        # the number is each thread's own; it begins with what was set last, at the first look
        before = torch.get_num_threads()
        job = Job(lambda: (torch.get_num_threads(), torch.set_num_threads(threads)))
        self.jobs.put(job)
        job.done.wait()
        torch.set_num_threads(before)

    def close(self, timeout: float) -> None:
        """End the thread once its jobs are done. A second call does nothing."""
        self.jobs.put(None)
        self._thread.join(timeout)


def _fly(jobs: queue.SimpleQueue[Job | None]) -> None:
    while (job := jobs.get()) is not None:
        job.run()
        del job  # it may hold an engine
