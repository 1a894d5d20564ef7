"""What an event changes in the state document, as patches that can be applied and reverted.

Four kinds, all invertible without looking anywhere else, so that a browser can go back and forward and decide nothing:

- ``["set", path, before, after]``: the value at ``path``; None means absent.
- ``["link", path, value, prev]``, ``["unlink", path, value, prev]``: ``value`` enters or leaves the list at ``path``,
  right behind ``prev`` (None: at the head).
- ``["push", path, value]``, ``["pop", path, value]``: at the end of the list at ``path``.

``apply`` and ``revert`` check every value that they replace: a trace that does not fit its own state raises TraceError
rather than show a wrong picture.
"""
from __future__ import annotations

from collections.abc import Iterable
from copy import deepcopy
from typing import Any

from ..engine import events as ev
from ..errors import NanoVLLMError
from .state import State, block_state, hex_hash, sequence_state

Patch = list[Any]


class TraceError(NanoVLLMError, ValueError):
    """A trace that is damaged, of an unknown version, or does not fit its own state."""


def apply(state: State, patches: Iterable[Patch]) -> None:
    """Change ``state`` in place to what it is after the patches."""
    for patch in patches:
        _do(state, *patch)


def revert(state: State, patches: Iterable[Patch]) -> None:
    """Change ``state`` in place back to what it was before the patches."""
    for op, path, *values in reversed(list(patches)):
        if op == "set":
            values.reverse()
        _do(state, {"set": "set", "link": "unlink", "unlink": "link", "push": "pop", "pop": "push"}[op], path, *values)


def _do(state: State, op: str, path: list, *values: Any) -> None:
    try:
        place = state
        for key in path[:-1]:
            place = place[key]
        key = path[-1]
        if op == "set":
            before, after = values
            _expect(path, place.get(key) if isinstance(place, dict) else place[key], before)
            if after is None:
                place.pop(key, None)
            else:
                place[key] = deepcopy(after) if isinstance(after, (list, dict)) else after
        elif op in ("link", "unlink"):
            value, prev = values
            index = 0 if prev is None else place[key].index(prev) + 1
            if op == "link":
                place[key].insert(index, value)
            else:
                _expect(path, place[key][index], value)
                del place[key][index]
        elif op == "push":
            place[key].append(values[0])
        else:
            _expect(path, place[key].pop(), values[0])
    except (KeyError, IndexError, ValueError, TypeError, AttributeError) as error:
        if isinstance(error, TraceError):
            raise
        raise TraceError(f"{op} at {path} with {values} does not fit the state: {error!r}") from error


def _expect(path: list, found: Any, expected: Any) -> None:
    if found != expected:
        raise TraceError(f"the trace says that {path} was {expected!r}, and it is {found!r}: "
                         "an event is missing or was changed")


def patches(state: State, event: ev.Event) -> list[Patch]:
    """What ``event`` changes in ``state``, which must be the state right before it. Does not change ``state``."""
    return _PATCHES.get(type(event), _nothing)(state, event)


def _nothing(state: State, e: ev.Event) -> list[Patch]:
    return []


def _seq(e: Any, field: str, before: Any, after: Any) -> list[Patch]:
    return [] if before == after else [["set", ["seqs", str(e.seq_id), field], before, after]]


def _block(e: Any, field: str, before: Any, after: Any) -> list[Patch]:
    return [] if before == after else [["set", ["blocks", e.block_id, field], before, after]]


def _added(state: State, e: ev.RequestAdded) -> list[Patch]:
    return [["set", ["seqs", str(e.seq_id)], None, sequence_state(list(e.token_ids))],
            ["link", ["waiting"], e.seq_id, e.waiting_prev]]


def _scheduled(state: State, e: ev.RequestScheduled) -> list[Patch]:
    moved = [] if not e.admitted else [
        *_seq(e, "status", "WAITING", "RUNNING"), ["link", ["running"], e.seq_id, e.running_prev],
        ["unlink", ["waiting"], e.seq_id, None]]
    return [*_seq(e, "num_scheduled_tokens", e.num_scheduled_tokens_before, e.num_scheduled_tokens_after),
            *_seq(e, "is_prefill", e.is_prefill_before, e.is_prefill_after), *moved]


def _preempted(state: State, e: ev.RequestPreempted) -> list[Patch]:
    moved = [] if e.status_before == "WAITING" else [
        ["link", ["waiting"], e.seq_id, None], ["unlink", ["running"], e.seq_id, e.running_prev]]
    return [*_seq(e, "status", e.status_before, "WAITING"), *_seq(e, "is_prefill", e.is_prefill_before, True),
            *_seq(e, "num_scheduled_tokens", e.num_scheduled_tokens_before, 0),
            *_seq(e, "num_preemptions", e.num_preemptions_before, e.num_preemptions_after), *moved]


def _finished(state: State, e: ev.RequestFinished) -> list[Patch]:
    queue = "running" if e.status_before == "RUNNING" else "waiting"
    return [["unlink", [queue], e.seq_id, e.queue_prev], *_seq(e, "status", e.status_before, "FINISHED"),
            *_seq(e, "finish_reason", "", e.reason),
            *_seq(e, "num_scheduled_tokens", e.num_scheduled_tokens_before, 0)]


