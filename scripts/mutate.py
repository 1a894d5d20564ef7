"""Mutation testing of the ledger: change one thing in its source, and see whether a test notices.

    python scripts/mutate.py                      every mutant that cosmic-ray can think of (about half an hour)
    python scripts/mutate.py scheduler.py         one module's mutants
    python scripts/mutate.py --part 3/8           the third of eight equal parts
    python scripts/mutate.py --sample 25          as many, drawn with a fixed seed, as `make test` does

The mutants are cosmic-ray's, with all its operators and no line exempted. Each one runs in a process forked from this
one, in which nothing of nanovllm_edu is imported yet, with the mutated source in place of the module's: no file is
ever changed, and a mutant costs the tests that it takes to kill it and no start of Python. Needs a system with fork.

Survivors that `tests/ledger/mutants.md` explains are counted and not shown. Exit code 1 if another one survives.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.abc
import importlib.machinery
import importlib.util
import linecache
import os
import random
import resource
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ENGINE = ROOT / "nanovllm_edu" / "engine"
MODULES = ["free_queue.py", "prefix.py", "sequence.py", "invariants.py", "block_manager.py", "scheduler.py"]
EXPLAINED = ROOT / "tests" / "ledger" / "mutants.md"
LEDGER = "tests/ledger"
# What kills, the quickest first, and how many seconds of processor time it may take.
STAGES: list[tuple[int, list[str]]] = [
    (8, [f"{LEDGER}/test_{name}.py" for name in (
        "sequence", "invariants", "annotations", "peers_cache_utils", "peers_prefix_caching", "reports",
        "peers_scheduler", "options", "front_door")]),
    (30, [f"{LEDGER}/test_{name}.py" for name in ("free_queue", "golden", "events", "machine", "cost", "large")]),
    (60, [f"{LEDGER}/test_interruption.py", f"{LEDGER}/test_fuzz.py", "-k",
          "(line and (mixed or uncached)) or between or model or leak or nothing_is_found"]),
]
MEMORY = 3 << 30


@dataclass(frozen=True)
class Mutant:
    """The ``occurrence``-th place in ``module`` where cosmic-ray's ``operator`` can change something."""

    module: str
    operator: str
    arguments: tuple[tuple[str, object], ...]
    occurrence: int


def mutants(module: str) -> Iterator[Mutant]:
    from cosmic_ray.ast import ast_nodes, get_ast
    from cosmic_ray.plugins import get_operator, operator_names

    nodes = list(ast_nodes(get_ast((ENGINE / module).read_text("utf-8"))))
    for name in operator_names():
        kind = get_operator(name)
        for arguments in [{}] if not kind.arguments() else []:  # those with arguments need a class to be named
            operator = kind(**arguments)
            places = sum(1 for node in nodes for _ in operator.mutation_positions(node))
            yield from (Mutant(module, name, tuple(arguments.items()), i) for i in range(places))


def mutated(mutant: Mutant) -> str:
    from cosmic_ray.mutating import mutate_code
    from cosmic_ray.plugins import get_operator

    operator = get_operator(mutant.operator)(**dict(mutant.arguments))
    return mutate_code((ENGINE / mutant.module).read_text("utf-8"), operator, mutant.occurrence)


def change(mutant: Mutant, source: str) -> tuple[str, str]:
    """The first line that differs, before and after."""
    before = (ENGINE / mutant.module).read_text("utf-8").splitlines()
    for old, new in zip(before, source.splitlines(), strict=False):
        if old != new:
            return old.strip(), new.strip()
    return "", ""


class Replaced(importlib.abc.MetaPathFinder):
    """Finds one module with other source than its file's; ``inspect`` sees that source, too."""

    def __init__(self, path: Path, source: str) -> None:
        self.name, self.path, self.source = f"nanovllm_edu.engine.{path.stem}", str(path), source
        linecache.cache[self.path] = (len(source), None, source.splitlines(keepends=True), self.path)

    def find_spec(self, fullname: str, path: object, target: object = None) -> importlib.machinery.ModuleSpec | None:
        if fullname != self.name:
            return None
        loader = importlib.machinery.SourceFileLoader(fullname, self.path)
        loader.get_code = lambda name: compile(self.source, self.path, "exec", dont_inherit=True)
        return importlib.util.spec_from_file_location(fullname, self.path, loader=loader)


