"""Run workloads through the real scheduler and block manager with the shadow model, and judge every step."""
from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from ..engine import BlockManager, Scheduler, Sequence, check_invariants
from ..engine.events import BlockRevived, BlockShared, Event, PrefixLookup, RequestPreempted, RequestScheduled
from ..errors import LedgerError, RequestError
from ..sampling_params import SamplingParams
from .books import Books, audit_answer
from .shadow import ShadowModel
from .workload import Workload, draw, smaller

MAX_STEPS = 2000
FEATURES = ("preempt", "chunk", "revive", "share", "collide")


class Livelock(Exception):
    """The run did not come to an end."""


class Features:
    """An observer that notes which of the interesting things a run did."""

    def __init__(self) -> None:
        self.seen: set[str] = set()

    def on_event(self, event: Event) -> None:
        if isinstance(event, RequestPreempted):
            self.seen.add("preempt")
        elif isinstance(event, BlockRevived):
            self.seen.add("revive")
        elif isinstance(event, BlockShared):
            self.seen.add("share")
        elif isinstance(event, PrefixLookup) and event.outcome == "collision":
            self.seen.add("collide")
        elif isinstance(event, RequestScheduled) and event.is_prefill_after and not event.admitted:
            self.seen.add("chunk")


@dataclass(frozen=True)
class Failure:
    """A workload that broke the ledger, made as small as it goes, and what was seen."""

    seed: int
    workload: Workload
    error: Exception

    def __str__(self) -> str:
        return f"seed {self.seed}: {type(self.error).__name__}: {self.error}\n  smallest workload: {self.workload}"


def weak_hashes(manager: type, bits: int) -> type:
    """The same manager with hashes of a few bits, so that different prefixes collide all the time."""
    if bits == 64:
        return manager

    class WeakHashes(manager):
        @classmethod
        def compute_hash(cls, token_ids: Any, prefix: int = -1) -> int:
            return super().compute_hash(token_ids, prefix) % (1 << bits)

    return WeakHashes


def run(workload: Workload, manager: type = BlockManager, scheduler_class: type = Scheduler,
        observers: Iterable[Any] = ()) -> dict[int, list[int]]:
    """Run one workload to its end; returns the tokens of each finished request. Raises what goes wrong:
    LedgerError (the law), ShadowError (a wrong read), BooksError (possible, but not right), Livelock, or whatever the
    code under test raises."""
    scheduler = scheduler_class(SimpleNamespace(
        max_num_seqs=workload.max_num_seqs, max_num_batched_tokens=workload.max_num_batched_tokens, eos_token_ids=(),
        kvcache_block_size=workload.block_size, num_kvcache_blocks=workload.num_blocks,
        scheduling_policy=workload.policy, enable_prefix_caching=workload.caching,
        prefix_cache_duplicates=workload.duplicates,
    ), weak_hashes(manager, workload.hash_bits), observers)
    model = ShadowModel(workload.num_blocks, workload.block_size)
    # the hashes of a few bits are wrong on purpose; with "all", a copy may take over an entry
    books = Books(scheduler, checks_hashes=workload.hash_bits == 64, checks_map=workload.duplicates == "last")
    scheduler.emit.attach(books)
    waiting = list(enumerate(workload.requests))
    outputs: dict[int, list[int]] = {}
    t = 0
    while waiting or not scheduler.is_finished():
        while waiting and waiting[0][1].arrival <= t:
            _add(scheduler, *waiting.pop(0), workload.block_size)
        for seq_id, request in enumerate(workload.requests):
            if request.abort_at == t:
                scheduler.abort(seq_id)
        if t in workload.reset_at and not scheduler.block_manager.used_block_ids:
            scheduler.reset_prefix_cache()
        _judge(scheduler, books)
        if not scheduler.is_finished():
            for seq in _step(scheduler, model, books, fails=t in workload.fail_at):
                audit_answer(seq, workload.requests[seq.seq_id].prompt)
                outputs[seq.seq_id] = seq.completion_token_ids
            _judge(scheduler, books)
        t += 1
        if t > MAX_STEPS:
            raise Livelock(f"{t} steps, and requests {[seq.seq_id for seq in scheduler.sequences]} are not finished")
    if len(scheduler.block_manager.free_block_ids) != workload.num_blocks:
        raise LedgerError("the run is over and blocks are still in use")
    return outputs


def _add(scheduler: Scheduler, seq_id: int, request: Any, block_size: int) -> None:
    try:
        scheduler.add(Sequence(request.prompt, SamplingParams(max_tokens=request.max_tokens, ignore_eos=True),
                               block_size, seq_id=seq_id, cache_salt=request.salt))
    except RequestError:
        if (len(request.prompt) + block_size - 1) // block_size <= scheduler.num_blocks:
            raise


def _step(scheduler: Scheduler, model: ShadowModel, books: Books, fails: bool) -> list[Sequence]:
    before = {seq.seq_id: (seq, seq.num_tokens) for seq in scheduler.sequences}
    seqs, is_prefill = scheduler.schedule()
    if len(scheduler.running) > scheduler.max_num_seqs:
        raise LedgerError(f"{len(scheduler.running)} requests run, and max_num_seqs is {scheduler.max_num_seqs}")
    _judge(scheduler, books)
    tokens = model.run(seqs)
    if fails:
        scheduler.recover(before)
        return []
    scheduler.postprocess(seqs, tokens, is_prefill)
    return [seq for seq in seqs if seq.is_finished]


def _judge(scheduler: Scheduler, books: Books) -> None:
    check_invariants(scheduler.block_manager, scheduler.sequences)
    books.audit()


def fuzz(runs: int, first_seed: int = 0, manager: type = BlockManager, scheduler_class: type = Scheduler,
         progress: Callable[[Iterable[int]], Iterable[int]] = lambda seeds: seeds,
         ) -> tuple[Failure | None, Counter[str], int]:
    """Run ``runs`` seeds until one fails. Returns the shrunk failure or None, in how many runs each of FEATURES
    showed, and the number of runs made."""
    counts: Counter[str] = Counter()
    made = 0
    for seed in progress(range(first_seed, first_seed + runs)):
        features = Features()
        workload = draw(seed)
        made += 1
        error = attempt(workload, manager, scheduler_class, [features])
        counts.update(features.seen)
        if error is not None:
            return shrink(seed, workload, error, manager, scheduler_class), counts, made
    return None, counts, made


def attempt(workload: Workload, manager: type, scheduler_class: type = Scheduler,
            observers: Iterable[Any] = ()) -> Exception | None:
    """What a run raises, None if all is well."""
    try:
        run(workload, manager, scheduler_class, observers)
    except Exception as error:
        return error
    return None


def shrink(seed: int, workload: Workload, error: Exception, manager: type,
           scheduler_class: type = Scheduler) -> Failure:
    """Cut the workload down while it still fails in the same way (the same type of error)."""
    found = True
    while found:
        found = False
        for candidate in smaller(workload):
            again = attempt(candidate, manager, scheduler_class)
            if type(again) is type(error):
                workload, error, found = candidate, again, True
                break
    return Failure(seed, workload, error)
