"""Ctrl-C at any line of a step: no request lost, no block lost, and the same answers as if nothing had happened.

Every line of ``schedule``, ``postprocess`` and whatever they call in the engine is interrupted, the first time that
it runs (in one workload the last time too), in workloads that admit, share, revive, chunk, preempt and finish.
"""
from __future__ import annotations

import gc
import inspect
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import count

import pytest

from nanovllm_edu.engine import BlockManager, Scheduler, check_invariants
from nanovllm_edu.engine.events import (
    BlockRevived,
    BlockShared,
    LedgerReset,
    RequestFinished,
    RequestPreempted,
    RequestScheduled,
)
from nanovllm_edu.engine.prefix import Prefix
from nanovllm_edu.trace import apply, patches, snapshot
from tests.ledger.golden import next_token
from tests.ledger.helpers import Log, is_empty, request, run, scheduler, step
from tests.ledger.interrupt import Place, Tracer, first, first_and_last

STEM = [1, 2, 3, 4, 1, 2, 3, 4]
WORKLOADS = {
    # arrivals by step; requests share a stem, one comes back to freed blocks, the pool is too small for all
    "tight": (dict(num_kvcache_blocks=6, max_num_batched_tokens=7, max_num_seqs=3),
              {0: [(STEM, 7), ([*STEM, 0], 5)], 2: [([*STEM, 3, 3], 6)], 9: [([*STEM, 0, 1], 3)]}),
    "copies": (dict(num_kvcache_blocks=10, max_num_batched_tokens=30, prefix_cache_duplicates="all"),
               {0: [([*STEM, 1], 20), ([*STEM, 1], 3), ([*STEM, 1], 2)], 4: [([2] * 20, 9)], 12: [([*STEM, 1], 2)]}),
    "mixed": (dict(num_kvcache_blocks=6, max_num_batched_tokens=5, scheduling_policy="mixed"),
              {0: [(STEM, 9)], 1: [([*STEM, 2, 2], 6)], 2: [([3] * 11, 5)]}),
    "uncached": (dict(num_kvcache_blocks=5, max_num_batched_tokens=10, enable_prefix_caching=False),
                 {0: [(STEM, 6), (STEM, 6)]}),
}


class Reducer:
    """The trace's state, kept from events alone."""

    def __init__(self, sch: Scheduler) -> None:
        self.scheduler, self.state = sch, snapshot(sch)
        sch.emit.attach(self)

    def on_event(self, event) -> None:
        apply(self.state, patches(self.state, event))

    def check(self) -> None:
        real = snapshot(self.scheduler)
        live = {key: seq for key, seq in self.state["seqs"].items() if key in real["seqs"]}
        assert {**self.state, "seqs": live} == real


@dataclass
class Interrupted:
    """Where a run was interrupted, and the answers that it gave all the same."""

    place: Place
    outputs: dict[int, list[int]]
    scheduler: Scheduler


def drive(name: str, at: int | None = None, in_model: int | None = None) -> tuple[Interrupted, list[Place], Log]:
    """Run a workload. ``at``: the number of the engine's line at which to interrupt it; ``in_model``: the step."""
    options, arrivals = WORKLOADS[name]
    sch = scheduler(**options)
    log, reducer = Log(sch), Reducer(sch)
    requests, lines, t, interrupted_at = [], [], 0, None
    while t <= max(arrivals) or not sch.is_finished():
        for prompt, max_tokens in arrivals.get(t, ()):
            requests.append(request(prompt, len(requests), max_tokens))
            sch.add(requests[-1])
        before = {seq.seq_id: (seq, seq.num_tokens) for seq in sch.sequences}
        tokens = {seq_id: list(seq.token_ids) for seq_id, (seq, _) in before.items()}
        tracer = Tracer(None if at is None else at - len(lines), skip=("on_event",))
        try:
            with tracer if interrupted_at is None else nullcontext():
                seqs, is_prefill = sch.schedule()
            if t == in_model:
                raise KeyboardInterrupt("in the model")
            sampled = [next_token(seq) for seq in seqs]
            with tracer if interrupted_at is None else nullcontext():
                sch.postprocess(seqs, sampled, is_prefill)
        except KeyboardInterrupt:
            interrupted_at = t
            sch.recover(before)
            assert [seq.seq_id for seq in sch.waiting] == sorted(before) and not sch.running
            assert {seq.seq_id: seq.token_ids for seq in sch.sequences} == tokens
            assert not sch.in_step and sch.phase == "" and not any(seq.block_table for seq in sch.sequences)
        if interrupted_at is not None and t <= interrupted_at + 1:
            check_invariants(sch.block_manager, sch.sequences)
            reducer.check()
        lines += tracer.lines
        t += 1
        assert t < 300, "the run does not come to an end"
    assert is_empty(sch)
    reducer.check()
    outputs = {seq.seq_id: seq.completion_token_ids for seq in requests}
    return Interrupted(lines[at - 1] if at else ("", 0), outputs, sch), lines, log


