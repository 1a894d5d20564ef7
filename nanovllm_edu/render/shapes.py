"""A few SVG shapes as ElementTree nodes. ElementTree escapes all text, so untrusted text can't become markup."""
from __future__ import annotations

from collections.abc import Iterable
from xml.etree import ElementTree as ET

from .parts import Part
from .theme import INK, MONO, SANS

NS = "http://www.w3.org/2000/svg"


def clean(value: str) -> str:
    """Text that XML can hold: characters that it forbids are shown as escapes."""
    return "".join(c if c in "\t\n\r" or 0x20 <= ord(c) <= 0xD7FF or 0xE000 <= ord(c) <= 0xFFFD or ord(c) > 0xFFFF
                   else c.encode("unicode_escape").decode() for c in value)


def node(parent: ET.Element | None, tag: str, content: str = "", **attributes: object) -> ET.Element:
    """A child of ``parent``; ``class_`` and ``data_block_id`` become ``class`` and ``data-block-id``."""
    named = {key.rstrip("_").replace("_", "-"): clean(str(value)) for key, value in attributes.items()}
    out = ET.Element(tag, named) if parent is None else ET.SubElement(parent, tag, named)
    out.text = clean(content) or None
    return out


def titled(element: ET.Element, title: str) -> ET.Element:
    """Put a ``<title>`` first in an element: the tooltip, and what a screen reader says."""
    child = ET.Element("title")
    child.text = clean(title)
    element.insert(0, child)
    return element


def box(parent: ET.Element, x: float, y: float, width: float, height: float, *, fill: str, stroke: str = "none",
        dash: str = "", radius: float = 4, line: float = 1) -> ET.Element:
    style = f"fill:{fill};stroke:{stroke};stroke-width:{line:g}" + (f";stroke-dasharray:{dash}" if dash else "")
    return node(parent, "rect", x=f"{x:g}", y=f"{y:g}", width=f"{width:g}", height=f"{height:g}", rx=f"{radius:g}",
                style=style)


def label(parent: ET.Element, x: float, y: float, content: str, *, fill: str = INK, size: float = 12,
          weight: int = 400, mono: bool = False, anchor: str = "start") -> ET.Element:
    return node(parent, "text", content, x=f"{x:g}", y=f"{y:g}", text_anchor=anchor,
                style=f"fill:{fill};font:{weight} {size:g}px {MONO if mono else SANS}")


def paragraph(parent: ET.Element, x: float, y: float, parts: Iterable[Part], *, width: int, size: float = 13,
              leading: float = 19) -> float:
    """Sentence parts as lines of at most ``width`` characters; the height that they took."""
    lines: list[list[tuple[str, str]]] = [[]]
    used = 0
    for word, kind in _words(parts):
        if used + len(word.rstrip()) > width and used:
            lines.append([])
            used = 0
        lines[-1].append((word.lstrip() if not used else word, kind))
        used += len(word)
    styles = {"b": "font-weight:600", "seq": "font-weight:600", "block": f"font:600 {size - 1:g}px {MONO}",
              "hash": f"font-family:{MONO}", "code": f"font:{size - 1:g}px {MONO}", "": ""}
    for i, line in enumerate(lines):
        element = label(parent, x, y + i * leading, "", size=size)
        for word, kind in line:
            node(element, "tspan", word, **({"style": styles[kind]} if styles[kind] else {}))
    return len(lines) * leading


def _words(parts: Iterable[Part]) -> Iterable[tuple[str, str]]:
    for part in parts:
        if isinstance(part, str):
            kind, content = "", part
        else:
            kind = next(key for key in ("seq", "block", "hash", "code", "b") if key in part)
            content = str(part.get("text", part[kind]))
        start = 0
        for i, c in enumerate(content):
            if c == " " and kind != "code":
                yield content[start:i + 1], kind
                start = i + 1
        if content[start:]:
            yield content[start:], kind
