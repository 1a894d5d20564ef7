"""`python -m nanovllm_edu bench --ledger`: nanoseconds per operation of the ledger, in pools of three sizes.

Each operation should cost the same in a pool of a thousand blocks and of a hundred thousand. Beside it, what reviving a
block would cost with a `collections.deque`, which has to look for it. The pools are used at random places, so that
the processor's caches help a large pool less than a small one, as in real life.
"""
from __future__ import annotations

import gc
import random
import time
from collections import deque
from collections.abc import Callable, Iterable
from types import SimpleNamespace

from .engine import BlockManager, Scheduler, Sequence
from .engine.events import BlockTaken, EventHub
from .sampling_params import SamplingParams

POOLS = (1_000, 10_000, 100_000)
ROUNDS = 7
SAMPLE = 400  # operations timed in a round
STEP_MS = 20.0  # a decode step of the packaged model on two CPU cores, for the share that emitting takes


def bench_ledger(pools: Iterable[int] = POOLS) -> int:
    """Print the table; returns the exit code 0."""
    pools = list(pools)
    rows = {size: measure(size) for size in pools}
    print(f"{'ns per operation':28}" + "".join(f"{size:>12,}" for size in pools) + "   largest/smallest")
    for name in rows[pools[0]]:
        values = [rows[size][name] for size in pools]
        print(f"{name:28}" + "".join(f"{value:12,.0f}" for value in values) + f"{max(values) / min(values):19.2f}")
    calls, each = emits_per_step(), emit_ns()
    print(f"emitting with no observer: {each:.0f} ns a call, {calls:.0f} calls in a step of 16 requests: "
          f"{calls * each / (STEP_MS * 1e6):.3%} of a step of {STEP_MS:.0f} ms")
    return 0


def measure(num_blocks: int) -> dict[str, float]:
    """Mean nanoseconds of each operation in the quietest of the rounds, in a pool with a block cached everywhere.

    The quietest, because whatever else the machine does only adds; every round uses other random places.
    """
    times: dict[str, list[float]] = {}
    for round in range(ROUNDS):
        for name, value in _round(num_blocks, random.Random(round)).items():
            times.setdefault(name, []).append(value)
    return {name: min(values) for name, values in times.items()}


def _round(num_blocks: int, rng: random.Random) -> dict[str, float]:
    manager = BlockManager(num_blocks, 16)
    for i in range(num_blocks):  # every block cached, in its place in the queue
        seq = _prompt(i, 16)
        manager.allocate(seq, 0)
        seq.num_scheduled_tokens = 16
        manager.hash_blocks(seq)
        manager.deallocate(seq)
    count = min(SAMPLE, num_blocks // 4)
    # from the middle of the queue: its head is taken later on
    chosen = rng.sample(range(num_blocks // 4, num_blocks), count)
    queue = deque(manager.free_block_ids)
    hits = [_prompt(i, 17) for i in chosen]
    for seq in hits:  # the chain of a request is made once in its life; it is not part of a lookup
        manager._prefixes.of(seq, 0)
    rng.shuffle(hits)
    fresh = [_prompt(-1 - i, 1) for i in range(count)]
    again = [_prompt(seq[0], 17) for seq in hits]
    for seq in again:
        manager._prefixes.of(seq, 0)
    timed = {}
    timed["lookup"] = _time(manager.can_allocate, hits)
    timed["revive from the middle"] = _time(lambda seq: manager.allocate(seq, 1), hits)
    timed["share"] = _time(lambda seq: manager.allocate(seq, 1), again)
    timed["take"] = _time(lambda seq: manager.allocate(seq, 0), fresh)
    timed["free"] = _time(manager.deallocate, fresh)
    timed["revive from a deque"] = _time(queue.remove, chosen[:20])
    return timed


def _prompt(number: int, length: int) -> Sequence:
    return Sequence([number % (1 << 40)] * length, block_size=16, seq_id=number)


def _time(action: Callable, arguments: list) -> float:
    """Mean nanoseconds of processor time of a call, the garbage collector waiting outside."""
    gc.collect()
    gc.disable()
    start = time.thread_time_ns()
    for argument in arguments:
        action(argument)
    elapsed = time.thread_time_ns() - start
    gc.enable()
    return elapsed / len(arguments)


def emit_ns() -> float:
    """Nanoseconds that a call of the hub takes with nobody attached, the building of its arguments included."""
    hub, tokens = EventHub(), list(range(16))

    def emit(seq_id: int) -> None:
        hub(BlockTaken, seq_id=seq_id, logical=1, block_id=2, ref_count_before=0, ref_count_after=1, hash_before=-1,
            token_ids_before=tuple(tokens))

    return min(_time(emit, list(range(20_000))) for _ in range(ROUNDS))


def emits_per_step() -> float:
    """Events of a step, the mean over the run of 16 requests."""
    count = SimpleNamespace(events=0, on_event=lambda event: setattr(count, "events", count.events + 1))
    scheduler = Scheduler(SimpleNamespace(
        max_num_seqs=16, max_num_batched_tokens=16384, eos_token_ids=(), kvcache_block_size=16, num_kvcache_blocks=200))
    scheduler.emit.attach(count)
    for i in range(16):
        scheduler.add(Sequence(range(i, i + 40), SamplingParams(max_tokens=64, ignore_eos=True), 16, seq_id=i))
    while not scheduler.is_finished():
        seqs, is_prefill = scheduler.schedule()
        scheduler.postprocess(seqs, [1] * len(seqs), is_prefill)
    return count.events / scheduler.step
