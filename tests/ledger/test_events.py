"""Every event tells the truth when it is told: right after its own change, of the objects themselves."""
from __future__ import annotations

from typing import Any

import pytest

from nanovllm_edu.engine import Scheduler, events
from nanovllm_edu.engine.events import EventHub, RequestAdded
from nanovllm_edu.fuzz import draw
from nanovllm_edu.fuzz.runner import run as run_workload
from tests.ledger.helpers import Log, request, scheduler, step


class Witness:
    """Compares what an event says with the scheduler's own objects, at once."""

    def __init__(self) -> None:
        self.scheduler: Scheduler | None = None
        self.wrong: list[str] = []
        self.seen: set[str] = set()

    def on_event(self, e: Any) -> None:
        self.seen.add(type(e).__name__)
        try:
            self.wrong += [f"{claim}: {e}" for claim, holds in self.claims(e) if not holds]
        except Exception as error:                    # the hub would only warn
            self.wrong.append(f"{error!r}: {e}")

    def claims(self, e: Any) -> list[tuple[str, bool]]:
        sch = self.scheduler
        manager, seq = sch.block_manager, sch._live.get(getattr(e, "seq_id", -1))
        block = manager.blocks[e.block_id] if getattr(e, "block_id", None) is not None else None
        match type(e).__name__:
            case "RequestAdded":
                behind = [s.seq_id for s in sch.waiting]
                return [("it is the last in line", behind[-1] == e.seq_id),
                        ("behind", e.waiting_prev == (behind[-2] if len(behind) > 1 else None)),
                        ("tokens", e.token_ids == tuple(seq.token_ids) and e.max_tokens == seq.max_tokens)]
            case "BlockTaken" | "BlockShared" | "BlockRevived":
                return [("logical", seq.block_table[e.logical] == e.block_id and len(seq.block_table) == e.logical + 1),
                        ("count", e.ref_count_after == block.ref_count == e.ref_count_before + 1),
                        ("used", e.block_id in manager.used_block_ids and e.block_id not in manager.free_block_ids)]
            case "BlockRegistered":
                return [("logical", seq.block_table[e.logical] == e.block_id),
                        ("hash", block.hash == e.hash == type(manager).compute_hash(e.token_ids, e.parent_hash)),
                        ("tokens", tuple(block.token_ids) == e.token_ids == tuple(seq.block(e.logical))),
                        ("parent", e.logical == 0 or
                         e.parent_hash == manager._prefixes.of(seq, e.logical - 1).hash),
                        ("map", manager.hash_to_block_id[e.hash] == e.block_id),
                        ("before", e.hash_before == -1 and e.token_ids_before == ())]
            case "BlockReleased":
                holder = seq.block_table if seq else None
                return [("count", e.ref_count_after == block.ref_count == e.ref_count_before - 1),
                        ("logical", holder is None or holder[e.logical] == e.block_id), ("not below", e.logical >= 0)]
            case "BlockReturned":
                return [("tail", manager.free_block_ids.tail == e.block_id),
                        ("behind", manager.free_block_ids.neighbours(e.block_id) == (e.queue_prev, None)),
                        ("unused", e.block_id not in manager.used_block_ids and block.ref_count == 0)]
            case "TableCleared":
                return [("empty", seq is None or (seq.block_table == [] and seq.num_cached_tokens == 0)),
                        ("before", len(e.block_table_before) > 0)]
            case "EntryEvicted":
                return [("map", manager.hash_to_block_id.get(e.hash) == e.block_id_after != e.block_id),
                        ("hash", block.hash == e.hash)]
            case "PrefixLookup":
                return [("tokens", e.token_ids == tuple(seq.block(e.logical))),
                        ("outcome", self.outcome(manager, seq, e, block))]
            case "PrefixReused":
                return [("cached", seq.num_cached_tokens == e.num_cached_tokens_after > 0),
                        ("before", e.num_cached_tokens_before == 0)]
            case "AllocationDenied":
                return [("short", e.num_needed_blocks > e.num_free_blocks == len(manager.free_block_ids)),
                        ("needed", 0 < e.num_needed_blocks <= seq.num_blocks)]
            case "RequestScheduled":
                queue = list(sch.running)
                return [("width", seq.num_scheduled_tokens == e.num_scheduled_tokens_after > 0),
                        ("before", e.num_scheduled_tokens_before == 0),
                        ("phase", seq.is_prefill == e.is_prefill_after),
                        ("admitted", not e.admitted or queue[-1] is seq and e.running_prev ==
                         (queue[-2].seq_id if len(queue) > 1 else None)),
                        ("a decode was admitted before", e.is_prefill_after or not e.admitted)]
            case "RequestPreempted":
                return [("head", sch.waiting[0] is seq and seq not in sch.running and seq.is_prefill),
                        ("count", seq.num_preemptions == e.num_preemptions_after == e.num_preemptions_before + 1),
                        ("for", e.for_seq_id in sch._live), ("width", seq.num_scheduled_tokens == 0),
                        ("status", e.status_before in ("RUNNING", "WAITING") and seq.status.name == "WAITING"),
                        ("newest", all(s.seq_id <= e.seq_id for s in sch.running))]
            case "RequestFinished":
                return [("gone", seq is None and all(s.seq_id != e.seq_id for s in (*sch.waiting, *sch.running))),
                        ("reason", e.reason in ("length", "aborted", "kv_exhausted"))]
            case "TokensComputed":
                return [("cached", seq.num_cached_tokens == e.num_cached_tokens_after ==
                         e.num_cached_tokens_before + e.num_scheduled_tokens_before),
                        ("scheduled", seq.num_scheduled_tokens == 0 < e.num_scheduled_tokens_before)]
            case "TokenAppended":
                return [("token", seq.token_ids[-1] == e.token_id == seq.last_token),
                        ("length", seq.num_tokens == e.num_tokens_after == e.num_tokens_before + 1)]
            case "BatchScheduled":
                batch = [sch._live[i] for i in e.seq_ids]
                chunks = [s.is_prefill for s in batch]
                phase = "mixed" if any(chunks) and not all(chunks) else "prefill" if any(chunks) else "decode"
                return [("tokens", e.num_tokens == sum(s.num_scheduled_tokens for s in batch) > 0),
                        ("phase", e.phase == sch.phase == phase), ("step", e.step == sch.step and sch.in_step),
                        ("budget", e.num_tokens <= sch.max_num_batched_tokens or e.phase == "decode")]
            case "StepBegan":
                return [("step", sch.step == e.step_after == e.step_before + 1), ("in step", sch.in_step)]
            case "StepEnded":
                return [("step", sch.step == e.step), ("over", not sch.in_step and sch.phase == ""),
                        ("phase", e.phase_before in ("prefill", "decode", "mixed"))]
            case "RequestRestored":
                return [("tokens", len(seq) == e.num_tokens), ("waits", seq.status.name == "WAITING")]
            case "QueuesRestored":
                return [("order", e.waiting == tuple(s.seq_id for s in sch.waiting) and not sch.running)]
            case "BlockForgotten":
                return [("empty", block.hash == -1 != e.hash_before and block.token_ids == [] != e.token_ids_before)]
            case "LedgerReset":
                return [("sizes", (e.num_blocks, e.block_size) == (len(manager.blocks), manager.block_size))]
        return []

    @staticmethod
    def outcome(manager, seq, e, block) -> bool:
        match e.outcome:
            case "last_block":
                parent = manager._prefixes.of(seq, e.logical - 1).hash if e.logical else -1
                return block is None and e.hash == -1 and e.parent_hash == parent and e.logical == seq.num_blocks - 1
            case "miss":
                return block is None and e.hash not in manager.hash_to_block_id
            case "collision":
                return manager.hash_to_block_id[e.hash] == e.block_id
            case "hit_used":
                return block.ref_count > 0 and tuple(block.token_ids) == e.token_ids and block.hash == e.hash
            case "hit_free":
                return block.ref_count == 0 and tuple(block.token_ids) == e.token_ids and block.hash == e.hash
        return False