def killed_by(mutant: Mutant, source: str) -> int | None:
    """The number of the stage whose tests notice the mutant, None if none does. A crash, an endless loop and too
    much memory are noticed as well."""
    for number, (seconds, arguments) in enumerate(STAGES, 1):
        pid = os.fork()
        if pid == 0:
            status = 1
            with contextlib.suppress(BaseException):
                status = run_tests(mutant, source, seconds, arguments)
            os._exit(status)
        if os.waitpid(pid, 0)[1] != 0:
            return number
    return None


def run_tests(mutant: Mutant | None, source: str, seconds: int, arguments: list[str]) -> int:
    import pytest

    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    if mutant is not None:
        os.dup2(null, 2)
        sys.meta_path.insert(0, Replaced(ENGINE / mutant.module, source))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    signal.setitimer(signal.ITIMER_PROF, seconds)  # its signal ends the process
    there = [word for word in arguments if not word.startswith("tests/") or "::" in word or (ROOT / word).exists()]
    return int(pytest.main(["-x", "-q", "-p", "no:cacheprovider", "--assert=plain", *there]))


def explained() -> set[tuple[str, str, str]]:
    """Module, line before and line after of every survivor in the note's table."""
    rows = [line.split("|") for line in EXPLAINED.read_text("utf-8").splitlines()] if EXPLAINED.exists() else []
    cells = [[cell.strip().strip("`").replace("¦", "|").strip() for cell in row] for row in rows if len(row) > 5]
    return {(row[1], row[2], row[3]) for row in cells}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("modules", nargs="*", default=MODULES, metavar="MODULE", help=", ".join(MODULES))
    parser.add_argument("--sample", type=int, help="draw this many mutants with a fixed seed")
    parser.add_argument("--part", default="1/1", help="K/N: every N-th mutant, beginning with the K-th")
    parser.add_argument("--seed", type=int, default=20, help="the seed of the sample")
    options = parser.parse_args()
    os.chdir(ROOT)
    sys.path.insert(0, str(ROOT))
    sys.dont_write_bytecode = True
    import hypothesis.stateful  # noqa: F401  (loaded once, for all forks)
    import numpy  # noqa: F401
    import pytest  # noqa: F401
    import tqdm  # noqa: F401
    import xxhash  # noqa: F401

    found = [mutant for module in options.modules for mutant in mutants(module)]
    part, parts = map(int, options.part.split("/"))
    found = found[part - 1::parts]
    if options.sample:
        found = random.Random(options.seed).sample(found, min(options.sample, len(found)))
    # the tests must pass before they can fail; whoever draws a sample has just run them
    for number, (seconds, arguments) in enumerate(() if options.sample else STAGES, 1):
        pid = os.fork()
        if pid == 0:
            os._exit(run_tests(None, "", seconds, arguments))
        if os.waitpid(pid, 0)[1] != 0:
            print(f"stage {number} of the tests fails without any mutant: {' '.join(arguments)}")
            return 1
    known, start = explained(), time.perf_counter()
    counts: dict[str, Counter[str]] = {module: Counter() for module in options.modules}
    unexplained = 0
    for mutant in found:
        source = mutated(mutant)
        stage = killed_by(mutant, source)
        counts[mutant.module][f"by stage {stage}" if stage else "survived"] += 1
        if stage is None:
            before, after = change(mutant, source)
            is_known = (mutant.module, before, after) in known
            unexplained += not is_known
            print(f"{'explained' if is_known else 'SURVIVED '} | {mutant.module} | {before} | {after} | "
                  f"{mutant.operator.rpartition('/')[2]} {mutant.occurrence}", flush=True)
    for module, count in counts.items():
        total = count.total()
        if total:
            print(f"{module:18} {total:5} mutants, {total - count['survived']} killed "
                  f"({(total - count['survived']) / total:.1%}): {dict(sorted(count.items()))}")
    total, survived = len(found), sum(count["survived"] for count in counts.values())
    print(f"{total} mutants, {total - survived} killed ({(total - survived) / total:.1%}), {survived} survived, "
          f"{unexplained} of them unexplained, {time.perf_counter() - start:.0f} s")
    return 1 if unexplained else 0


if __name__ == "__main__":
    sys.exit(main())
