"""How fast the engine generates, and how often a lookup hits, from its own events."""
from __future__ import annotations

import time
from collections import deque

from ..engine.events import Event, PrefixLookup, StepBegan, StepEnded, TokenAppended

WINDOW_S = 2.0


class Meter:
    """``tokens_per_second`` over the last two seconds in which the engine was at work; lookups since the start."""

    def __init__(self) -> None:
        self.hits = self.queries = 0
        self._steps: deque[tuple[float, int]] = deque()  # seconds and tokens of the latest steps
        self._seconds = 0.0
        self._began: float | None = None
        self._tokens = 0

    def on_event(self, event: Event) -> None:
        if isinstance(event, TokenAppended):
            self._tokens += 1
        elif isinstance(event, PrefixLookup):
            self.queries += event.outcome != "last_block"
            self.hits += event.outcome.startswith("hit")
        elif isinstance(event, StepBegan):
            self._began, self._tokens = time.monotonic(), 0
        elif isinstance(event, StepEnded) and self._began is not None:
            self._steps.append((time.monotonic() - self._began, self._tokens))
            self._seconds += self._steps[-1][0]
            self._began = None
            while self._seconds - self._steps[0][0] >= WINDOW_S:
                self._seconds -= self._steps.popleft()[0]

    @property
    def tokens_per_second(self) -> float:
        return round(sum(tokens for _, tokens in self._steps) / self._seconds, 1) if self._seconds > 0 else 0.0

    @property
    def lookups(self) -> dict[str, int]:
        return {"hits": self.hits, "queries": self.queries}
