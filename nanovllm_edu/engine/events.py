"""What happened in the ledger, one frozen event per change, and the hub that hands events to observers.

The engine knows nothing of who watches: an observer is anything with an ``on_event(event)`` method. Every event is
emitted right after its own change and carries ids, the values before and after, and the line that made the change.
No event carries a snapshot; ``nanovllm_edu.trace`` rebuilds the whole ledger from events alone.

The idea of an engine that publishes cache events is vLLM's (``distributed/kv_events.py``); there they leave the
process for a router, here they are the lab's only window into the engine.
"""
from __future__ import annotations

import sys
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from os.path import basename
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class SourceLine:
    """The line that made a change: file name, qualified function name, line number (from 1)."""

    file: str
    function: str
    line: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Base of all events. ``at`` is filled in by the hub."""

    at: SourceLine | None = None


# --- requests ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestAdded(Event):
    """A request entered at the tail of the waiting queue."""

    seq_id: int
    token_ids: tuple[int, ...]
    max_tokens: int
    waiting_prev: int | None  # the request it stands behind


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRefused(Event):
    """A request was turned away at the door: nothing changed."""

    seq_id: int
    num_tokens: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestScheduled(Event):
    """A request has its place in this step's batch: ``num_scheduled_tokens`` of it will be computed.

    ``admitted`` says that its prompt will be complete after this step, so it moved from waiting to running.
    """

    seq_id: int
    num_scheduled_tokens_before: int
    num_scheduled_tokens_after: int
    is_prefill_before: bool
    is_prefill_after: bool
    admitted: bool
    running_prev: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestPreempted(Event):
    """A request lost its place and its blocks; from the head of the waiting queue it will prefill again."""

    seq_id: int
    for_seq_id: int  # the request that needed a block (the same one when it gives way itself)
    status_before: str  # "WAITING" for a half-prefilled one ("mixed" policy): it stands at the head already
    is_prefill_before: bool
    num_scheduled_tokens_before: int
    num_preemptions_before: int
    num_preemptions_after: int
    running_prev: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestFinished(Event):
    """A request ended: ``reason`` is "eos", "stop", "length", "aborted" or "kv_exhausted"."""

    seq_id: int
    reason: str
    status_before: str
    num_scheduled_tokens_before: int
    queue_prev: int | None  # its neighbour in the queue (waiting or running, by ``status_before``) it left


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRestored(Event):
    """After a failed step a request is as it was before it, waiting for its place again; its blocks are given up."""

    seq_id: int
    num_tokens: int
    removed_token_ids: tuple[int, ...]
    num_preemptions: int  # the step may have been cut between a preemption and its event


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuesRestored(Event):
    """After a failed step every live request waits, in order of arrival, and none is running."""

    waiting: tuple[int, ...]


# --- lookups -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixLookup(Event):
    """One block of a prompt was looked up in the prefix cache (nothing changed).

    ``outcome``: "hit_used" (in a table of another request), "hit_free" (freed, not yet overwritten), "miss",
    "collision" (the hash is in the map, but it stands for another prefix) or "last_block" (never looked up).
    """

    seq_id: int
    logical: int
    token_ids: tuple[int, ...]
    parent_hash: int  # -1 for the first block
    hash: int  # -1 when outcome is "last_block"
    outcome: str
    block_id: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocationDenied(Event):
    """A waiting request does not fit yet: it and all behind it keep waiting (nothing changed)."""

    seq_id: int
    num_needed_blocks: int
    num_free_blocks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixReused(Event):
    """The hit blocks count as computed: ``num_cached_tokens`` jumps before anything ran."""

    seq_id: int
    num_cached_tokens_before: int
    num_cached_tokens_after: int


# --- blocks --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryEvicted(Event):
    """A map entry no longer leads to this block, which is about to be overwritten (or forgotten by a reset).

    ``block_id_after`` is another copy that the entry now leads to (``prefix_cache_duplicates="all"``), else None.
    """

    block_id: int
    hash: int
    block_id_after: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockTaken(Event):
    """A block left the head of the free queue and joined a block table, empty."""

    seq_id: int
    logical: int
    block_id: int
    ref_count_before: int
    ref_count_after: int
    hash_before: int
    token_ids_before: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockShared(Event):
    """A block in use joined one more block table."""

    seq_id: int
    logical: int
    block_id: int
    ref_count_before: int
    ref_count_after: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockRevived(Event):
    """A freed but still cached block was lifted out of the free queue, from wherever it stood."""

    seq_id: int
    logical: int
    block_id: int
    ref_count_before: int
    ref_count_after: int
    queue_prev: int | None
    queue_next: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockRegistered(Event):
    """A full block got its hash and joined the prefix cache."""

    seq_id: int
    logical: int
    block_id: int
    parent_hash: int
    hash_before: int
    hash: int
    token_ids_before: tuple[int, ...]
    token_ids: tuple[int, ...]
    block_id_before: int | None  # where the map entry led until now


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockReleased(Event):
    """A request gave up a block: its ref_count went down. At 0 the block returns to the free queue next."""

    seq_id: int
    logical: int
    block_id: int
    ref_count_before: int
    ref_count_after: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockReturned(Event):
    """A block that nobody uses went to the tail of the free queue, its hash and its map entry kept."""

    block_id: int
    queue_prev: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TableCleared(Event):
    """A request's block table is empty again, and nothing of it counts as computed."""

    seq_id: int
    block_table_before: tuple[int, ...]
    num_cached_tokens_before: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockForgotten(Event):
    """``reset_prefix_cache`` wiped a free block's hash and tokens."""

    block_id: int
    hash_before: int
    token_ids_before: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerReset(Event):
    """The ledger was interrupted in the middle of a change, so it began anew: all blocks free, in order, no cache."""

    num_blocks: int
    block_size: int


