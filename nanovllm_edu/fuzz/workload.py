"""Random workloads that press where ledgers break: tiny pools, shared prefixes, chunks, aborts, collisions."""
from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field, replace


@dataclass(frozen=True)
class Request:
    prompt: tuple[int, ...]
    max_tokens: int
    arrival: int                    # the step before which it is added
    abort_at: int | None = None     # the step before which it is aborted
    salt: str | None = None


@dataclass(frozen=True)
class Workload:
    """One run of the fuzz. Requests are in order of arrival.

    ``hash_bits``: 64 is xxh64 as it is; fewer bits force collisions at every depth.
    """

    block_size: int
    num_blocks: int
    max_num_batched_tokens: int
    max_num_seqs: int
    requests: tuple[Request, ...]
    policy: str = "prefill_first"
    duplicates: str = "last"
    caching: bool = True
    hash_bits: int = 64
    fail_at: tuple[int, ...] = field(default=())    # steps whose model run fails
    reset_at: tuple[int, ...] = field(default=())   # steps before which the prefix cache is reset, if none is in use


def draw(seed: int) -> Workload:
    """The workload of a seed, always the same one."""
    rng = random.Random(seed)
    block_size = rng.choice((2, 2, 3, 4, 4, 5))
    num_blocks = rng.randint(2, 12)
    room = block_size * num_blocks
    stems = [[rng.randrange(3) for _ in range(rng.randint(block_size, 4 * block_size))] for _ in range(2)]
    salts = rng.choice(((None,), (None,), (None, "a"), ("a", "b")))
    requests = []
    for _ in range(rng.randint(3, 8)):
        stem = rng.choice(stems)
        prompt = (stem[:rng.randint(1, len(stem))] + [rng.randrange(3) for _ in range(rng.randint(0, block_size + 1))])
        prompt = prompt[:rng.randint(1, room)]
        requests.append(Request(
            tuple(prompt), max_tokens=rng.randint(1, 3 * block_size), arrival=rng.choice((0, 0, 1, 2, 4, 8)),
            abort_at=rng.randint(1, 9) if rng.random() < 0.12 else None, salt=rng.choice(salts)))
    return Workload(
        block_size, num_blocks, max_num_batched_tokens=rng.choice((1, 2, 3, block_size, block_size + 1, 7, 16, 64)),
        max_num_seqs=rng.randint(1, 6),
        requests=tuple(sorted(requests, key=lambda request: request.arrival)),
        policy=rng.choice(("prefill_first", "mixed")),
        duplicates=rng.choice(("last", "last", "all")), caching=rng.random() < 0.94,
        hash_bits=rng.choice((64, 2, 1, 1)),
        fail_at=tuple(sorted(rng.sample(range(1, 15), rng.choice((0, 0, 0, 1, 2))))),
        reset_at=tuple(sorted(rng.sample(range(1, 20), rng.choice((0, 0, 0, 1))))))


def smaller(workload: Workload) -> Iterator[Workload]:
    """Workloads that are a bit simpler than this one, the boldest cuts first."""
    requests = workload.requests
    for i in range(len(requests)):
        yield replace(workload, requests=requests[:i] + requests[i + 1:])
    for name, simple in (("fail_at", ()), ("reset_at", ()), ("hash_bits", 64), ("duplicates", "last"),
                         ("policy", "prefill_first"), ("max_num_batched_tokens", 64), ("max_num_seqs", 5)):
        if getattr(workload, name) != simple:
            yield replace(workload, **{name: simple})
    for i, request in enumerate(requests):
        cuts = [replace(request, prompt=request.prompt[:n]) for n in (len(request.prompt) // 2, len(request.prompt) - 1)
                if 0 < n < len(request.prompt)]
        if request.max_tokens > 1:
            cuts.append(replace(request, max_tokens=request.max_tokens - 1))
        if request.abort_at is not None:
            cuts.append(replace(request, abort_at=None))
        if request.salt is not None:
            cuts.append(replace(request, salt=None))
        if request.arrival and (i == 0 or requests[i - 1].arrival < request.arrival):
            cuts.append(replace(request, arrival=request.arrival - 1))
        for cut in cuts:
            yield replace(workload, requests=requests[:i] + (cut,) + requests[i + 1:])
    if workload.num_blocks > 2:
        yield replace(workload, num_blocks=workload.num_blocks - 1)
