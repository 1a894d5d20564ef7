"""The ledger's law, judged on a state document: for frames of a recorded run, whose objects are gone.

A document is put before the one judge (``engine.invariants``) in the shape that it knows, so the sentences can't differ
from those on the real objects. What a document does not hold (the queue's links, the set of used blocks) can't be
judged here: as used counts each block that is not queued and that somebody holds.
"""
from __future__ import annotations

from copy import deepcopy
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from ..engine.events import StepEnded
from ..engine.invariants import breaches as judge
from .patches import apply
from .state import State

if TYPE_CHECKING:
    from .recorder import Trace


def breaches(state: State) -> list[tuple[str, str]]:
    """``(article, sentence)`` for each breach in ``state``, where no operation of the ledger is open."""
    blocks = [SimpleNamespace(block_id=i, ref_count=block["ref_count"], token_ids=block["token_ids"],
                              hash=int(block["hash"], 16) if block["hash"] else -1)
              for i, block in enumerate(state["blocks"])]
    queued = set(state["queue"])
    manager = SimpleNamespace(
        block_size=state["block_size"], blocks=blocks, free_block_ids=state["queue"],
        used_block_ids=[block.block_id for block in blocks if block.ref_count and block.block_id not in queued],
        hash_to_block_id={int(hash, 16): block_id for hash, block_id in state["map"].items()})
    return judge(manager, [_Request(int(i), seq, state["block_size"]) for i, seq in state["seqs"].items()
                           if seq["status"] != "FINISHED" or seq["block_table"]])


def violations(state: State) -> list[str]:
    """The sentences alone."""
    return [sentence for _, sentence in breaches(state)]


class Verdicts:
    """The law at the end of each step of a trace that may still grow. It walks the trace once, forward."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._state: State | None = None
        self._walked = 0
        self._broken: dict[int, list[tuple[str, str]]] = {}  # only the steps that ended in a broken ledger

    def of(self, index: int) -> list[tuple[str, str]]:
        """The breaches after ``events[index]``; none unless a step ended there. O(events since the last call)."""
        if self._state is None:
            self._state = deepcopy(self._trace.initial)
        while self._walked <= index:
            apply(self._state, self._trace.patches(self._walked))
            if isinstance(self._trace.events[self._walked], StepEnded) and (found := breaches(self._state)):
                self._broken[self._walked] = found
            self._walked += 1
        return self._broken.get(index, [])


class _Request:
    """A request of a state document, with what the judge asks of a ``Sequence``."""

    def __init__(self, seq_id: int, seq: dict[str, Any], block_size: int) -> None:
        self.seq_id, self.block_table, self.num_cached_tokens = seq_id, seq["block_table"], seq["num_cached_tokens"]
        self.is_finished = seq["status"] == "FINISHED"
        self.num_tokens = len(seq["token_ids"])
        self.num_blocks = -(-self.num_tokens // block_size)
        self._token_ids, self._block_size = seq["token_ids"], block_size

    def block(self, i: int) -> list[int]:
        return self._token_ids[i * self._block_size:(i + 1) * self._block_size]
