"""Colours and measures of the still pictures.

Colours are CSS variables with fall-backs, so that a picture follows JupyterLab's theme and can also stand alone.
Requests take the Okabe–Ito colours in turn (Okabe and Ito, 2008: told apart by colour-blind people too), darkened
where white needs it; no meaning rests on colour alone.
"""
from __future__ import annotations

PAPER = "var(--jp-layout-color1, #ffffff)"
SHADE = "var(--jp-layout-color2, #f5f6f8)"
LINE = "var(--jp-border-color1, #c3c9d2)"
INK = "var(--jp-ui-font-color1, #1c2330)"
MUTED = "var(--jp-ui-font-color2, #5b6574)"
NOTICE = "var(--jp-warn-color3, #fff3cf)"
MONO = "ui-monospace, 'DejaVu Sans Mono', Menlo, Consolas, monospace"
SANS = "system-ui, 'DejaVu Sans', sans-serif"

REQUESTS = ("#c77700", "#1f78b4", "#00795a", "#a8438a", "#b0450a", "#3d5a98", "#7a6a00")
DASHES = {"used": "", "cached": "5 3", "free": "1.5 3"}


def request_colour(seq_id: int) -> str:
    return REQUESTS[seq_id % len(REQUESTS)]


def hash_colours(hash: str) -> list[str]:
    """Six colours for a hash's swatch: the first four digits, then the first and third again."""
    if not hash:
        return []
    return [f"hsl({int(hash[k], 16) * 24} 55% {45 if i % 2 else 62}%)" for i, k in enumerate((0, 1, 2, 3, 0, 2))]
