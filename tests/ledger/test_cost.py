"""What the ledger's operations cost, in things counted: links touched, hashes computed, events built. Never in time."""
from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from nanovllm_edu.engine import Block, BlockManager, FreeQueue, events
from nanovllm_edu.engine.prefix import Prefix
from tests.ledger.helpers import Log, admit, request, run, scheduler, step

TOUCHED: Counter[str] = Counter()


class Counted(Block):
    """A block that counts each read and write of a link of the free queue."""

    __slots__ = ()

    def __getattribute__(self, name: str) -> Any:
        if name in ("prev_free", "next_free"):
            TOUCHED["links"] += 1
        return super().__getattribute__(name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in ("prev_free", "next_free"):
            TOUCHED["links"] += 1
        super().__setattr__(name, value)


class Pool(list):
    """The manager's blocks, counting each that is looked at."""

    def __getitem__(self, index: Any) -> Any:
        TOUCHED["blocks"] += 1
        return super().__getitem__(index)

    def __iter__(self) -> Any:
        TOUCHED["walks"] += 1
        return super().__iter__()


def cost(action: Callable[[], object]) -> dict[str, int]:
    TOUCHED.clear()
    action()
    return dict(TOUCHED)


QUEUE = {
    "popleft": lambda queue, n: queue.popleft(),
    "append": lambda queue, n: queue.append(queue._taken),
    "remove at the head": lambda queue, n: queue.remove(1),
    "remove in the middle": lambda queue, n: queue.remove(n // 2),
    "remove at the tail": lambda queue, n: queue.remove(n - 1),
    "neighbours": lambda queue, n: queue.neighbours(n // 2),
    "in": lambda queue, n: n // 2 in queue,
    "first": lambda queue, n: queue.first(),
    "tail": lambda queue, n: queue.tail,
    "len": lambda queue, n: len(queue),
}


@pytest.mark.parametrize("operation", QUEUE)
def test_links_touched_by_a_queue_operation_are_few_and_constant(operation: str) -> None:
    costs = []
    for n in (10, 10_000):
        queue = FreeQueue([Counted(i) for i in range(n)])
        queue._taken = queue.popleft()
        costs.append(cost(lambda queue=queue, n=n: QUEUE[operation](queue, n)).get("links", 0))
    assert costs[0] == costs[1] <= 8


def manager_of(num_blocks: int) -> BlockManager:
    """A pool whose first three blocks are freed and cached, two more are in use, and the rest is empty."""
    manager = BlockManager(num_blocks, 2)
    for i in range(num_blocks):
        manager.blocks[i] = Counted(i)
    manager.blocks = Pool(manager.blocks)
    manager.free_block_ids = FreeQueue(manager.blocks)
    freed = [admit(manager, [i, i]) for i in (1, 2, 3)]
    manager.used = admit(manager, [4, 4, 4])
    for seq in freed:
        manager.deallocate(seq)
    return manager


def allocate(manager: BlockManager, tokens: list[int]) -> None:
    seq = request(tokens, block_size=2)
    manager.allocate(seq, manager.can_allocate(seq))


MANAGER = {
    "lookup": lambda manager: manager.can_allocate(request([2, 2, 5], block_size=2)),
    "miss": lambda manager: manager.can_allocate(request([8, 8, 5], block_size=2)),
    "share": lambda manager: allocate(manager, [4, 4, 5]),
    "revive from the middle": lambda manager: allocate(manager, [2, 2, 5]),
    "take": lambda manager: allocate(manager, [9]),
    "free": lambda manager: manager.deallocate(manager.used),
    "append": lambda manager: (manager.used.append_token(1), manager.used.append_token(1),
                               manager.may_append(manager.used)),
}


@pytest.mark.parametrize("operation", MANAGER)
def test_an_operation_of_the_manager_costs_the_same_in_any_pool(operation: str) -> None:
    costs = []
    for num_blocks in (10, 10_000):
        manager = manager_of(num_blocks)
        costs.append(cost(lambda manager=manager: MANAGER[operation](manager)))
    assert costs[0] == costs[1]
    assert costs[0].get("links", 0) <= 24 and costs[0].get("blocks", 0) <= 12 and "walks" not in costs[0]


# --- hashing -------------------------------------------------------------------------------------------------------


class Hashed(BlockManager):
    calls: list[tuple[int, ...]] = []

    @classmethod
    def compute_hash(cls, token_ids: Any, prefix: int = -1) -> int:
        cls.calls.append(tuple(token_ids))
        return super().compute_hash(token_ids, prefix)


@pytest.fixture
def hashes() -> list[tuple[int, ...]]:
    Hashed.calls.clear()
    return Hashed.calls


def test_a_prompt_is_hashed_once_however_often_it_is_tried(hashes: list) -> None:
    sch = scheduler(Hashed, num_kvcache_blocks=6)
    sch.add(request([1] * 17, 0, 4))
    log = Log(sch)
    sch.add(request([2, 3, 4, 5, 6, 7, 8, 9, 1], 1, 1))
    run(sch)
    tries = [event for event in log.of(events.AllocationDenied) if event.seq_id == 1]
    assert len(tries) >= 3, "it had to be tried again and again"
    assert Counter(hashes)[2, 3, 4, 5] == Counter(hashes)[6, 7, 8, 9] == 1


def test_a_request_is_hashed_once_also_after_preemptions(hashes: list) -> None:
    sch = scheduler(Hashed, num_kvcache_blocks=6)
    seqs = [request([i * 10 + k for k in range(6)], i, 9) for i in range(3)]
    log = Log(sch)
    for seq in seqs:
        sch.add(seq)
    run(sch)
    assert len(log.of(events.RequestPreempted)) >= 2
    chains = sum(len(seq.token_ids) // 4 for seq in seqs)
    assert len(hashes) <= chains
    for seq in seqs:
        assert Counter(hashes)[tuple(seq.block(0))] == 1


def test_equal_prefixes_are_hashed_once_for_all_who_live(hashes: list) -> None:
    sch = scheduler(Hashed, num_kvcache_blocks=30)
    for i in range(5):
        sch.add(request([1, 2, 3, 4, 5, 6, 7, 8, i], i, 2))
    run(sch)
    assert sorted(hashes) == [(1, 2, 3, 4), (5, 6, 7, 8)]


def test_a_block_is_not_hashed_before_it_is_full(hashes: list) -> None:
    sch = scheduler(Hashed)
    sch.add(request([1, 2, 3], 0, 2))
    step(sch)
    assert hashes == []
    run(sch)
    assert [len(tokens) for tokens in hashes] == [4]


def test_no_hash_with_caching_off(hashes: list) -> None:
    sch = scheduler(Hashed, enable_prefix_caching=False)
    sch.add(request([1] * 12, 0, 3))
    run(sch)
    assert hashes == []


def test_prefixes_live_as_long_as_somebody_refers_to_them() -> None:
    manager = BlockManager(4, 2)
    seq = admit(manager, [1, 2, 3, 4, 5])
    parent = manager._prefixes.of(seq, 0)
    assert isinstance(parent, Prefix) and manager._prefixes.of(seq, 1).parent is parent
    del parent
    manager.deallocate(seq)
    del seq
    assert len(manager._prefixes._interned) == 2, "the cached blocks hold them"
    manager.reset_prefix_cache()
    assert len(manager._prefixes._interned) == 0 and len(manager._prefixes._chains) == 0


# --- events --------------------------------------------------------------------------------------------------------


def test_without_an_observer_no_event_is_built(monkeypatch: pytest.MonkeyPatch) -> None:
    built: Counter[str] = Counter()
    for module in ("scheduler", "block_manager"):
        for name, kind in events.EVENT_TYPES.items():
            def build(*args: Any, name: str = name, kind: type = kind, **values: Any) -> Any:
                built[name] += 1
                return kind(*args, **values)
            monkeypatch.setattr(f"nanovllm_edu.engine.{module}.{name}", build, raising=False)

    def whole_run(watched: bool) -> None:
        sch = scheduler(num_kvcache_blocks=5)
        log = Log(sch) if watched else None
        for i in range(3):
            sch.add(request([1] * 5, i, 7))
        run(sch)
        assert log is None or log.events

    whole_run(watched=False)
    assert built == {}
    whole_run(watched=True)
    assert built["BlockTaken"] and built["StepEnded"] and built["RequestPreempted"]


def test_the_benchmark_measures_every_operation(
        capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """That it runs and says what it should; its times are for people to read."""
    from nanovllm_edu import ledger_bench

    monkeypatch.setattr(ledger_bench, "ROUNDS", 1)
    assert ledger_bench.bench_ledger([40, 80]) == 0
    out = capsys.readouterr().out
    for name in ("lookup", "share", "revive from the middle", "take", "free", "deque", "of a step of 20 ms"):
        assert name in out
