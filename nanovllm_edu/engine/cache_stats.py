"""How often a prefix was found in the cache: totals, and the hit rate over the last requests.

The idea, and the rule that requests which come back after a preemption are counted apart (they hit their own blocks
and would flatter the rate), are vLLM's (``v1/metrics/stats.py``). The unit here is the block that was looked up.
"""
from __future__ import annotations

from collections import deque


class CacheStats:
    """``queries`` blocks were looked up at first admissions, ``hits`` of them were found.

    ``preempted_queries`` and ``preempted_hits`` count the same for requests that were preempted before. A request is
    counted when it is admitted, once, however often it was tried before.
    """

    def __init__(self, window: int = 1000) -> None:
        self.requests = self.queries = self.hits = 0
        self.preempted_requests = self.preempted_queries = self.preempted_hits = 0
        self._recent: deque[tuple[int, int]] = deque(maxlen=window)

    def observe(self, queries: int, hits: int, preempted: bool = False) -> None:
        """One request was admitted: ``queries`` blocks of it could have been found, ``hits`` were."""
        if preempted:
            self.preempted_requests += 1
            self.preempted_queries += queries
            self.preempted_hits += hits
            return
        self.requests += 1
        self.queries += queries
        self.hits += hits
        if queries:  # a prompt of one block looks nothing up and must not push others out of the window
            self._recent.append((queries, hits))

    @property
    def hit_rate(self) -> float:
        """Hits over queries of the last requests (1000 unless told) that looked anything up; 0.0 before the first."""
        queries = sum(q for q, _ in self._recent)
        return sum(h for _, h in self._recent) / queries if queries else 0.0

    def __repr__(self) -> str:
        return (f"CacheStats({self.hits} of {self.queries} block lookups hit in {self.requests} requests; "
                f"after preemption {self.preempted_hits} of {self.preempted_queries} in {self.preempted_requests})")
