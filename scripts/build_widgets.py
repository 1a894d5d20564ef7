"""Join the view's source files into the one ESM file that a notebook loads.

    python scripts/build_widgets.py            write nanovllm_edu/widgets/static/control_room.js
    python scripts/build_widgets.py --check    only say whether it is current

A widget's code reaches the page as a single module, so relative imports could not resolve there. The sources in
nanovllm_edu/widgets/src import each other as usual (node tests them so); here they are put one behind the other,
imported before importer, without their import lines. Nothing is minified: learners may read it.
"""
from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ROOT / "nanovllm_edu" / "widgets" / "src"
TARGET = ROOT / "nanovllm_edu" / "widgets" / "static" / "control_room.js"
ENTRY = "room.js"

IMPORT = re.compile(r'^import \{[^}]*\} from "\./([\w.]+)";\n', re.MULTILINE)
NAME = re.compile(r"^(?:export )?(?:default )?(?:async )?(?:function|class|const|let) (\w+)", re.MULTILINE)


def in_order(name: str, seen: list[str]) -> list[str]:
    """The files that ``name`` needs, itself last."""
    for needed in IMPORT.findall((SOURCES / name).read_text(encoding="utf-8")):
        if needed not in seen:
            in_order(needed, seen)
    if name not in seen:
        seen.append(name)
    return seen


def build() -> str:
    """The text of the joined module. Raises ValueError when two files declare one name at their top level."""
    names = in_order(ENTRY, [])
    unused = sorted({path.name for path in SOURCES.glob("*.js")} - set(names))
    if unused:
        raise ValueError(f"{', '.join(unused)}: nothing that {ENTRY} needs imports it")
    parts = ["// Made from nanovllm_edu/widgets/src by scripts/build_widgets.py. Change the sources, not this file.\n"]
    owner: dict[str, str] = {}
    for name in names:
        text = (SOURCES / name).read_text(encoding="utf-8")
        for declared in NAME.findall(text):
            if declared in owner:
                raise ValueError(f"{declared} is declared in {owner[declared]} and in {name}: rename one of them")
            owner[declared] = name
        text = IMPORT.sub("", text)
        text = re.sub(r"^export (?!default )", "", text, flags=re.MULTILINE)
        parts.append(f"\n// ─── {name} {'─' * (100 - len(name))}\n{text.strip()}\n")
    return "".join(parts)


def main(arguments: list[str]) -> int:
    text = build()
    current = TARGET.exists() and TARGET.read_text(encoding="utf-8") == text
    if "--check" in arguments:
        if not current:
            print(f"{TARGET.relative_to(ROOT)} is not current: run python scripts/build_widgets.py", file=sys.stderr)
        return 0 if current else 1
    if not current:
        TARGET.parent.mkdir(parents=True, exist_ok=True)
        TARGET.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
