"""Where a learner's progress lives: one JSON file in the user's data folder.

Written whole to a neighbour and put in place by ``os.replace``, under a lock, so that two notebooks can be open at
once and a crash leaves the old file or the new one. A damaged file is set aside, never deleted. Where nothing can be
written, exercises still work; the progress then lasts as long as the process, and every result says so.
"""

from __future__ import annotations

import copy
import json
import os
import secrets
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout
from platformdirs import user_data_path

VERSION = 1
ENV = "NANOVLLM_EDU_PROGRESS"
LOCK_SECONDS = 5
Document = dict[str, Any]


def progress_path() -> Path:
    """The file: what the environment variable NANOVLLM_EDU_PROGRESS names, else one in the user's data folder."""
    named = os.environ.get(ENV)
    return Path(named).expanduser() if named else user_data_path("nanovllm_edu", appauthor=False) / "progress.json"


def now() -> str:
    """The time of an entry: UTC, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


class ProgressStore:
    """``read`` gives the document, ``change`` edits it: ``{version, learner, exercises: {id: record}}``.

    ``learner`` is a random id, from which every exercise's parameters are drawn; it says nothing about the person.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.path = path or progress_path()
        self._notice = ""
        self._base = _new()  # what the file held last, for when it can't be used
        self._unsaved: list[Callable[[Document], None]] = []  # edits that could not be written yet
        self._threads = threading.Lock()

    def read(self) -> Document:
        """The whole document, made on first use, so that a learner's parameters are theirs from the first look on."""
        return self._use(None)

    def change(self, edit: Callable[[Document], None]) -> Document:
        """Let ``edit`` change the document in place, write it if it changed, and return it."""
        return self._use(edit)

    def _use(self, edit: Callable[[Document], None] | None) -> Document:
        with self._threads:
            edits = [*self._unsaved, *([edit] if edit else [])]
            try:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                with FileLock(self.path.with_name(self.path.name + ".lock"), timeout=LOCK_SECONDS):
                    is_new = self._load()
                    document = _edited(self._base, edits)
                    if is_new or document != self._base:
                        self._write(document)
                    self._base, self._unsaved = document, []
            except (OSError, Timeout) as error:
                why = "another program holds its lock" if isinstance(error, Timeout) else error.strerror or str(error)
                self._notice = (f"Not saved: {self.path} can't be used ({why}). Your answers are kept until this "
                                f"kernel stops. To keep them elsewhere, set {ENV} to a file that can be written.")
                document, self._unsaved = _edited(self._base, edits), edits
            return copy.deepcopy(document)

    def take_notice(self) -> str:
        """What the learner should be told about the file, once; "" when all is well."""
        notice, self._notice = self._notice, ""
        return notice

    def _load(self) -> bool:
        """Bring ``_base`` up to date; whether the file is missing, or was set aside, and must be written anew."""
        try:
            document = json.loads(self.path.read_text("utf-8"))
        except FileNotFoundError:
            return True  # what this process knows survives a deleted file
        except ValueError:  # no JSON, or no text at all
            document = None
        if _is_whole(document):
            self._base = document
            return False
        version = document.get("version") if isinstance(document, dict) else None
        is_newer = isinstance(version, int) and version > VERSION
        kind = "newer" if is_newer else "damaged"
        aside = self.path.with_name(f"{self.path.stem}-{kind}-{secrets.token_hex(4)}.json")
        os.replace(self.path, aside)
        what = "was written by a newer version of the course" if is_newer else "was damaged"
        self._notice = f"{self.path.name} {what}. It is kept as {aside}; progress is counted anew."
        return True

    def _write(self, document: Document) -> None:
        beside = self.path.with_name(f"{self.path.name}.{os.getpid()}.new")
        try:
            beside.write_text(json.dumps(document, indent=1, ensure_ascii=False), "utf-8")
            os.replace(beside, self.path)
        except OSError:
            beside.unlink(missing_ok=True)
            raise


_stores: dict[Path, ProgressStore] = {}


def store() -> ProgressStore:
    """The store of the file that is in use now; one per file and process."""
    path = progress_path()
    return _stores.setdefault(path, ProgressStore(path))


def record_of(document: Document, exercise_id: str) -> dict[str, Any]:
    """The record of one exercise, put into the document when it is missing.

    ``variant`` counts resets, so that a reset draws new numbers; ``attempts`` are ``{time, answer, outcome,
    misconception}``; ``hints`` is how many were taken; ``revealed`` whether the answer was.
    """
    return document["exercises"].setdefault(
        exercise_id, {"variant": 0, "attempts": [], "hints": 0, "revealed": False})


def _edited(document: Document, edits: list[Callable[[Document], None]]) -> Document:
    document = copy.deepcopy(document)
    for edit in edits:
        edit(document)
    return document


def _new() -> Document:
    return {"version": VERSION, "learner": secrets.token_hex(8), "exercises": {}}


def _is_whole(document: Any) -> bool:
    return (isinstance(document, dict) and document.get("version") == VERSION
            and isinstance(document.get("learner"), str) and isinstance(document.get("exercises"), dict)
            and all(_is_record(record) for record in document["exercises"].values()))


def _is_record(record: Any) -> bool:
    return (isinstance(record, dict) and isinstance(record.get("variant"), int)
            and isinstance(record.get("hints"), int) and isinstance(record.get("revealed"), bool)
            and isinstance(record.get("attempts"), list)
            and all(isinstance(a, dict) and isinstance(a.get("outcome"), str) for a in record["attempts"]))
