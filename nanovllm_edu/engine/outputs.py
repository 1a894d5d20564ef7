"""What comes out of the engine: of one step, and of one finished request."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass
class RequestMetrics:
    """When things happened to a request, in seconds of `time.perf_counter()`; None if they never did."""

    arrival_time: float
    first_token_time: float | None = None
    finished_time: float | None = None
    num_preemptions: int = 0

    @property
    def time_to_first_token(self) -> float | None:
        """Seconds from arrival to the first token."""
        return None if self.first_token_time is None else self.first_token_time - self.arrival_time


@dataclass
class RequestOutput:
    """A finished request. `out["text"]` and `out["token_ids"]` work too, as nano-vllm's users write.

    token_ids: the generated tokens, an end-of-sequence token included; text: without special tokens, and without the
    stop string. finish_reason: "eos", "stop", "length" (max_tokens or max_model_len), "aborted" or "kv_exhausted" (the
    pool has no room for one more token). num_cached_tokens: prompt tokens found in the prefix cache at its first turn.
    logprobs: for each token {token id: log-probability}, when asked for.
    """

    seq_id: int
    prompt_token_ids: list[int]
    token_ids: list[int]
    text: str
    finish_reason: str
    num_cached_tokens: int
    metrics: RequestMetrics
    logprobs: list[dict[int, float]] | None = None

    def __getitem__(self, name: str) -> Any:
        try:
            return self.__dict__[name]
        except KeyError:
            raise KeyError(f"{name!r}: a RequestOutput has {', '.join(self.__dict__)}") from None


@dataclass
class StepOutput:
    """What one step did.

    step: its number, from 1. phase: "prefill", "decode", "mixed" or "idle" (nothing to do). seq_ids: who was in the
    batch, in order. new_token_ids: {seq_id: token id} of those that sampled. finished: outputs of those that ended.
    """

    step: int
    phase: str
    seq_ids: list[int] = field(default_factory=list)
    new_token_ids: dict[int, int] = field(default_factory=dict)
    finished: list[RequestOutput] = field(default_factory=list)
