"""A conversation as token ids that only ever grow, so that each turn finds the blocks of the turns before it.

Applying the chat template anew and tokenising its text would mostly, but not always, give the same first tokens. So
the tokens that the engine has really seen are kept, and only the text that the template adds is tokenised.
"""
from __future__ import annotations

from typing import Any


class Conversation:
    """User and assistant turns in order. ``tokenizer`` is that of the engine."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self.messages: list[dict[str, str]] = []
        self.turn = 0                       # turns that the user has begun
        self.pending: int | None = None     # the request that writes the answer now
        self._seen: list[int] = []          # prompt and answer of the last turn
        self._asked: list[int] = []

    def ask(self, text: str) -> list[int]:
        """The prompt's token ids if the user says ``text`` now. Nothing is remembered until ``begin``."""
        messages = [*self.messages, {"role": "user", "content": text}]
        whole = self._tokenizer.render_chat(messages)
        known = self._tokenizer.decode(self._seen, skip_special_tokens=False)
        if known and whole.startswith(known):
            return self._seen + self._tokenizer.encode(whole[len(known):], add_special_tokens=False)
        return self._tokenizer.encode(whole, add_special_tokens=False)  # a template that rewrites earlier turns

    def begin(self, text: str, token_ids: list[int], seq_id: int) -> int:
        """The user's turn is under way as request ``seq_id``; the turn's number, from 1."""
        self.messages.append({"role": "user", "content": text})
        self.turn += 1
        self.pending = seq_id
        self._asked = token_ids
        return self.turn

    def end(self, text: str, token_ids: list[int]) -> None:
        """The answer is finished, or was aborted: what there is of it stays. A turn without any answer is undone."""
        self.pending = None
        if not token_ids:
            self.messages.pop()
            self.turn -= 1
            return
        self.messages.append({"role": "assistant", "content": text})
        self._seen = self._asked + token_ids
