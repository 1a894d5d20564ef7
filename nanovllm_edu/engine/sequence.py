"""One request from arrival to finish: its tokens, its place in the pool, and what of it crosses to a worker process.

Follows nano-vllm's ``engine/sequence.py``, except that ``block_size`` belongs to the instance: two engines in one
notebook must not disturb each other.
"""
from __future__ import annotations

import operator
from collections.abc import Iterable
from enum import Enum, auto
from itertools import count
from typing import Any

from ..errors import RequestError
from ..sampling_params import SamplingParams


class SequenceStatus(Enum):
    WAITING = auto()   # in the waiting queue: not computed yet, or only in part
    RUNNING = auto()   # its prompt is computed; it decodes whenever it is scheduled
    FINISHED = auto()  # done, for the reason in ``finish_reason``


class Sequence:
    """A request's tokens and its block table.

    ``block_table[i]`` is the physical block that holds the tokens of logical block ``i``; token ``t`` lives in slot
    ``block_table[t // block_size] * block_size + t % block_size``.

    Raises RequestError for an empty prompt, a token that is not a whole number of at least 0, or ``block_size < 2``.
    """

    _ids = count()

    def __init__(self, token_ids: Iterable[int], sampling_params: SamplingParams | None = None, block_size: int = 256,
                 *, seq_id: int | None = None, cache_salt: str | None = None) -> None:
        if block_size < 2:
            raise RequestError(f"block_size={block_size}: must be at least 2, else len % block_size == 1 is never true")
        self.token_ids = [_token_id(token) for token in token_ids]
        if not self.token_ids:
            raise RequestError("the prompt has no tokens: give at least one, for there is no last token to continue")
        self.seq_id = next(Sequence._ids) if seq_id is None else seq_id
        self.status = SequenceStatus.WAITING
        self.block_size = block_size
        self.last_token = self.token_ids[-1]
        self.num_tokens = len(self.token_ids)
        self.num_prompt_tokens = len(self.token_ids)
        self.num_cached_tokens = 0      # tokens whose keys and values are in the pool
        self.num_scheduled_tokens = 0   # tokens to compute in this step
        self.is_prefill = True          # False from its first decode on, True again after a preemption
        self.block_table: list[int] = []
        self.sampling_params = sampling_params if sampling_params is not None else SamplingParams()
        self.temperature = self.sampling_params.temperature
        self.max_tokens = self.sampling_params.max_tokens
        self.ignore_eos = self.sampling_params.ignore_eos
        self.cache_salt = cache_salt
        self.finish_reason: str | None = None
        self.num_preemptions = 0
        self.first_hit_tokens: int | None = None  # prompt tokens found in the cache at the first admission

    def __len__(self) -> int:
        return self.num_tokens

    def __getitem__(self, key: int | slice) -> Any:
        return self.token_ids[key]

    def __repr__(self) -> str:
        return (f"Sequence({self.seq_id}, {self.status.name}, {self.num_tokens} tokens, "
                f"{self.num_cached_tokens} cached, block_table={self.block_table})")

    @property
    def is_finished(self) -> bool:
        return self.status is SequenceStatus.FINISHED

    @property
    def num_completion_tokens(self) -> int:
        return self.num_tokens - self.num_prompt_tokens

    @property
    def prompt_token_ids(self) -> list[int]:
        return self.token_ids[:self.num_prompt_tokens]

    @property
    def completion_token_ids(self) -> list[int]:
        return self.token_ids[self.num_prompt_tokens:]

    @property
    def num_blocks(self) -> int:
        """Blocks that the sequence needs: its length over ``block_size``, rounded up."""
        return (self.num_tokens + self.block_size - 1) // self.block_size

    @property
    def last_block_num_tokens(self) -> int:
        """Tokens in the last block, from 1 to ``block_size``."""
        return self.num_tokens - (self.num_blocks - 1) * self.block_size

    def block(self, i: int) -> list[int]:
        """Tokens of logical block ``i``; the last one may be shorter than ``block_size``. Raises IndexError."""
        if not 0 <= i < self.num_blocks:
            raise IndexError(f"block {i} of a sequence that has blocks 0 to {self.num_blocks - 1}")
        return self.token_ids[i * self.block_size:(i + 1) * self.block_size]

    def append_token(self, token_id: int) -> None:
        """Add a sampled token at the end."""
        self.token_ids.append(_token_id(token_id))
        self.last_token = self.token_ids[-1]
        self.num_tokens += 1

    def truncate(self, num_tokens: int) -> list[int]:
        """Drop the tokens after the first ``num_tokens`` (what a failed step appended) and return them."""
        removed = self.token_ids[num_tokens:]
        del self.token_ids[num_tokens:]
        self.last_token = self.token_ids[-1]
        self.num_tokens = len(self.token_ids)
        return removed

    def __getstate__(self) -> tuple:
        """What a tensor-parallel worker needs: counts, the block table, and all tokens in prefill, else the last one.

        ``block_size`` and the sampling parameters stay behind: a worker learns the one once, at its start, and
        sampling happens on rank 0 only.
        """
        last_state = self.token_ids if self.is_prefill else self.last_token
        return (self.num_tokens, self.num_prompt_tokens, self.num_cached_tokens, self.num_scheduled_tokens,
                self.block_table, last_state)

    def __setstate__(self, state: tuple) -> None:
        """Restore what ``__getstate__`` sent. The worker sets ``block_size`` itself, before it asks for blocks."""
        (self.num_tokens, self.num_prompt_tokens, self.num_cached_tokens, self.num_scheduled_tokens,
         self.block_table, last_state) = state
        self.is_prefill = isinstance(last_state, list)
        self.token_ids = last_state if self.is_prefill else []
        self.last_token = self.token_ids[-1] if self.is_prefill else last_state


def _token_id(token: Any) -> int:
    """A plain int from any whole number (numpy's and torch's scalars included). Raises RequestError."""
    if type(token) is int and token >= 0:
        return token
    try:
        value = None if isinstance(token, bool) else operator.index(token)
    except TypeError:
        value = None
    if value is None or value < 0:
        raise RequestError(f"token {token!r}: token ids are whole numbers of at least 0; "
                           "a text must go through the tokenizer first")
    return value