def _restored(state: State, e: ev.RequestRestored) -> list[Patch]:
    """The failed step may have been cut between a change and its event, so the old values come from the state."""
    seq = state["seqs"][str(e.seq_id)]
    after = {"status": "WAITING", "finish_reason": "", "is_prefill": True, "num_scheduled_tokens": 0,
             "num_cached_tokens": 0, "block_table": [], "token_ids": seq["token_ids"][:e.num_tokens],
             "num_preemptions": e.num_preemptions}
    return [patch for field, value in after.items() for patch in _seq(e, field, deepcopy(seq[field]), value)]


def _queues_restored(state: State, e: ev.QueuesRestored) -> list[Patch]:
    return [["set", ["waiting"], list(state["waiting"]), list(e.waiting)],
            ["set", ["running"], list(state["running"]), []]]


def _reused(state: State, e: ev.PrefixReused) -> list[Patch]:
    return _seq(e, "num_cached_tokens", e.num_cached_tokens_before, e.num_cached_tokens_after)


def _evicted(state: State, e: ev.EntryEvicted) -> list[Patch]:
    return [["set", ["map", hex_hash(e.hash)], e.block_id, e.block_id_after]]


def _taken(state: State, e: ev.BlockTaken) -> list[Patch]:
    return [["unlink", ["queue"], e.block_id, None], *_block(e, "ref_count", e.ref_count_before, e.ref_count_after),
            *_block(e, "hash", hex_hash(e.hash_before), ""), *_block(e, "token_ids", list(e.token_ids_before), []),
            ["push", ["seqs", str(e.seq_id), "block_table"], e.block_id]]


def _shared(state: State, e: ev.BlockShared) -> list[Patch]:
    return [*_block(e, "ref_count", e.ref_count_before, e.ref_count_after),
            ["push", ["seqs", str(e.seq_id), "block_table"], e.block_id]]


def _revived(state: State, e: ev.BlockRevived) -> list[Patch]:
    return [["unlink", ["queue"], e.block_id, e.queue_prev],
            *_block(e, "ref_count", e.ref_count_before, e.ref_count_after),
            ["push", ["seqs", str(e.seq_id), "block_table"], e.block_id]]


def _registered(state: State, e: ev.BlockRegistered) -> list[Patch]:
    entry = [] if e.block_id_before == e.block_id else [
        ["set", ["map", hex_hash(e.hash)], e.block_id_before, e.block_id]]
    return [*_block(e, "hash", hex_hash(e.hash_before), hex_hash(e.hash)),
            *_block(e, "token_ids", list(e.token_ids_before), list(e.token_ids)), *entry]


def _released(state: State, e: ev.BlockReleased) -> list[Patch]:
    return _block(e, "ref_count", e.ref_count_before, e.ref_count_after)


def _returned(state: State, e: ev.BlockReturned) -> list[Patch]:
    return [["link", ["queue"], e.block_id, e.queue_prev]]


def _cleared(state: State, e: ev.TableCleared) -> list[Patch]:
    return [*_seq(e, "block_table", list(e.block_table_before), []),
            *_seq(e, "num_cached_tokens", e.num_cached_tokens_before, 0)]


def _forgotten(state: State, e: ev.BlockForgotten) -> list[Patch]:
    return [*_block(e, "hash", hex_hash(e.hash_before), ""), *_block(e, "token_ids", list(e.token_ids_before), [])]


def _reset(state: State, e: ev.LedgerReset) -> list[Patch]:
    return [["set", ["blocks"], deepcopy(state["blocks"]), [block_state() for _ in range(e.num_blocks)]],
            ["set", ["queue"], list(state["queue"]), list(range(e.num_blocks))],
            ["set", ["map"], dict(state["map"]), {}]]


def _step_began(state: State, e: ev.StepBegan) -> list[Patch]:
    return [["set", ["step"], e.step_before, e.step_after], ["set", ["in_step"], state["in_step"], True]]


def _batch(state: State, e: ev.BatchScheduled) -> list[Patch]:
    return [["set", ["phase"], state["phase"], e.phase]]


def _computed(state: State, e: ev.TokensComputed) -> list[Patch]:
    return [*_seq(e, "num_scheduled_tokens", e.num_scheduled_tokens_before, 0),
            *_seq(e, "num_cached_tokens", e.num_cached_tokens_before, e.num_cached_tokens_after)]


def _appended(state: State, e: ev.TokenAppended) -> list[Patch]:
    return [["push", ["seqs", str(e.seq_id), "token_ids"], e.token_id]]


def _step_ended(state: State, e: ev.StepEnded) -> list[Patch]:
    # a step that was cut before it could say that it began counts all the same
    begun = [] if state["step"] == e.step else [["set", ["step"], state["step"], e.step]]
    return [*begun, ["set", ["in_step"], state["in_step"], False], ["set", ["phase"], state["phase"], ""]]


_PATCHES = {
    ev.RequestAdded: _added, ev.RequestScheduled: _scheduled, ev.RequestPreempted: _preempted,
    ev.RequestFinished: _finished, ev.RequestRestored: _restored, ev.QueuesRestored: _queues_restored,
    ev.PrefixReused: _reused, ev.EntryEvicted: _evicted, ev.BlockTaken: _taken, ev.BlockShared: _shared,
    ev.BlockRevived: _revived, ev.BlockRegistered: _registered, ev.BlockReleased: _released,
    ev.BlockReturned: _returned, ev.TableCleared: _cleared, ev.BlockForgotten: _forgotten, ev.LedgerReset: _reset,
    ev.StepBegan: _step_began, ev.BatchScheduled: _batch, ev.TokensComputed: _computed, ev.TokenAppended: _appended,
    ev.StepEnded: _step_ended,
}
