"""Traces as files: JSON, gzipped if the name ends in ``.gz``, versioned, and never trusted when they are read.

``{"format": "nanovllm_edu.trace", "version": 1, "info": {...}, "vocab": {token id: text}, "initial": state document,
"events": [{"kind": name of the event class, ...its fields, "at": [file, function, line] or null}]}``. Hashes are 16
hex digits, "" for none.
"""
from __future__ import annotations

import gzip
import json
import os
import tempfile
import zlib
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

from ..engine.events import EVENT_TYPES, Event, SourceLine
from .patches import TraceError
from .state import hex_hash

FORMAT, VERSION = "nanovllm_edu.trace", 1
HASHES = {"hash", "hash_before", "parent_hash"}


def event_to_json(event: Event) -> dict[str, Any]:
    """The event as plain JSON values."""
    out: dict[str, Any] = {"kind": type(event).__name__}
    for field in fields(event):
        value = getattr(event, field.name)
        if field.name in HASHES:
            value = hex_hash(value)
        elif field.name == "at":
            value = None if value is None else [value.file, value.function, value.line]
        elif isinstance(value, tuple):
            value = list(value)
        out[field.name] = value
    return out


def event_from_json(data: dict[str, Any]) -> Event:
    """Raises TraceError for an unknown kind, a field that is missing, unknown, or of the wrong type."""
    try:
        kind = EVENT_TYPES[data["kind"]]
        values = {}
        for field in fields(kind):
            if field.name not in data and field.default is MISSING:
                raise KeyError(field.name)
            value = data.get(field.name, field.default)
            values[field.name] = _read(field.name, str(field.type), value)
        unknown = set(data) - set(values) - {"kind"}
        if unknown:
            raise KeyError(*sorted(unknown))
        return kind(**values)
    except (KeyError, ValueError, TypeError) as error:
        raise TraceError(f"damaged event {str(data)[:200]}: {error!r}") from error


def _read(name: str, type_: str, value: Any) -> Any:
    if name == "at":
        return None if value is None else SourceLine(str(value[0]), str(value[1]), int(value[2]))
    if name in HASHES:
        return -1 if value == "" else int(value, 16)
    if type_ == "tuple[int, ...]":
        return tuple(_whole(name, item) for item in value)
    if type_ == "int | None":
        return None if value is None else _whole(name, value)
    expected = {"int": int, "bool": bool, "str": str}[type_]
    if type(value) is not expected:
        raise TypeError(f"{name} must be {type_}, got {value!r}")
    return value


def _whole(name: str, value: Any) -> int:
    if type(value) is not int:
        raise TypeError(f"{name} must hold whole numbers, got {value!r}")
    return value


def write(path: str | Path, document: dict[str, Any]) -> None:
    """Write atomically: a reader sees the old file or the whole new one."""
    path = Path(path)
    data = json.dumps({"format": FORMAT, "version": VERSION, **document}, ensure_ascii=False,
                      separators=(",", ":")).encode()
    if path.suffix == ".gz":
        data = gzip.compress(data, mtime=0)
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def read(path: str | Path) -> dict[str, Any]:
    """The document in a trace file. Raises TraceError (what is wrong) or FileNotFoundError."""
    data = Path(path).read_bytes()
    try:
        if data[:2] == b"\x1f\x8b":
            data = gzip.decompress(data)
        document = json.loads(data)
    except (OSError, EOFError, zlib.error, ValueError) as error:
        raise TraceError(f"{path} is not a trace, or it is damaged: {error}") from error
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise TraceError(f"{path} is not a trace of nanovllm_edu: it lacks \"format\": \"{FORMAT}\"")
    if document.get("version") != VERSION:
        raise TraceError(f"{path} has version {document.get('version')!r}; this program reads version {VERSION}: "
                         "update nanovllm_edu, or record the trace again")
    return document