# --- steps ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class StepBegan(Event):
    """``schedule`` was called and there is something to do."""

    step_before: int
    step_after: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchScheduled(Event):
    """The scheduler is done: these requests go through the model, ``phase`` is "prefill", "decode" or "mixed"."""

    step: int
    phase: str
    seq_ids: tuple[int, ...]
    num_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TokensComputed(Event):
    """The model wrote the keys and values of the scheduled tokens."""

    seq_id: int
    num_cached_tokens_before: int
    num_cached_tokens_after: int
    num_scheduled_tokens_before: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenAppended(Event):
    """A sampled token joined the sequence; its own keys and values are computed in the next step."""

    seq_id: int
    token_id: int
    num_tokens_before: int
    num_tokens_after: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StepEnded(Event):
    """The step is over. ``failed``: it raised or was interrupted, and its requests are as before it."""

    step: int
    phase_before: str
    failed: bool = False


EVENT_TYPES: dict[str, type[Event]] = {
    kind.__name__: kind for kind in list(globals().values())
    if isinstance(kind, type) and issubclass(kind, Event) and kind is not Event
}


# --- who listens ---------------------------------------------------------------------------------------------------


class Observer(Protocol):
    """Anything that wants to see the ledger change. It is called on the engine's thread and must only look."""

    def on_event(self, event: Event) -> None: ...


class EventHub:
    """Hands each event to the attached observers, in the order they came. With none attached, a call does nothing.

    An observer that raises is detached with a warning: whoever watches can never break the engine.
    """

    def __init__(self, observers: Iterable[Observer] = ()) -> None:
        self._observers: tuple[Observer, ...] = tuple(observers)

    @property
    def observers(self) -> tuple[Observer, ...]:
        return self._observers

    def attach(self, observer: Observer) -> None:
        if not callable(getattr(observer, "on_event", None)):
            raise TypeError(f"an observer needs a method on_event(event); {observer!r} has none")
        if not any(o is observer for o in self._observers):
            self._observers = (*self._observers, observer)

    def detach(self, observer: Observer) -> None:
        """Stop telling ``observer``; one that is not attached is ignored."""
        self._observers = tuple(o for o in self._observers if o is not observer)

    def __call__(self, kind: type[Event], **values: Any) -> None:
        """Build one event and hand it on. By convention the call stands right below the line that made the change."""
        if not self._observers:
            return
        caller = sys._getframe(1)
        code = caller.f_code
        event = kind(**values, at=SourceLine(basename(code.co_filename), code.co_qualname, caller.f_lineno - 1))
        for observer in self._observers:
            try:
                observer.on_event(event)
            except Exception as error:
                self.detach(observer)
                warnings.warn(f"observer {observer!r} raised {error!r} on {kind.__name__} and was detached; "
                              "the engine goes on without it", RuntimeWarning, stacklevel=3)
