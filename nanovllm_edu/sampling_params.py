"""What a request asks of the sampler, and when it wants to stop."""

from __future__ import annotations

import math
import numbers
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from .errors import RequestError

MAX_LOGPROBS = 20
GREEDY_EPSILON = 1e-5
"""Temperatures below this are greedy: dividing by them would overflow fp32 for every logit but the largest."""


@dataclass(frozen=True)
class SamplingParams:
    """Sampling parameters of one request.

    temperature: 0 is greedy (the most probable token); larger is more random.
    max_tokens: generate at most this many tokens, at least 1.
    ignore_eos: go on after the model's end-of-sequence token, up to `max_tokens` (used for benchmarks).
    top_k: sample among the k most probable tokens only; 0 means all.
    top_p: sample among the fewest tokens whose probabilities sum to at least top_p (nucleus sampling, Holtzman 2019).
    min_p: drop tokens less probable than min_p times the most probable one.
    seed: makes the request's random numbers its own: same seed, same tokens, alone or in a batch (in fp32).
    stop: strings that end the text; the text is cut before the string. One string, or several.
    stop_token_ids: token ids that end the request; the token itself is kept in `token_ids`.
    logprobs: report the log-probability of each token and of this many most probable tokens beside it (at most 20).

    Raises RequestError for a value that breaks its rule. Filters apply in the order temperature, top_k, top_p, min_p.
    """

    temperature: float = 1.0
    max_tokens: int = 64
    ignore_eos: bool = False
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    logprobs: int = 0

    def __post_init__(self) -> None:
        put = lambda name, value: object.__setattr__(self, name, value)  # noqa: E731 (the dataclass is frozen)
        put("temperature", _real("temperature", self.temperature, 0.0, math.inf, "0 is greedy, 1.0 samples as trained"))
        put("max_tokens", _integer("max_tokens", self.max_tokens, 1, None, "ask for at least one token"))
        if not isinstance(self.ignore_eos, bool):
            raise RequestError(f"ignore_eos={self.ignore_eos!r}: must be True or False")
        put("top_k", _integer("top_k", self.top_k, 0, None, "0 keeps all tokens"))
        put("top_p", _real("top_p", self.top_p, 0.0, 1.0, "1.0 keeps all tokens", open_low=True))
        put("min_p", _real("min_p", self.min_p, 0.0, 1.0, "0.0 keeps all tokens"))
        if self.seed is not None:
            put("seed", _integer("seed", self.seed, 0, 2**63 - 1, "None draws from the engine's own generator"))
        put("stop", _stop_strings(self.stop))
        put("stop_token_ids", _stop_ids(self.stop_token_ids))
        put("logprobs", _integer("logprobs", self.logprobs, 0, MAX_LOGPROBS, "0 reports none"))

    @property
    def is_greedy(self) -> bool:
        """True when the most probable token is taken, without any random number."""
        return self.temperature < GREEDY_EPSILON


def _integer(name: str, value: Any, low: int, high: int | None, way_out: str) -> int:
    whole = isinstance(value, numbers.Integral) and not isinstance(value, bool)
    if not whole or value < low or (high is not None and value > high):
        rule = f"at least {low}" if high is None else f"from {low} to {high}"
        raise RequestError(f"{name}={value!r}: must be a whole number, {rule} ({way_out})")
    return int(value)


def _real(name: str, value: Any, low: float, high: float, way_out: str, open_low: bool = False) -> float:
    real = isinstance(value, numbers.Real) and not isinstance(value, bool) and math.isfinite(value)
    if not real or value < low or value > high or (open_low and value == low):
        rule = f"{'above' if open_low else 'at least'} {low:g}" + ("" if high == math.inf else f", at most {high:g}")
        raise RequestError(f"{name}={value!r}: must be a finite number, {rule} ({way_out})")
    return float(value)


def _stop_strings(value: Any) -> tuple[str, ...]:
    if value is None:
        return ()
    if isinstance(value, str):
        value = (value,)
    if not isinstance(value, Iterable):
        raise RequestError(f"stop={value!r}: must be a string or several strings, for example stop=['\\n\\n']")
    strings = tuple(value)
    for string in strings:
        if not isinstance(string, str) or not string:
            raise RequestError(f"stop holds {string!r}: each must be a string of at least one character")
    return strings


def _stop_ids(value: Any) -> tuple[int, ...]:
    if value is None:
        return ()
    if isinstance(value, numbers.Integral) and not isinstance(value, bool):
        value = (value,)
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise RequestError(f"stop_token_ids={value!r}: must be token ids, for example stop_token_ids=[2]")
    return tuple(_integer("stop_token_ids holds", item, 0, None, "it is a token id") for item in value)
