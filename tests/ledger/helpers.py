"""What the ledger's tests share: schedulers without a model, requests, and a pool that is filled by hand."""
from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from nanovllm_edu import SamplingParams
from nanovllm_edu.engine import BlockManager, Event, Scheduler, Sequence, check_invariants
from tests.ledger.golden import config, next_token

BLOCK_SIZE = 4


def scheduler(manager: type = BlockManager, **options: Any) -> Scheduler:
    """A scheduler with blocks of 4 tokens, 8 of them unless told otherwise."""
    return Scheduler(config(**options), manager)


def request(tokens: Iterable[int], seq_id: int | None = None, max_tokens: int = 6, salt: str | None = None,
            block_size: int = BLOCK_SIZE, **params: Any) -> Sequence:
    params = SamplingParams(**{"max_tokens": max_tokens, "ignore_eos": True, **params})
    return Sequence(tokens, params, block_size, seq_id=seq_id, cache_salt=salt)


def step(sch: Scheduler, tokens: dict[int, int] | None = None) -> list[Sequence]:
    """One whole step, the law checked in it and after it. ``tokens``: what to sample, by seq_id."""
    seqs, is_prefill = sch.schedule()
    check_invariants(sch.block_manager, sch.sequences)
    sch.postprocess(seqs, [(tokens or {}).get(seq.seq_id, next_token(seq)) for seq in seqs], is_prefill)
    check_invariants(sch.block_manager, sch.sequences)
    return seqs


def run(sch: Scheduler, limit: int = 500) -> int:
    """Step until nothing is left to do; the number of steps. Fails after ``limit`` steps."""
    for steps in range(limit):
        if sch.is_finished():
            return steps
        step(sch)
    raise AssertionError(f"requests {sch.sequences} are not finished after {limit} steps")


def is_empty(sch: Scheduler) -> bool:
    """Nobody waits, runs or holds a block, and the whole pool is free."""
    manager = sch.block_manager
    return (not sch.sequences and not sch.waiting and not sch.running and not manager.used_block_ids
            and len(manager.free_block_ids) == len(manager.blocks) and not any(b.ref_count for b in manager.blocks))


def admit(manager: BlockManager, tokens: Iterable[int] | Sequence, **options: Any) -> Sequence:
    """Allocate a prompt and compute it whole, as one step of the engine does."""
    seq = tokens if isinstance(tokens, Sequence) else request(tokens, block_size=manager.block_size, **options)
    hits = manager.can_allocate(seq)
    assert hits >= 0, f"{seq} does not fit"
    manager.allocate(seq, hits)
    compute(manager, seq)
    return seq


def compute(manager: BlockManager, seq: Sequence) -> None:
    """Count everything that is not computed yet as computed, and register the blocks that became full."""
    seq.num_scheduled_tokens = seq.num_tokens - seq.num_cached_tokens
    manager.hash_blocks(seq)
    seq.num_cached_tokens, seq.num_scheduled_tokens = seq.num_tokens, 0


def decode(manager: BlockManager, seq: Sequence, token: int) -> None:
    """Append a token, take a block if it opens one, and compute it."""
    seq.append_token(token)
    assert manager.can_append(seq)
    manager.may_append(seq)
    compute(manager, seq)


def queue(manager: BlockManager) -> list[int]:
    """Free block ids, head to tail."""
    return list(manager.free_block_ids)


def refs(manager: BlockManager) -> list[int]:
    return [block.ref_count for block in manager.blocks]


class Log:
    """An observer that keeps every event."""

    def __init__(self, *sources: Any) -> None:
        self.events: list[Event] = []
        for source in sources:
            source.emit.attach(self)

    def on_event(self, event: Event) -> None:
        self.events.append(event)

    def of(self, *kinds: type[Event]) -> list[Any]:
        return [event for event in self.events if isinstance(event, kinds)]