def test_the_workloads_do_what_they_are_for() -> None:
    seen = set()
    for name in WORKLOADS:
        _, _, log = drive(name)
        seen |= {type(event) for event in log.events}
        assert log.of(RequestFinished)
        if any(not e.admitted and e.is_prefill_after for e in log.of(RequestScheduled)):
            seen.add("chunk")
    assert {BlockShared, BlockRevived, RequestPreempted, "chunk"} <= seen


@pytest.mark.parametrize("name", WORKLOADS)
def test_every_line(name: str) -> None:
    undisturbed, lines, _ = drive(name)
    for at in first_and_last(lines) if name == "tight" else first(lines):
        interrupted, _, _ = drive(name, at)
        assert interrupted.outputs == undisturbed.outputs, interrupted.place


def test_every_line_means_every_line() -> None:
    """No line of a step's functions is left out, save those that raise an error or belong to other options."""
    ran = {place for name in WORKLOADS for place in drive(name)[1]}
    for method in (Scheduler.schedule, Scheduler.postprocess, Scheduler.preempt, Scheduler.finish,
                   Scheduler._schedule_decodes, Scheduler._schedule_prefills, Scheduler._schedule_chunk,
                   BlockManager.allocate, BlockManager.hash_blocks, BlockManager.deallocate, BlockManager._evict):
        code = inspect.unwrap(method).__code__
        mine = {line for _, _, line in code.co_lines() if line is not None and line != code.co_firstlineno}
        source = inspect.getsource(method).splitlines()
        missing = {line for line in mine - {line for file, line in ran if file == code.co_filename.rpartition("/")[2]}
                   if "raise LedgerError" not in source[line - code.co_firstlineno]
                   and not source[line - code.co_firstlineno].lstrip().startswith(("f\"", "\"", "return [], False"))}
        assert not missing, (method.__qualname__, [source[line - code.co_firstlineno] for line in sorted(missing)])


@pytest.mark.parametrize("name", WORKLOADS)
def test_inside_the_model_the_cache_is_kept(name: str) -> None:
    """Nothing was half changed then, so the ledger does not begin anew: what was cached is found again."""
    undisturbed, _, _ = drive(name)
    for t in range(12):
        interrupted, _, log = drive(name, in_model=t)
        assert interrupted.outputs == undisturbed.outputs
        assert not log.of(LedgerReset)


@pytest.mark.parametrize("call", ["add", "abort", "abort_waiting", "reset_prefix_cache"])
def test_every_line_between_two_steps(call: str) -> None:
    """Interrupted, ``add`` leaves its request outside; ``abort`` and ``reset_prefix_cache`` can be called again."""
    def prepared() -> tuple[Scheduler, Reducer, dict]:
        sch, new_ids = scheduler(max_num_seqs=2), count(9)
        reducer = Reducer(sch)
        for seq_id in range(4):
            sch.add(request([*STEM, seq_id], seq_id, 5))
        if call == "reset_prefix_cache":
            while not sch.is_finished():
                step(sch)
        else:
            step(sch), step(sch)
        return sch, reducer, {
            "add": lambda: sch.add(request(STEM, next(new_ids), 3)), "abort": lambda: sch.abort(1),
            "abort_waiting": lambda: sch.abort(3), "reset_prefix_cache": sch.reset_prefix_cache}

    _, _, calls = prepared()
    with Tracer(skip=("on_event",)) as tracer:
        calls[call]()
    for at in range(1, len(tracer.lines) + 1):
        sch, reducer, calls = prepared()
        ids = {seq.seq_id for seq in sch.sequences}
        with pytest.raises(KeyboardInterrupt), Tracer(at, skip=("on_event",)):
            calls[call]()
        check_invariants(sch.block_manager, sch.sequences)
        reducer.check()
        assert {seq.seq_id for seq in sch.sequences} in ([ids, ids - {1}, ids - {3}] if "abort" in call else [ids])
        calls[call]()
        run(sch)
        reducer.check()
        assert is_empty(sch)


def test_200_interruptions_in_a_row_leak_nothing() -> None:
    def interrupt_once(number: int) -> bool:
        seq = request([*STEM, number % 3, number % 5, 7], number, 1 + number % 2)
        sch.add(seq)
        before = {number: (seq, seq.num_tokens)}
        try:
            with Tracer(at=1 + number):
                step(sch)
        except KeyboardInterrupt:
            sch.recover(before)
            sch.abort(number)
            return True
        return False

    def prefixes() -> int:
        gc.collect()
        return sum(type(found) is Prefix for found in gc.get_objects())

    before_all = prefixes()  # other tests' engines may be alive
    sch = scheduler(num_kvcache_blocks=6)
    assert all([interrupt_once(number) for number in range(200)])
    run(sch)
    sch.reset_prefix_cache()
    assert prefixes() <= before_all
    assert not sch._live and not sch.block_manager._prefixes._interned and not sch.block_manager._prefixes._chains
