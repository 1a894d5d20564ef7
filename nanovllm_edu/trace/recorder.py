"""A run of the ledger, recorded: a first state and every event since.

``with record(llm) as trace`` attaches an observer that only appends to a list; patches and states are worked out when
somebody looks. Frame 0 is the state at the start, frame k the state after event k.
"""
from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..engine.events import Event, StepEnded
from . import files
from .patches import Patch, TraceError, apply, patches, revert
from .state import State, snapshot


@dataclass(frozen=True)
class Frame:
    """One moment of a run: the event that led to it (None for frame 0) and a copy of the whole state after it."""

    index: int
    event: Event | None
    state: State

    @property
    def step(self) -> int:
        return self.state["step"]


class Frames(Sequence):
    """The frames of a trace, by index. Going to a neighbour is cheap, a far jump costs the events in between."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._index = 0
        self._state = deepcopy(trace.initial)

    def __len__(self) -> int:
        return len(self._trace.events) + 1

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        if index < 0:
            index += len(self)
        if not 0 <= index < len(self):
            raise IndexError(f"frame {index} of a trace that has frames 0 to {len(self) - 1}")
        self._go_to(index)
        return Frame(index, self._trace.events[index - 1] if index else None, deepcopy(self._state))

    def _go_to(self, index: int) -> None:
        while self._index < index:
            apply(self._state, self._trace.patches(self._index))
            self._index += 1
        while self._index > index:
            revert(self._state, self._trace.patches(self._index - 1))
            self._index -= 1


class Trace:
    """A recorded run: ``initial`` state, ``events``, ``frames``, ``info`` on the engine, ``vocab`` (token → text)."""

    def __init__(self, initial: State, events: list[Event] | None = None, info: Mapping[str, Any] | None = None,
                 vocab: Mapping[int, str] | None = None) -> None:
        self.initial = initial
        self.events: list[Event] = events if events is not None else []
        self.info: dict[str, Any] = dict(info or {})
        self.decode: Callable[..., str] | None = None  # the engine's tokenizer.decode, while it is at hand
        self._vocab: dict[int, str] = dict(vocab or {})
        self._patches: list[list[Patch]] = []
        self._lock = threading.Lock()
        self._latest = deepcopy(initial)  # the state after the last event whose patches are known
        self.frames = Frames(self)

    def __repr__(self) -> str:
        return f"Trace({len(self.events)} events, {self.steps} steps, {self.initial['num_blocks']} blocks)"

    def on_event(self, event: Event) -> None:
        """Be the engine's observer: remember the event."""
        self.events.append(event)

    @property
    def steps(self) -> int:
        """Steps that ended in this trace."""
        return sum(isinstance(event, StepEnded) for event in self.events)

    def patches(self, index: int) -> list[Patch]:
        """What ``events[index]`` changes."""
        with self._lock:  # a view may look while the trace's owner does
            while len(self._patches) <= index:
                new = patches(self._latest, self.events[len(self._patches)])
                apply(self._latest, new)
                self._patches.append(new)
        return self._patches[index]

    def rows(self, start: int = 0, stop: int | None = None) -> list[dict[str, Any]]:
        """Events ``start`` to ``stop`` as the browser takes them: ``{e: event, p: patches, step, last}``."""
        out = []
        for index in range(start, len(self.events) if stop is None else min(stop, len(self.events))):
            event, patch = self.events[index], self.patches(index)
            step = self._step_at(index)
            out.append({"e": files.event_to_json(event), "p": patch, "step": step,
                        "last": isinstance(event, StepEnded)})
        return out

    def _step_at(self, index: int) -> int:
        """The step that event ``index`` belongs to: known from the patches, without rebuilding a state."""
        for i in range(index, -1, -1):
            step = getattr(self.events[i], "step_after", getattr(self.events[i], "step", None))
            if step is not None:
                return step
        return self.initial["step"]

    @property
    def vocab(self) -> dict[int, str]:
        """The text of every token that occurs in the trace (empty without a tokenizer)."""
        if self.decode is not None:
            for token in self._tokens() - self._vocab.keys():
                self._vocab[token] = self.decode([token], skip_special_tokens=False)
        return self._vocab

    def _tokens(self) -> set[int]:
        tokens = {t for seq in self.initial["seqs"].values() for t in seq["token_ids"]}
        tokens.update(t for block in self.initial["blocks"] for t in block["token_ids"])
        for event in self.events:
            tokens.update(getattr(event, "token_ids", ()))
            if hasattr(event, "token_id"):
                tokens.add(event.token_id)
        return tokens

    def save(self, path: str | Path) -> Path:
        """Write the trace to a file (JSON; gzipped if the name ends in ``.gz``), atomically."""
        files.write(path, {"info": self.info, "vocab": {str(k): v for k, v in sorted(self.vocab.items())},
                           "initial": self.initial, "events": [files.event_to_json(e) for e in self.events]})
        return Path(path)

    @classmethod
    def load(cls, path: str | Path) -> Trace:
        """Read a trace file. Raises TraceError, saying what is wrong, for anything but a whole, consistent trace."""
        document = files.read(path)
        try:
            trace = cls(dict(document["initial"]), [files.event_from_json(e) for e in document["events"]],
                        document["info"], {int(k): str(v) for k, v in document["vocab"].items()})
            if trace.events:
                trace.patches(len(trace.events) - 1)
        except TraceError as error:
            raise TraceError(f"{path}: {error}") from error
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise TraceError(f"{path} lacks a part of a trace: {error!r}") from error
        return trace


def start(target: Any) -> Trace:
    """Attach a new trace to an engine (or to a bare ``Scheduler``) between two steps. ``stop`` detaches it."""
    scheduler = getattr(target, "scheduler", target)
    trace = Trace(snapshot(scheduler), info=dict(getattr(target, "model_info", None) or {}))
    tokenizer = getattr(target, "tokenizer", None)
    if tokenizer is not None:
        trace.decode = tokenizer.decode
    scheduler.emit.attach(trace)
    return trace


def stop(target: Any, trace: Trace) -> None:
    """Detach a trace: it records nothing more."""
    getattr(target, "scheduler", target).emit.detach(trace)


@contextmanager
def record(target: Any) -> Iterator[Trace]:
    """Record what an engine (an ``LLM``, or a ``Scheduler`` alone) does inside the block.

    ``with record(llm) as trace: llm.generate(...)``; then ``trace.frames``, ``trace.save``, ``replay(trace)``.
    """
    on_engine_thread = getattr(target, "_call", None) or (lambda fn: fn())
    trace = on_engine_thread(lambda: start(target))
    try:
        yield trace
    finally:
        on_engine_thread(lambda: stop(target, trace))
