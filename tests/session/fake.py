"""An engine without a model: the real scheduler and ledger, tokens from a formula. As fast as the ledger itself."""
from __future__ import annotations

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from nanovllm_edu import RequestError, SamplingParams
from nanovllm_edu.engine import Scheduler, Sequence
from tests.ledger.golden import config, next_token


class FakeTokenizer:
    """One token per character."""

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return [ord(c) for c in text]

    def decode(self, token_ids: Any, skip_special_tokens: bool = True) -> str:
        return "".join(map(chr, token_ids))

    def render_chat(self, messages: list[dict], add_generation_prompt: bool = True) -> str:
        return "".join(f"[{m['role']}]{m['content']}[end]" for m in messages) + "[assistant]"


class FakeLLM:
    """Has what a session asks of an engine. ``before_step`` is called in each step, after ``schedule``."""

    def __init__(self, before_step: Callable[[], None] = lambda: None, **options: Any) -> None:
        self.scheduler = Scheduler(config(num_kvcache_blocks=32, **options))
        self.driver: Any = None
        self.tokenizer = FakeTokenizer()
        self.model_info = {"name": "fake", "device": "none"}
        self.outputs: dict[int, Any] = {}
        self.is_closed = False
        self.before_step = before_step
        self._lock = threading.RLock()
        self._count = 0

    def _call(self, fn: Callable[[], Any]) -> Any:
        driver = self.driver
        if driver is not None and driver.thread_id != threading.get_ident():
            return driver.call(fn)
        with self._lock:
            return fn()

    def add_request(self, prompt: Any, params: SamplingParams) -> int:
        tokens = self.tokenizer.encode(prompt) if isinstance(prompt, str) else prompt
        return self._call(lambda: self._add(tokens, params))

    def _add(self, tokens: list[int], params: SamplingParams) -> int:
        seq = Sequence(tokens, params, self.scheduler.block_size, seq_id=self._count)
        self._count += 1
        self.scheduler.add(seq)
        return seq.seq_id

    def step(self) -> None:
        self._call(self._step)

    def _step(self) -> None:
        if self.is_closed:
            raise RequestError("closed")
        before = {seq.seq_id: (seq, seq.num_tokens) for seq in self.scheduler.sequences}
        try:
            seqs, is_prefill = self.scheduler.schedule()
            self.before_step()
            self.scheduler.postprocess(seqs, [next_token(seq) for seq in seqs], is_prefill)
        except BaseException:
            self.scheduler.recover(before)
            raise
        for seq in seqs:
            if seq.is_finished:
                self._finish(seq)

    def _finish(self, seq: Sequence) -> None:
        self.outputs[seq.seq_id] = SimpleNamespace(text=self.tokenizer.decode(seq.completion_token_ids),
                                                   token_ids=seq.completion_token_ids)

    def abort(self, seq_id: int) -> None:
        def do() -> None:
            seq = self.scheduler.abort(seq_id)
            if seq is not None:
                self._finish(seq)
        self._call(do)

    def is_finished(self) -> bool:
        return self.scheduler.is_finished()

    def reset_prefix_cache(self) -> None:
        self._call(self.scheduler.reset_prefix_cache)

    def close(self) -> None:
        self._call(lambda: setattr(self, "is_closed", True))