def test_every_event_is_true_when_it_is_told() -> None:
    seen: set[str] = set()
    for seed in range(250):
        witness = Witness()

        def keep(*args: Any, witness: Witness = witness, **options: Any) -> Scheduler:
            witness.scheduler = Scheduler(*args, **options)
            return witness.scheduler

        run_workload(draw(seed), scheduler_class=keep, observers=[witness])
        assert witness.wrong == [], f"seed {seed}"
        seen |= witness.seen
    assert seen == set(events.EVENT_TYPES) - {"RequestRefused", "LedgerReset"}


def test_a_table_is_cleared_of_what_it_held_and_a_preemption_says_for_whom() -> None:
    sch = scheduler(num_kvcache_blocks=4)
    log = Log(sch)
    sch.add(request([1] * 8, 0, 4)), sch.add(request([2] * 7, 1, 4))
    step(sch)
    step(sch)
    [preempted], [cleared] = log.of(events.RequestPreempted), log.of(events.TableCleared)
    assert (preempted.seq_id, preempted.for_seq_id, preempted.running_prev) == (1, 0, 0)
    assert preempted.status_before == "RUNNING"
    assert preempted.is_prefill_before and preempted.num_scheduled_tokens_before == 0
    assert (cleared.seq_id, cleared.block_table_before, cleared.num_cached_tokens_before) == (1, (2, 3), 7)
    assert [(e.logical, e.block_id) for e in log.of(events.BlockReleased)] == [(1, 3), (0, 2)]


@pytest.mark.parametrize(("seq_id", "prev", "status"), [(0, None, "RUNNING"), (1, 0, "RUNNING"), (2, None, "WAITING"),
                                                        (3, 2, "WAITING")])
def test_a_finished_request_names_its_neighbour(seq_id: int, prev: int | None, status: str) -> None:
    sch = scheduler(max_num_seqs=2)
    for i in range(4):
        sch.add(request([i], i))
    step(sch)
    log = Log(sch)
    sch.abort(seq_id, "stop")
    [finished] = log.of(events.RequestFinished)
    assert (finished.queue_prev, finished.status_before, finished.reason) == (prev, status, "stop")
    assert finished.num_scheduled_tokens_before == 0


def test_the_hub() -> None:
    """Several may watch, each once; who is not attached may be detached; who has no on_event is refused."""
    told = []

    class Watch:
        def __init__(self, name: str) -> None:
            self.name = name

        def on_event(self, event: Any) -> None:
            told.append((self.name, event.seq_id, event.at.function))

    one, two = Watch("one"), Watch("two")
    hub = EventHub([one])
    hub.attach(two), hub.attach(one)
    assert hub.observers == (one, two)
    hub(RequestAdded, seq_id=3, token_ids=(), max_tokens=1, waiting_prev=None)
    hub.detach(one), hub.detach(one)
    hub(RequestAdded, seq_id=4, token_ids=(), max_tokens=1, waiting_prev=None)
    name = "test_the_hub"
    assert told == [("one", 3, name), ("two", 3, name), ("two", 4, name)]
    with pytest.raises(TypeError, match="an observer needs a method on_event"):
        hub.attach(object())
