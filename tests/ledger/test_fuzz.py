"""The fuzz finds nothing in the ledger, and every listed one-line breakage of it."""
from __future__ import annotations

from dataclasses import replace

import pytest

from nanovllm_edu.engine import BlockManager, Scheduler, block_manager
from nanovllm_edu.fuzz import FEATURES, draw, fuzz
from nanovllm_edu.fuzz.breakages import BREAKAGES, Breakage, kind_of
from nanovllm_edu.fuzz.runner import attempt

RUNS = 1000


def test_nothing_is_found_and_every_feature_is_common() -> None:
    failure, counts, made = fuzz(RUNS, first_seed=1_000_000)
    assert failure is None, failure
    assert made == RUNS
    assert {name: counts[name] / made for name in FEATURES if counts[name] < made / 5} == {}


def test_a_seed_is_always_the_same_workload() -> None:
    assert draw(7) == draw(7) != draw(8)


@pytest.mark.parametrize("breakage", BREAKAGES, ids=lambda breakage: breakage.name)
def test_every_breakage_is_found(breakage: Breakage) -> None:
    """Within 500 runs, by the check that the list names, in a workload of three requests at most."""
    failure, made = breakage.find(500)
    assert failure is not None and made <= 500
    assert kind_of(failure.error) == breakage.caught_by, failure
    assert len(failure.workload.requests) <= 3
    cls = breakage.broken()
    classes = (cls, Scheduler) if breakage.module is block_manager else (BlockManager, cls)
    assert type(attempt(failure.workload, *classes)) is type(failure.error), "the small workload fails as well"
    assert attempt(failure.workload, BlockManager) is None, "and only because of the breakage"


def test_breakages_are_single_lines_of_today() -> None:
    assert len({breakage.name for breakage in BREAKAGES}) == len(BREAKAGES) >= 20
    for breakage in BREAKAGES:
        assert breakage.source() != ""                # raises if the line does not stand there exactly once
        assert breakage.story.endswith(".")


def test_a_breakage_whose_line_is_gone_says_so() -> None:
    stale = replace(BREAKAGES[0], line="this line is not there")
    with pytest.raises(ValueError, match="its line stands 0 times in nanovllm_edu.engine.block_manager"):
        stale.source()


def test_the_command_line(capsys) -> None:
    from nanovllm_edu.__main__ import main

    assert main(["fuzz", "--runs", "20", "--seed", "5"]) == 0
    out = capsys.readouterr().out
    assert "20 runs from seed 5" in out and "no failure" in out and "preempt" in out
