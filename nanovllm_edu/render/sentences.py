"""A sentence for every event: what happened, why, and the values before and after."""
from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ..engine import events as ev
from ..engine.events import Event
from .names import NO_HASH
from .parts import Part, block_part, hash_part, listed, plain, say, seq_part

Values = tuple[str, dict[str, Any]]
_SENTENCES: dict[type[Event], Callable[[Any], Values]] = {}


def sentence(event: Event | None, vocab: Mapping[int, str] | None = None, language: str = "en") -> list[Part]:
    """The parts of the event's sentence; None is the start of a trace.

    ``vocab`` maps token ids to their text, which is untrusted: it appears as text inside a part. Raises TypeError
    for an event that has no sentence.
    """
    if event is None:
        return say("start", language)
    if isinstance(event, ev.TokenAppended):
        return say("TokenAppended", language, seq=seq_part(event.seq_id), n=event.num_tokens_after,
                   token=_token(event.token_id, vocab or {}))
    tell = _SENTENCES.get(type(event))
    if tell is None:
        raise TypeError(f"no sentence for {type(event).__name__}: add one in render/sentences.py and render/strings.py")
    key, values = tell(event)
    if "seq_id" in type(event).__dataclass_fields__:
        values.setdefault("seq", seq_part(event.seq_id))
    return say(key, language, **values)


def sentence_text(event: Event | None, vocab: Mapping[int, str] | None = None, language: str = "en") -> str:
    """The event's sentence as plain text."""
    return plain(sentence(event, vocab, language))


def _token(token_id: int, vocab: Mapping[int, str]) -> str:
    text = vocab.get(token_id)
    return f"id {token_id}" if text is None else f"{text!r} (id {token_id})"


def _tells(kind: type[Event]) -> Callable[[Callable[[Any], Values]], Callable[[Any], Values]]:
    def keep(function: Callable[[Any], Values]) -> Callable[[Any], Values]:
        _SENTENCES[kind] = function
        return function
    return keep


# --- requests ------------------------------------------------------------------------------------------------------


@_tells(ev.RequestAdded)
def _(e: ev.RequestAdded) -> Values:
    values = {"n": len(e.token_ids), "max": e.max_tokens}
    if e.waiting_prev is None:
        return "RequestAdded.first", values
    return "RequestAdded.behind", values | {"prev": seq_part(e.waiting_prev)}


@_tells(ev.RequestRefused)
def _(e: ev.RequestRefused) -> Values:
    return "RequestRefused", {"reason": e.reason.rstrip(".")}


@_tells(ev.RequestScheduled)
def _(e: ev.RequestScheduled) -> Values:
    if not e.is_prefill_after:
        return "RequestScheduled.decode", {}
    return f"RequestScheduled.{'complete' if e.admitted else 'chunk'}", {"n": e.num_scheduled_tokens_after}


@_tells(ev.RequestPreempted)
def _(e: ev.RequestPreempted) -> Values:
    who = "self" if e.for_seq_id == e.seq_id else "other"
    return f"RequestPreempted.{who}", {"for_seq": seq_part(e.for_seq_id), "before": e.num_preemptions_before,
                                       "after": e.num_preemptions_after}


@_tells(ev.RequestFinished)
def _(e: ev.RequestFinished) -> Values:
    known = e.reason in ("eos", "stop", "length", "aborted", "kv_exhausted")
    return f"RequestFinished.{e.reason if known else 'other'}", {"reason": e.reason}


@_tells(ev.RequestRestored)
def _(e: ev.RequestRestored) -> Values:
    n = len(e.removed_token_ids)
    return ("RequestRestored.removed", {"n": n}) if n else ("RequestRestored", {})


@_tells(ev.QueuesRestored)
def _(e: ev.QueuesRestored) -> Values:
    if not e.waiting:
        return "QueuesRestored.none", {}
    return "QueuesRestored", {"seqs": listed(map(seq_part, e.waiting))}


# --- lookups -------------------------------------------------------------------------------------------------------


@_tells(ev.PrefixLookup)
def _(e: ev.PrefixLookup) -> Values:
    values: dict[str, Any] = {"logical": e.logical, "hash": hash_part(e.hash)}
    if e.block_id is not None:
        values["block"] = block_part(e.block_id)
    return f"PrefixLookup.{e.outcome}", values


@_tells(ev.AllocationDenied)
def _(e: ev.AllocationDenied) -> Values:
    return "AllocationDenied", {"n": e.num_needed_blocks, "free": e.num_free_blocks}


