"""What an attention backend is given and what it promises."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor


@dataclass(frozen=True)
class KVCacheSpec:
    """The size of a paged KV cache: what one block holds, and how many there are."""

    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    block_size: int
    dtype: torch.dtype
    device: torch.device

    @property
    def bytes_per_block(self) -> int:
        """Bytes of one block: keys and values of block_size tokens in all layers."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim * self.block_size * self.dtype.itemsize


@dataclass
class AttentionBatch:
    """One step's requests, flattened: the tokens of request i are rows cu_seqlens_q[i] to cu_seqlens_q[i + 1].

    A row of a decode is a request with one token, so chunks of prompts and decodes may stand in one batch.

    cu_seqlens_q: running sum of the numbers of tokens to compute, one entry more than requests.
    context_lens: tokens of each request whose keys must be read, the new ones included (flash-attn's k-lengths).
    slot_mapping: (tokens,) int64, where each new token's key and value go: block id * block_size + offset.
    block_tables: logical to physical block ids of each request; at least ceil(context_len / block_size) long.
    """

    cu_seqlens_q: list[int]
    context_lens: list[int]
    slot_mapping: Tensor
    block_tables: list[list[int]]

    @property
    def query_lens(self) -> list[int]:
        """Tokens to compute, per request."""
        return [end - start for start, end in zip(self.cu_seqlens_q, self.cu_seqlens_q[1:], strict=False)]


class AttentionBackend(ABC):
    """Owns the KV tensors and their layout. Nobody else reads or writes them.

    A step calls `plan` once and then, for each layer in order, `attend`: which stores the new keys and values at their
    slots first and attends afterwards, so that a token sees itself. A plan is good for that one step.
    """

    name: ClassVar[str]
    supports_graphs: ClassVar[bool] = False  # True: has plan_decode, and its decode may be recorded in a CUDA graph

    def __init__(self, spec: KVCacheSpec, num_blocks: int) -> None:
        self.spec, self.num_blocks = spec, num_blocks

    @abstractmethod
    def plan(self, batch: AttentionBatch) -> Any:
        """What all layers of the step share (masks, gathers), worked out once."""

    def plan_decode(self, slot_mapping: Tensor, context_lens: Tensor, block_tables: Tensor) -> Any:
        """The plan of a batch with one new token a request, from tensors on the device and nothing of the host.

        slot_mapping (batch,) int64, context_lens (batch,) int32, block_tables (batch, width) int32. A padded row has
        slot -1 and context length 0: nothing is stored or read for it, and what comes out of it is anybody's guess.
        Called while a CUDA graph is recorded, so it works on these very tensors and does not look at their values.
        """
        raise NotImplementedError(f"the {self.name} backend plans on the host; supports_graphs says so")

    @abstractmethod
    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, plan: Any) -> Tensor:
        """q (tokens, num_heads, head_dim), k and v (tokens, num_kv_heads, head_dim) → (tokens, num_heads * head_dim).

        Query head h reads key head h // (num_heads // num_kv_heads). Scores are scaled by head_dim ** -0.5. A token
        at position p sees the positions 0 to p of its own request.
        """
