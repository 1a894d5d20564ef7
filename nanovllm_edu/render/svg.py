"""A state as a still SVG picture, the twin of the live view.

It is what shows where no widget can: after a kernel restart, in a notebook turned into a page, in tests without a
browser. It carries the same attributes as the live view (``data-panel``, ``data-block-id``, ``data-queue-id`` …), so
both can be checked in the same way.
"""
from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any
from xml.etree import ElementTree as ET

from .facts import counts
from .parts import Part, text
from .shapes import NS, box, label, node, paragraph
from .svg_panels import Canvas, hashes, pool, queue, tables
from .theme import INK, LINE, MUTED, NOTICE, PAPER

WIDTH = 960
_PANELS = {"pool": pool, "tables": tables, "queue": queue, "hashes": hashes}


def svg(state: dict[str, Any], sentence: Iterable[Part] = (), *, title: str = "", subtitle: str = "",
        panels: Iterable[str] = tuple(_PANELS), vocab: Mapping[int, str] | None = None, frame: int | None = None,
        note: str = "") -> str:
    """The picture of one state as a standalone ``<svg>`` element.

    ``sentence`` are the parts of what just happened; ``vocab`` maps token ids to their (untrusted) text; ``frame`` is
    the index of the frame; ``note`` is a line under the picture. Panels that have no still picture are left out.
    """
    number = counts(state)
    free = number["cached"] + number["free"]
    title = title or text("picture.title")
    root = node(None, "svg", xmlns=NS, role="img", width=WIDTH, data_nve_view="still",
                data_frame="" if frame is None else frame, style=f"background:{PAPER};max-width:100%")
    node(root, "title", f"{title} · {text('picture.step', n=state['step'])}")
    node(root, "desc", text("picture.description", step=state["step"], blocks=state["num_blocks"], **number))
    paper = box(root, 0.5, 0.5, WIDTH - 1, 10, fill=PAPER, stroke=LINE, radius=10)

    label(root, 16, 26, title, size=14, weight=600)
    label(root, 16 + 9 * len(title), 26, subtitle, fill=MUTED)
    label(root, WIDTH - 16, 26, f"{text('picture.step', n=state['step'])} · " + text(
        "picture.counts", running=len(state["running"]), waiting=len(state["waiting"]), free=free,
        blocks=state["num_blocks"]), anchor="end")
    y = 40.0
    parts = list(sentence)
    if parts:
        strip = box(root, 1, y, WIDTH - 2, 10, fill=NOTICE, radius=0)
        height = paragraph(root, 16, y + 20, parts, width=128) + 12
        strip.set("height", f"{height:g}")
        y += height
    for name in panels:
        if name in _PANELS:
            group = node(root, "g", data_panel=name, transform=f"translate(16 {y + 24:g})")
            head = label(group, 0, 0, text(name).upper(), fill=MUTED, size=11.5, weight=600)
            node(head, "tspan", f"  {text(f'{name}.hint')}", style="font-weight:400")
            y += 36 + _PANELS[name](Canvas(group, state, vocab or {}, WIDTH - 32, 12))
    if note:
        label(root, 16, y + 20, note, fill=MUTED, size=11.5)
        y += 24
    height = round(y + 12)
    paper.set("height", str(height - 1))
    root.set("height", str(height))
    root.set("viewBox", f"0 0 {WIDTH} {height}")
    root.set("color", INK)
    return ET.tostring(root, encoding="unicode")
