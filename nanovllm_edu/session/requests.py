"""The prompts that a view submits, the conversation they make, and what becomes of them.

All methods run on the session's thread.
"""
from __future__ import annotations

from typing import Any

from ..errors import RequestError
from ..sampling_params import SamplingParams
from . import strings
from .conversation import Conversation


class Requests:
    """What a session has asked of its engine. ``chat`` is the list that views show: one dict per submitted prompt,
    ``{seq_id, text, raw, turn}``; ``turn`` is 0 for a prompt outside the conversation."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self.conversation = Conversation(tokenizer)
        self.chat: list[dict[str, Any]] = []
        self._own: set[int] = set()  # submitted here and not yet collected

    def submit(self, llm: Any, prompt: Any, raw: bool, max_tokens: Any) -> str:
        """Queue a prompt; a notice, or "". Raises RequestError (nothing changed)."""
        if not isinstance(prompt, str) or not prompt.strip():
            raise RequestError(strings.NOT_A_PROMPT)
        if not isinstance(max_tokens, int) or isinstance(max_tokens, bool):
            raise RequestError(strings.NOT_A_NUMBER.format(value=max_tokens))
        params = SamplingParams(temperature=0.0, max_tokens=max_tokens)
        talk, notice, turn = self.conversation, "", 0
        if raw:
            seq_id = llm.add_request(prompt, params)
        elif talk.pending is not None:
            notice = strings.TURN_STILL_RUNS
            seq_id = llm.add_request(Conversation(self._tokenizer).ask(prompt), params)
        else:
            token_ids = talk.ask(prompt)
            try:
                seq_id = llm.add_request(token_ids, params)
            except RequestError as error:
                raise RequestError(f"{error}{strings.TOO_LONG if talk.messages else ''}") from None
            turn = talk.begin(prompt, token_ids, seq_id)
        self._own.add(seq_id)
        self.chat = [*self.chat, {"seq_id": seq_id, "text": prompt, "raw": bool(raw), "turn": turn}]
        return notice

    def collect(self, llm: Any) -> None:
        """Take the outputs of own requests that have finished, so that none waits in ``llm.outputs`` for ever."""
        for seq_id in [seq_id for seq_id in self._own if seq_id in llm.outputs]:
            output = llm.outputs.pop(seq_id)
            self._own.discard(seq_id)
            if self.conversation.pending == seq_id:
                self.conversation.end(output.text, output.token_ids)

    def forget(self) -> None:
        """Begin a new conversation; what was said stays in ``chat``, for its requests stay in the picture."""
        self.conversation = Conversation(self._tokenizer)
