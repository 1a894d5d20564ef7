"""Sentences as parts: plain strings and small objects that a view can light up, never markup.

``{"seq": 1, "text": "B"}``, ``{"block": 3, "text": "#3"}``, ``{"hash": "0878…", "text": "0878…"}`` (16 hex digits),
``{"code": "ref_count 0 → 1"}`` and ``{"b": "bold"}``. The joined texts are the plain sentence. Values are put in after
the template has been cut up, so nothing that a token or an error message contains can become a part of its own.
"""
from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from .names import block_name, full_hash, seq_name, short_hash
from .strings import CATALOGUES

Part = str | dict[str, Any]

_PIECES = re.compile(r"(\*\*.+?\*\*|`.+?`|\{[^}]+\})")
_FIELD = re.compile(r"\{(\w+)(?::([^|}]*)\|([^}]*))?\}")
MAX_LISTED = 12


def seq_part(seq_id: int) -> Part:
    return {"seq": seq_id, "text": seq_name(seq_id)}


def block_part(block_id: int) -> Part:
    return {"block": block_id, "text": block_name(block_id)}


def hash_part(hash: int | str) -> Part:
    return {"hash": full_hash(hash), "text": short_hash(hash)}


def listed(parts: Iterable[Part], language: str = "en") -> list[Part]:
    """The parts with commas between them; of a long list the first twelve and how many more there are."""
    parts = list(parts)
    shown = parts if len(parts) <= MAX_LISTED else parts[:MAX_LISTED - 1]
    out: list[Part] = []
    for part in shown:
        out += [", ", part] if out else [part]
    if len(shown) < len(parts):
        out += [", ", *say("and_more", language, n=len(parts) - len(shown))]
    return out


def say(key: str, language: str = "en", **values: Any) -> list[Part]:
    """The parts of the sentence ``key``. A value is a number, a text, a part or a list of parts.

    Raises KeyError for a sentence, a language or a value that is not there.
    """
    out: list[Part] = []
    for piece in _PIECES.split(CATALOGUES[language][key]):
        if piece.startswith("**"):
            out.append({"b": _flat(piece[2:-2], values)})
        elif piece.startswith("`"):
            out.append({"code": _flat(piece[1:-1], values)})
        elif piece.startswith("{"):
            out += _value(piece, values)
        elif piece:
            out.append(piece)
    return out


def text(key: str, language: str = "en", **values: Any) -> str:
    """The sentence ``key`` as plain text."""
    return plain(say(key, language, **values))


def plain(parts: Iterable[Part]) -> str:
    """The joined texts of the parts: what a screen reader says."""
    return "".join(part if isinstance(part, str) else part.get("text", part.get("code", part.get("b", "")))
                   for part in parts)


def _flat(template: str, values: dict[str, Any]) -> str:
    return "".join(plain(_value(piece, values)) if piece.startswith("{") else piece
                   for piece in _PIECES.split(template))


def _value(field: str, values: dict[str, Any]) -> list[Part]:
    name, one, many = _FIELD.fullmatch(field).groups()
    value = values[name]
    if one is not None:
        return [f"{value} {one if value == 1 else many}"]
    if isinstance(value, list):
        return value
    return [value if isinstance(value, (str, dict)) else str(value)]
