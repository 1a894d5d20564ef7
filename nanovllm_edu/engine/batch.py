"""Scheduled sequences, flattened into the tensors of one step.

The only place where the ledger's block tables become slots. It reads sequences and never changes them.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass

import torch
from torch import Tensor

from ..layers.attention import AttentionBatch
from ..layers.attention.host import upload
from .sequence import Sequence


@dataclass
class Batch:
    """One step's input. input_ids, positions: (tokens,) int64. last_rows: (samplers,) rows whose logits are needed."""

    input_ids: Tensor
    positions: Tensor
    attention: AttentionBatch
    last_rows: Tensor


def prepare(seqs: Seq[Sequence], block_size: int, device: torch.device) -> Batch:
    """Flatten the scheduled tokens of all sequences into one batch.

    A sequence computes its tokens num_cached_tokens to num_cached_tokens + num_scheduled_tokens. Chunks of prompts and
    decodes may be mixed. Only a sequence whose tokens are all computed after this step gets a row in last_rows.
    """
    input_ids: list[int] = []
    positions: list[int] = []
    slots: list[int] = []
    cu_seqlens_q, context_lens, last_rows = [0], [], []
    for seq in seqs:
        start = seq.num_cached_tokens
        end = start + seq.num_scheduled_tokens
        input_ids += seq.token_ids[start:end] if seq.is_prefill else [seq.last_token]
        positions += range(start, end)
        slots += slot_mapping(seq.block_table, block_size, start, end)
        cu_seqlens_q.append(len(input_ids))
        context_lens.append(end)
        if end == seq.num_tokens:
            last_rows.append(len(input_ids) - 1)

    def tensor(values: list[int]) -> Tensor:
        return upload(values, torch.int64, device)

    attention = AttentionBatch(cu_seqlens_q, context_lens, tensor(slots), [seq.block_table for seq in seqs])
    return Batch(tensor(input_ids), tensor(positions), attention, tensor(last_rows))


def slot_mapping(block_table: list[int], block_size: int, start: int, end: int) -> list[int]:
    """Physical slots of the tokens start to end: block_table[i // block_size] * block_size + i % block_size each."""
    slots: list[int] = []
    while start < end:  # a block at a time
        offset = start % block_size
        first = block_table[start // block_size] * block_size + offset
        count = min(block_size - offset, end - start)
        slots += range(first, first + count)
        start += count
    return slots


def samples(seq: Sequence) -> bool:
    """True when the scheduled tokens complete the sequence, so that its last row's logits give a new token."""
    return seq.num_cached_tokens + seq.num_scheduled_tokens == seq.num_tokens
