"""What views are told, and how often: few messages, each whole, and always a last one."""
from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from ..engine import violations

Subscriber = Callable[[int, dict[str, Any]], None]
UPDATE_INTERVAL_S = 0.05  # a notebook server cuts a channel that is flooded, and the picture stays wrong for ever


class Views:
    """Who hears of a session, at most every ``UPDATE_INTERVAL_S`` seconds. ``dirty``: there is something to tell."""

    def __init__(self) -> None:
        self.dirty = False
        self._next = 0.0
        self._lock = threading.Lock()
        self._subscribers: tuple[Subscriber, ...] = ()

    def add(self, subscriber: Subscriber) -> None:
        with self._lock:
            self._subscribers = (*self._subscribers, subscriber)

    def remove(self, subscriber: Subscriber) -> None:
        with self._lock:
            self._subscribers = tuple(s for s in self._subscribers if s != subscriber)

    @property
    def may_be_told(self) -> bool:
        return time.monotonic() >= self._next

    @property
    def patience(self) -> float:
        """Seconds until they may be told again."""
        return max(0.0, self._next - time.monotonic())

    def tell(self, total: int, status: dict[str, Any]) -> list[Exception]:
        """Tell all of them; what a view raises does not keep the others from hearing, and is returned."""
        failures = []
        for subscriber in self._subscribers:
            try:
                subscriber(total, status)
            except Exception as error:
                failures.append(error)
        self._next = time.monotonic() + UPDATE_INTERVAL_S
        return failures


class Judge:
    """Asks whether the ledger's law holds: seldom where that takes long, but always at rest."""

    SHARE = 20  # at most one part in 20 of the time goes into judging

    def __init__(self) -> None:
        self.violations: list[str] = []
        self._next = 0.0

    def look(self, scheduler: Any, at_rest: bool) -> None:
        """Call it between two operations of the ledger."""
        began = time.monotonic()
        if began < self._next and not at_rest:
            return
        try:
            self.violations = violations(scheduler.block_manager, scheduler.sequences)
        except Exception as error:  # a learner's own block manager may be in any state
            self.violations = [f"the ledger can't be read: {error!r}"]
        self._next = time.monotonic() + self.SHARE * (time.monotonic() - began)