@_tells(ev.PrefixReused)
def _(e: ev.PrefixReused) -> Values:
    return "PrefixReused", {"n": e.num_cached_tokens_after, "before": e.num_cached_tokens_before,
                            "after": e.num_cached_tokens_after}


# --- blocks --------------------------------------------------------------------------------------------------------


@_tells(ev.EntryEvicted)
def _(e: ev.EntryEvicted) -> Values:
    values = {"block": block_part(e.block_id), "hash": hash_part(e.hash)}
    if e.block_id_after is None:
        return "EntryEvicted", values
    return "EntryEvicted.heir", values | {"heir": block_part(e.block_id_after)}


def _place(e: Any) -> dict[str, Any]:
    return {"block": block_part(e.block_id), "logical": e.logical, "before": e.ref_count_before,
            "after": e.ref_count_after}


@_tells(ev.BlockTaken)
def _(e: ev.BlockTaken) -> Values:
    if e.hash_before == NO_HASH:
        return "BlockTaken.empty", _place(e)
    return "BlockTaken.overwrites", _place(e) | {"hash": hash_part(e.hash_before)}


@_tells(ev.BlockShared)
def _(e: ev.BlockShared) -> Values:
    return "BlockShared", _place(e)


@_tells(ev.BlockRevived)
def _(e: ev.BlockRevived) -> Values:
    values = _place(e)
    if e.queue_prev is not None:
        values["prev"] = block_part(e.queue_prev)
    if e.queue_next is not None:
        values["next"] = block_part(e.queue_next)
    where = {(True, True): "middle", (False, True): "head", (True, False): "tail", (False, False): "only"}
    return f"BlockRevived.{where['prev' in values, 'next' in values]}", values


@_tells(ev.BlockRegistered)
def _(e: ev.BlockRegistered) -> Values:
    values = {"block": block_part(e.block_id), "logical": e.logical, "hash": hash_part(e.hash)}
    key = "BlockRegistered.first"
    if e.parent_hash != NO_HASH:
        key, values["parent"] = "BlockRegistered.link", hash_part(e.parent_hash)
    if e.block_id_before is not None and e.block_id_before != e.block_id:
        key, values["old"] = f"{key}.moved", block_part(e.block_id_before)
    return key, values


@_tells(ev.BlockReleased)
def _(e: ev.BlockReleased) -> Values:
    return f"BlockReleased.{'shared' if e.ref_count_after else 'last'}", _place(e)


@_tells(ev.BlockReturned)
def _(e: ev.BlockReturned) -> Values:
    if e.queue_prev is None:
        return "BlockReturned.first", {"block": block_part(e.block_id)}
    return "BlockReturned.behind", {"block": block_part(e.block_id), "prev": block_part(e.queue_prev)}


@_tells(ev.TableCleared)
def _(e: ev.TableCleared) -> Values:
    return "TableCleared", {"blocks": listed(map(block_part, reversed(e.block_table_before))),
                            "before": e.num_cached_tokens_before}


@_tells(ev.BlockForgotten)
def _(e: ev.BlockForgotten) -> Values:
    return "BlockForgotten", {"block": block_part(e.block_id), "hash": hash_part(e.hash_before)}


@_tells(ev.LedgerReset)
def _(e: ev.LedgerReset) -> Values:
    return "LedgerReset", {"n": e.num_blocks, "size": e.block_size}


# --- steps ---------------------------------------------------------------------------------------------------------


@_tells(ev.StepBegan)
def _(e: ev.StepBegan) -> Values:
    return "StepBegan", {"step": e.step_after}


@_tells(ev.BatchScheduled)
def _(e: ev.BatchScheduled) -> Values:
    if not e.seq_ids:
        return "BatchScheduled.none", {"step": e.step}
    return f"BatchScheduled.{e.phase}", {"step": e.step, "seqs": listed(map(seq_part, e.seq_ids)), "n": e.num_tokens}


@_tells(ev.TokensComputed)
def _(e: ev.TokensComputed) -> Values:
    return "TokensComputed", {"n": e.num_cached_tokens_after - e.num_cached_tokens_before,
                              "before": e.num_cached_tokens_before, "after": e.num_cached_tokens_after}


@_tells(ev.StepEnded)
def _(e: ev.StepEnded) -> Values:
    return f"StepEnded{'.failed' if e.failed else ''}", {"step": e.step}
