"""Record the runs that the labs open with: nanovllm_edu/exercises/data/*.json.gz, from the labs' own cells.

    python scripts/record_labs.py

A lab's cells tagged "setup" are run, then those tagged "run" with a recorder attached. So a recording is the very run
that the learner does next; a test holds the two equal.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))


def cells(source: Path, tag: str) -> Iterator[str]:
    """The code of a lab's cells that carry the tag."""
    for cell in re.split(r"^# %%", source.read_text("utf-8"), flags=re.M)[1:]:
        head, _, code = cell.partition("\n")
        if f'"{tag}"' in head:
            yield code


def run_of(source: Path) -> tuple[Any, dict[str, Any]]:
    """Do a lab's run: the trace of it, and the names that its cells left behind."""
    from nanovllm_edu import record, replay
    from nanovllm_edu.render import seq_name

    names: dict[str, Any] = {"replay": replay, "seq_name": seq_name}
    for code in cells(source, "setup"):
        exec(compile(code, source.name, "exec"), names)
    with record(names["llm"]) as trace:
        for code in cells(source, "run"):
            exec(compile(code, source.name, "exec"), names)
    return trace, names


def main() -> None:
    from nanovllm_edu.exercises.data import FOLDER

    for source in sorted((ROOT / "labs" / "src").glob("[0-9]*.py")):
        trace, names = run_of(source)
        path = trace.save(FOLDER / f"{source.stem}.json.gz")
        print(f"{path.relative_to(ROOT)}: {trace}, {path.stat().st_size / 1024:.0f} KiB")
        names["llm"].close()


if __name__ == "__main__":
    main()
