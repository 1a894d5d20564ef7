"""The law on a state document says what the law on the real objects says, and a row tells where it was broken."""
from __future__ import annotations

import pytest

from nanovllm_edu.engine import BlockManager, Scheduler, block_manager, violations
from nanovllm_edu.engine.invariants import ARTICLES
from nanovllm_edu.fuzz.breakages import BREAKAGES, Breakage
from nanovllm_edu.trace import Trace, law, snapshot
from nanovllm_edu.trace.recorder import start
from nanovllm_edu.widgets import Feed
from tests.ledger import golden

# The golden workloads have no collisions, and a document does not hold the set of used blocks.
OUT_OF_SIGHT = {"trust-the-hash", "forget-who-is-used"}
BROKEN_LEDGERS = [b for b in BREAKAGES
                  if b.caught_by == "law" and b.module is block_manager and b.name not in OUT_OF_SIGHT]


def test_sound_runs_are_sound_step_by_step() -> None:
    for workload in golden.load()[::40]:
        trace = None
        for scheduler, _, is_prefill, _ in golden.replay(workload):
            trace = trace or start(scheduler)
            if is_prefill is None:
                assert law.violations(snapshot(scheduler)) == []
                assert violations(scheduler.block_manager, scheduler.sequences) == []
        assert not any("v" in row for row in Feed(trace).message(0, len(trace.events))["rows"])


def broken_run(cls: type) -> tuple[Scheduler, Trace, list[str]]:
    """A golden workload under a broken manager, up to its first broken step, and what the law says of the objects."""
    for workload in golden.load():
        trace = None
        for scheduler, _, is_prefill, _ in golden.replay(workload, block_manager_class=cls):
            trace = trace or start(scheduler)
            if is_prefill is None and (real := violations(scheduler.block_manager, scheduler.sequences)):
                return scheduler, trace, real
    raise AssertionError("no golden workload ended a step with a broken ledger")


@pytest.mark.parametrize("breakage", BROKEN_LEDGERS, ids=lambda breakage: breakage.name)
def test_a_broken_ledger_is_told_in_the_same_sentences(breakage: Breakage) -> None:
    scheduler, _, real = broken_run(breakage.broken())
    told = law.breaches(snapshot(scheduler))
    assert {article for article, _ in told} <= set(ARTICLES)
    assert [sentence for _, sentence in told] == real


def test_the_row_of_a_steps_end_carries_the_breaches() -> None:
    """Under a manager that returns blocks which others hold; its events say so truly."""
    (breakage,) = (b for b in BREAKAGES if b.name == "free-while-shared")
    _, trace, real = broken_run(breakage.broken())
    rows = Feed(trace).message(0, len(trace.events))["rows"]
    assert [index for index, row in enumerate(rows) if "v" in row] == [len(rows) - 1]
    assert [sentence for _, sentence in rows[-1]["v"]] == real


def test_what_is_no_end_of_a_step_has_no_verdict() -> None:
    scheduler = Scheduler(golden.config(), block_manager_class=BlockManager)
    trace = start(scheduler)
    verdicts = law.Verdicts(trace)
    assert trace.events == [] and law.breaches(trace.initial) == []
    trace.initial["blocks"][3]["ref_count"] = 1
    assert law.breaches(trace.initial) == [
        ("pool", "block 3 is in the free queue with ref_count 1"),
        ("tables", "block 3 has ref_count 1, and 0 of the given block tables hold it")]
    assert verdicts.of(-1) == []
