"""The front door: what a prompt may be, and what is wrong with it if it is refused."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping
from typing import Any

from ..errors import RequestError
from ..loading import Tokenizer
from ..sampling_params import SamplingParams


def split_prompts(prompts: Any) -> list[Any]:
    """One prompt or several, as a list. A string or a flat container of numbers is one prompt."""
    if isinstance(prompts, (str, bytes, Mapping)) or not isinstance(prompts, Iterable):
        return [prompts]
    if hasattr(prompts, "ndim"):  # numpy and torch: a vector is one prompt, rows are several
        return [prompts] if prompts.ndim < 2 else list(prompts)
    items = list(prompts)
    return [items] if items and isinstance(prompts, range) or items and _is_number(items[0]) else items


def token_ids_of(prompt: Any, tokenizer: Tokenizer, vocab_size: int) -> list[int]:
    """Token ids of a prompt: a string, or any container of whole numbers. Raises RequestError saying what is wrong."""
    if isinstance(prompt, str):
        if not prompt:
            raise RequestError("the prompt is empty: give at least one character")
        return tokenizer.encode(prompt)
    if isinstance(prompt, (bytes, Mapping)) or not isinstance(prompt, Iterable):
        raise RequestError(f"a prompt is a string or token ids, not {type(prompt).__name__} ({_short(prompt)})")
    if getattr(prompt, "ndim", 1) != 1:
        raise RequestError(f"token ids must be a flat sequence, and this has {prompt.ndim} dimensions")
    values = prompt.tolist() if hasattr(prompt, "tolist") else list(prompt)
    if not values:
        raise RequestError("the prompt is empty: give at least one token id")
    return [_token_id(i, value, vocab_size) for i, value in enumerate(values)]


def params_for(sampling_params: Any, count: int) -> list[SamplingParams]:
    """Sampling parameters of each of `count` prompts: one for all, or a list as long. Raises RequestError."""
    if sampling_params is None:
        sampling_params = SamplingParams()
    if isinstance(sampling_params, SamplingParams):
        return [sampling_params] * count
    if not isinstance(sampling_params, (list, tuple)):
        raise RequestError(f"sampling_params is {_short(sampling_params)}: give SamplingParams(...), or a list of them")
    for i, params in enumerate(sampling_params):
        if not isinstance(params, SamplingParams):
            raise RequestError(f"sampling_params[{i}] is {_short(params)}: give SamplingParams(...)")
    if len(sampling_params) != count:
        raise RequestError(f"{len(sampling_params)} sampling_params for {count} prompts: give one for all, or one each")
    return list(sampling_params)


def check_salt(cache_salt: Any) -> str | None:
    """The salt that keeps a request's cached prefix apart from others'. Raises RequestError if it is no string."""
    if cache_salt is not None and (not isinstance(cache_salt, str) or not cache_salt):
        raise RequestError(f"cache_salt={cache_salt!r}: must be None or a string of at least one character")
    return cache_salt


def _token_id(index: int, value: Any, vocab_size: int) -> int:
    try:
        token = None if isinstance(value, bool) or type(value).__name__ == "bool_" else operator.index(value)
    except TypeError:
        token = None
    if token is None or not 0 <= token < vocab_size:
        raise RequestError(f"token {index} is {_short(value)}: token ids are whole numbers from 0 to {vocab_size - 1}")
    return token


def _is_number(value: Any) -> bool:
    return isinstance(value, (bool, int, float)) or (hasattr(value, "dtype") and getattr(value, "ndim", 1) == 0)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
