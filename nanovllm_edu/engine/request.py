"""What the engine keeps about a request beside its sequence: randomness, text as it grows, times."""

from __future__ import annotations

import time

import xxhash

from ..loading import Detokenizer, Tokenizer
from .outputs import RequestMetrics, RequestOutput
from .sequence import Sequence


class Request:
    """One live request of an engine.

    rng_seed: what its random numbers come from. Text is followed token by token only where somebody needs it: for stop
    strings, or for a stream.
    """

    def __init__(self, seq: Sequence, tokenizer: Tokenizer, rng_seed: int, stream: bool) -> None:
        self.seq, self.rng_seed = seq, rng_seed
        self.params = seq.sampling_params
        self.metrics = RequestMetrics(arrival_time=time.perf_counter())
        self.logprobs: list[dict[int, float]] = []
        self._tokenizer = tokenizer
        self._detokenizer = Detokenizer(tokenizer) if stream or self.params.stop else None
        self._pushed = 0  # completion tokens that the detokenizer has seen
        self._stop_at: int | None = None  # where in the text a stop string begins
        self.result: RequestOutput | None = None

    def uniform(self) -> float:
        """A number in [0, 1) for the next token.

        It depends on the seed and the token's position alone: a token that is computed again (after a preemption, or a
        step that failed) draws the same number, and so does a request that runs alone instead of in a batch.
        """
        digest = xxhash.xxh64_intdigest(self.seq.num_completion_tokens.to_bytes(8, "little"), seed=self.rng_seed)
        return (digest >> 11) * 2.0**-53

    def follow_text(self) -> bool:
        """Take in the newest tokens. True when a stop string has appeared in the text."""
        if self._detokenizer is None:
            return False
        before = len(self._detokenizer.text)
        new = self.seq.token_ids[self.seq.num_prompt_tokens + self._pushed:]
        self._pushed += len(new)
        self._detokenizer.push(new)
        if self.seq.is_finished:
            self._detokenizer.finish()
        return self._find_stop(before)

    def _find_stop(self, before: int) -> bool:
        text = self._detokenizer.text
        # a stop string may have begun in the text that was there before
        places = [place for stop in self.params.stop if (place := text.find(stop, max(0, before - len(stop) + 1))) >= 0]
        if places:
            self._stop_at = min(places)
        return bool(places)

    @property
    def certain_text(self) -> str:
        """Text that can't be taken back: without an end that might turn out to begin a stop string."""
        text = self._detokenizer.text if self._detokenizer else ""
        if self._stop_at is not None:
            return text[:self._stop_at]
        held = max((_overlap(text, stop) for stop in self.params.stop), default=0)
        return text[:len(text) - held]

    def forget(self, num_tokens: int) -> None:
        """Go back to when the sequence had num_tokens tokens, after a step that failed."""
        completion = max(0, num_tokens - self.seq.num_prompt_tokens)
        del self.logprobs[completion:]
        self.result = None
        self._stop_at = None
        if completion == 0:
            self.metrics.first_token_time = None
        if self._detokenizer is not None and self._pushed > completion:
            self._detokenizer = Detokenizer(self._tokenizer)
            self._detokenizer.push(self.seq.token_ids[self.seq.num_prompt_tokens:num_tokens])
            self._pushed = completion

    def output(self) -> RequestOutput:
        """The result of a request that has just finished."""
        seq = self.seq
        self.metrics.finished_time = time.perf_counter()
        self.metrics.num_preemptions = seq.num_preemptions
        if self._detokenizer is None:
            text = self._tokenizer.decode(seq.completion_token_ids)
        else:
            self.follow_text()  # flushes what was held back, for example of an aborted request
            text = self._detokenizer.text[:self._stop_at]
        reason = "stop" if self._stop_at is not None else seq.finish_reason or "aborted"
        self.result = RequestOutput(seq.seq_id, seq.prompt_token_ids, seq.completion_token_ids, text,
                                    reason, seq.first_hit_tokens or 0, self.metrics,
                                    list(self.logprobs) if self.params.logprobs else None)
        return self.result


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of text that begins, but does not complete, the stop string."""
    return next((n for n in range(min(len(text), len(stop) - 1), 0, -1) if text.endswith(stop[:n])), 0)
