"""A trace as the browser takes it: rows of event, patches, sentence and text, in messages of bounded size.

A row is ``{e: event, p: patches, s: sentence parts, step, last}``; of a token also ``t``, the text that it completed;
of a step's end that leaves the ledger broken also ``v``, the breaches of the law as [article, sentence].
"""
from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any

from ..engine.events import Event, RequestAdded, RequestFinished, RequestRestored, TokenAppended
from ..render import sentence
from ..trace import Frame, Trace
from ..trace.law import Verdicts

MAX_ROWS = 500  # rows of one message
Decode = Callable[..., str]


class Feed:
    """Rows of a trace that may still grow. Safe to use from several threads.

    ``decode(token_ids, skip_special_tokens=...)`` turns tokens into text; without it the trace's own vocabulary serves.
    """

    def __init__(self, trace: Trace, decode: Decode | None = None) -> None:
        self.trace = trace
        self._decode = decode
        self._vocab: dict[int, str] = {} if decode else dict(trace.vocab)
        self._texts = Texts(trace, decode)
        self._verdicts = Verdicts(trace)
        self._lock = threading.RLock()

    @property
    def total(self) -> int:
        """Events so far."""
        return len(self.trace.events)

    def message(self, start: int, stop: int) -> dict[str, Any]:
        """Rows ``start`` to ``stop`` with the text of their tokens: ``{start, total, rows, vocab}``."""
        with self._lock:
            events = self.trace.events[start:stop]
            tokens = {token for event in events for token in _tokens_of(event)}
            if start == 0:
                tokens |= _tokens_in(self.trace.initial)
            vocab = self.vocab(tokens)
            rows = self.trace.rows(start, start + len(events))
            for index, (row, event) in enumerate(zip(rows, events, strict=True), start):
                row["s"] = sentence(event, vocab)
                if isinstance(event, TokenAppended):
                    row["t"] = self._texts.of(index)
                if row["last"] and (broken := self._verdicts.of(index)):
                    row["v"] = [list(breach) for breach in broken]
            return {"start": start, "total": self.total, "rows": rows,
                    "vocab": {str(token): text for token, text in vocab.items()}}

    def newest(self, start: int) -> dict[str, Any]:
        """Rows from ``start`` on, but no more than one message takes; the view asks for what is missing."""
        total = self.total
        return self.message(max(start, total - MAX_ROWS), total)

    def backlog(self, start: int) -> Iterable[dict[str, Any]]:
        """All rows from ``start`` on, message by message."""
        total = self.total
        for first in range(max(0, start), total, MAX_ROWS):
            yield self.message(first, min(first + MAX_ROWS, total))

    def frame(self, index: int = -1) -> Frame:
        with self._lock:
            return self.trace.frames[index]

    def vocab(self, tokens: Iterable[int]) -> dict[int, str]:
        """The texts of tokens, special ones included, where they are known."""
        with self._lock:
            if self._decode is not None:
                for token in set(tokens) - self._vocab.keys():
                    self._vocab[token] = self._decode([token], skip_special_tokens=False)
            return {token: self._vocab[token] for token in sorted(tokens) if token in self._vocab}

    def vocab_of(self, state: dict[str, Any]) -> dict[int, str]:
        """The texts of all tokens in a state."""
        return self.vocab(_tokens_in(state))


class Texts:
    """What text each generated token completed: "" while a character is not whole yet, and for special tokens."""

    def __init__(self, trace: Trace, decode: Decode | None) -> None:
        self._trace, self._decode = trace, decode
        self._texts: list[str] = []  # one for each event looked at, "" for those that append no token
        self._prompts: dict[int, int] = {}  # prompt tokens of each request
        self._completions: dict[int, list[int]] = {}
        for seq_id, seq in trace.initial["seqs"].items():
            self._prompts[int(seq_id)] = seq["num_prompt_tokens"]
            self._completions[int(seq_id)] = seq["token_ids"][seq["num_prompt_tokens"]:]
        self._followers: dict[int, Any] = {}

    def of(self, index: int) -> str:
        while len(self._texts) <= index:
            self._texts.append(self._next(len(self._texts)))
        return self._texts[index]

    def _next(self, index: int) -> str:
        event = self._trace.events[index]
        if isinstance(event, RequestAdded):
            self._prompts[event.seq_id], self._completions[event.seq_id] = len(event.token_ids), []
        elif isinstance(event, RequestFinished):
            self._followers.pop(event.seq_id, None)  # its tokens stay: a step that fails brings it back
        elif isinstance(event, RequestRestored):
            kept = event.num_tokens - self._prompts[event.seq_id]
            if kept < len(self._completions[event.seq_id]):
                del self._completions[event.seq_id][kept:]
                self._followers.pop(event.seq_id, None)
        elif isinstance(event, TokenAppended):
            return self._append(event, index)
        return ""

    def _append(self, event: TokenAppended, index: int) -> str:
        if self._decode is None:
            following = self._trace.events[index + 1] if index + 1 < len(self._trace.events) else None
            ends = isinstance(following, RequestFinished) and following.reason == "eos"
            return "" if ends else self._trace.vocab.get(event.token_id, "")
        tokens = self._completions.setdefault(event.seq_id, [])
        if event.seq_id not in self._followers:
            from ..loading import Detokenizer

            self._followers[event.seq_id] = Detokenizer(self)
            self._followers[event.seq_id].push(tokens)
        tokens.append(event.token_id)
        return self._followers[event.seq_id].push([event.token_id])

    def decode(self, token_ids: Iterable[int]) -> str:
        """What the detokenizer asks of a tokenizer."""
        return self._decode(list(token_ids), skip_special_tokens=True)


def _tokens_of(event: Event) -> Iterable[int]:
    yield from getattr(event, "token_ids", ())
    yield from getattr(event, "token_ids_before", ())
    if isinstance(event, TokenAppended):
        yield event.token_id


def _tokens_in(state: dict[str, Any]) -> set[int]:
    return {token for part in (*state["seqs"].values(), *state["blocks"]) for token in part["token_ids"]}
