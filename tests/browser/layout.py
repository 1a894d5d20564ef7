"""Measures of how a view is laid out: what sticks out of it, and what text lies over other text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

SCRIPT = (Path(__file__).parent / "layout.js").read_text("utf-8").split("\n", 1)[1]


def overflow(root: Any) -> list[str]:
    """What is wider than its place, one sentence each. `root` is a Playwright locator of a view."""
    return root.evaluate(f"root => {SCRIPT}.overflow(root)")


def overlaps(root: Any) -> list[str]:
    """Texts and controls that lie over one another, one sentence each."""
    return root.evaluate(f"root => {SCRIPT}.overlaps(root)")
