"""``python -m nanovllm_edu fuzz``: the long run of the fuzz, and the list of breakages that it must find."""
from __future__ import annotations

import time

from tqdm import tqdm

from .breakages import BREAKAGES, kind_of
from .runner import FEATURES, fuzz


def run_fuzz(runs: int, seed: int = 0) -> int:
    """Fuzz the ledger and print what was seen. Exit code 1 if a run failed."""
    start = time.perf_counter()
    failure, counts, made = fuzz(runs, seed, progress=lambda seeds: tqdm(seeds, unit="run", disable=None))
    print(f"{made} runs from seed {seed} in {time.perf_counter() - start:.0f} s, check_invariants after every step")
    print("runs that did: " + ", ".join(f"{name} {counts[name]} ({counts[name] / made:.0%})" for name in FEATURES))
    if failure is None:
        print("no failure")
        return 0
    print(f"FAILED at {failure}\nRun it again: python -m nanovllm_edu fuzz --runs 1 --seed {failure.seed}")
    return 1


def run_breakages(runs: int = 500) -> int:
    """Break the ledger in every listed way and print after how many runs which check found it."""
    missed = 0
    for breakage in BREAKAGES:
        failure, made = breakage.find(runs)
        found = f"found by {kind_of(failure.error)} in run {made}" if failure else f"NOT FOUND in {made} runs"
        missed += failure is None
        print(f"{breakage.name:26} {found:28} {breakage.story}")
    print(f"{len(BREAKAGES) - missed} of {len(BREAKAGES)} breakages found")
    return 1 if missed else 0
