"""Write labs/*.ipynb from labs/src/*.py (py:percent), one way: edit the source, never the notebook.

    python scripts/build_labs.py            write them
    python scripts/build_labs.py --check    fail when one of them is not what its source gives

The notebooks carry no outputs, no run counts and no trace of who wrote them; the same source gives the same bytes.
"""

from __future__ import annotations

import sys
from pathlib import Path

import jupytext
import nbformat

ROOT = Path(__file__).resolve().parent.parent
LABS = ROOT / "labs"
METADATA = {
    "kernelspec": {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}


def notebook(source: Path) -> str:
    """The notebook's JSON text for one source file."""
    text = source.read_text("utf-8")
    made = jupytext.reads(text[text.index("# %%"):], fmt="py:percent")  # what stands before is for linters
    made.metadata = nbformat.from_dict(METADATA)
    made.nbformat, made.nbformat_minor = 4, 5
    for number, cell in enumerate(made.cells):
        cell["id"] = f"{source.stem.replace('_', '-')}-{number:03d}"[:64]  # nbformat draws random ones otherwise
        cell.metadata.pop("lines_to_next_cell", None)
    nbformat.validate(made)
    return nbformat.writes(made, version=4) + "\n"


def main(arguments: list[str]) -> int:
    stale = []
    for source in sorted((LABS / "src").glob("[0-9]*.py")):
        target, text = LABS / f"{source.stem}.ipynb", notebook(source)
        current = target.read_text(encoding="utf-8") if target.exists() else None
        if current == text:
            continue
        stale.append(target.name)
        if "--check" not in arguments:
            target.write_text(text, encoding="utf-8", newline="\n")
            print(f"wrote {target.relative_to(ROOT)}")
    if stale and "--check" in arguments:
        print(f"not what labs/src/ gives: {', '.join(stale)}. Run: make labs", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
