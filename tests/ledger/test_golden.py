"""All recorded traces of the reference ledger replay exactly: ids, hashes, queue order, hits, preemptions, steps."""
from __future__ import annotations

import pytest

from nanovllm_edu.engine import BlockManager, check_invariants
from tests.ledger.golden import load, replay

TRACES = load()


def hex_or_none(hash: int) -> str | None:
    return None if hash == -1 else f"{hash:016x}"


@pytest.mark.parametrize("number", range(len(TRACES)))
def test_trace_replays_exactly(number: int) -> None:
    trace = TRACES[number]
    recorded = iter(trace["steps"])
    running_before: set[int] = set()
    sequences = {}
    for scheduler, seqs, is_prefill, t in replay(trace):
        sequences.update({seq.seq_id: seq for seq in scheduler.sequences})
        check_invariants(scheduler.block_manager, scheduler.sequences)
        if is_prefill is not None:
            step = next(recorded)
            waiting = {seq.seq_id for seq in scheduler.waiting}
            assert {
                "step": t,
                "phase": "prefill" if is_prefill else "decode",
                "scheduled": [[s.seq_id, s.num_cached_tokens, s.num_scheduled_tokens] for s in seqs],
                "block_tables": [[s.seq_id, s.block_table] for s in seqs],
                "preempted": sorted(running_before & waiting),
            } == {**{key: step[key] for key in ("step", "phase", "scheduled", "block_tables")},
                  "preempted": sorted(step["preempted"])}
        else:
            manager = scheduler.block_manager
            assert list(manager.free_block_ids) == step["free_block_ids"]
            assert [block.ref_count for block in manager.blocks] == step["ref_counts"]
            assert [hex_or_none(block.hash) for block in manager.blocks] == step["hashes"]
            assert sorted([f"{h:016x}", b] for h, b in manager.hash_to_block_id.items()) == step["hash_to_block_id"]
            assert sorted(s.seq_id for s in seqs if s.is_finished) == sorted(step["finished"])
        running_before = {seq.seq_id for seq in scheduler.running}
    assert next(recorded, None) is None
    assert [sequences[i].completion_token_ids for i in range(len(trace["requests"]))] == trace["outputs"]


def test_traces_are_all_there_and_hold_what_their_note_says() -> None:
    assert len(TRACES) == 300
    assert sum(any(step["preempted"] for step in trace["steps"]) for trace in TRACES) == 94


@pytest.mark.parametrize(("tokens", "prefix", "expected"), [
    ([1, 2, 3, 4], -1, "73f859a04f669e6d"),
    ([5, 6, 7, 8], 0x73F859A04F669E6D, "087884241753df3e"),
    ([65], -1, "ce764cf88f0ea6b8"),
    ([321], -1, "ddc0d08ba22ec254"),
    (range(256), -1, "486adfcc62236efe"),
])
def test_hash_vectors(tokens, prefix: int, expected: str) -> None:
    assert f"{BlockManager.compute_hash(tokens, prefix):016x}" == expected
