"""Write requirements/constraints.txt: what this environment holds beyond the packages that are pinned by hand.

Run it with the environment's own Python, after a change of requirements/ and a green test run:
    .venv/bin/python scripts/pin.py
"""

from __future__ import annotations

import re
from importlib.metadata import distributions
from pathlib import Path

REQUIREMENTS = Path(__file__).resolve().parent.parent / "requirements"
NOT_PINNED = {"pip", "setuptools", "wheel", "nanovllm-edu"}  # the environment's own tools, and this project


def canonical(name: str) -> str:
    """The spelling that the package index compares by (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def pins(path: Path) -> dict[str, str]:
    """Name (canonical) to version of every `name==version` line of a requirements file."""
    found = re.findall(r"^([A-Za-z0-9._-]+)==([^\s;#]+)", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {canonical(name): version for name, version in found}


def main() -> None:
    target = REQUIREMENTS / "constraints.txt"
    by_hand = {name for path in REQUIREMENTS.glob("*.txt") if path != target for name in pins(path)}
    rest = {canonical(d.metadata["Name"]): d.version for d in distributions()}
    head = [line for line in target.read_text(encoding="utf-8").splitlines() if line.startswith("#")]
    lines = [f"{name}=={rest[name]}" for name in sorted(rest) if name not in by_hand | NOT_PINNED]
    target.write_text("\n".join([*head, *lines]) + "\n", encoding="utf-8")
    print(f"{target}: {len(lines)} packages")


if __name__ == "__main__":
    main()
