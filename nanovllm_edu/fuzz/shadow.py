"""A stand-in model that remembers, for every slot of the KV cache, which full prefix its content was computed from.

A real model computes the keys and values of a token from all tokens before it. So a slot's content is named by the
whole prefix that ends there, and a read is right exactly when the slot holds the name of the reader's own prefix.
Whatever the ledger does wrong (a block given to two, an entry that outlives its block, a chunk that reads ahead)
sooner or later makes somebody read a wrong name.
"""
from __future__ import annotations

from collections.abc import Sequence as Seq

from ..engine import Sequence


class ShadowError(Exception):
    """A request read keys and values that were not computed from its own prefix."""


class ShadowModel:
    """Writes and reads names of prefixes through block tables, as attention does with keys and values."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.block_size = block_size
        self.slots: list[int | None] = [None] * (num_blocks * block_size)
        self._names: dict[tuple, int] = {}

    def _name(self, parent: int, token: object) -> int:
        return self._names.setdefault((parent, token), len(self._names) + 1)

    def run(self, seqs: Seq[Sequence]) -> list[int]:
        """Compute a batch: write every scheduled token's slot, then read all slots up to each sequence's end.

        Returns the next token of each sequence, a function of its whole content. Raises ShadowError.
        """
        names = {}
        for seq in seqs:
            names[seq] = self._prefix_names(seq)
            end = seq.num_cached_tokens + seq.num_scheduled_tokens
            if seq.num_scheduled_tokens < 1:
                raise ShadowError(f"no token of request {seq.seq_id} goes through the model: no logits to sample from")
            if len(seq.block_table) * self.block_size < end:
                raise ShadowError(f"request {seq.seq_id} is to compute tokens up to {end} and has {seq.block_table}: "
                                  f"room for {len(seq.block_table) * self.block_size}")
            for position in range(seq.num_cached_tokens, end):
                self.slots[self._slot(seq, position)] = names[seq][position]
        for seq in seqs:
            for position in range(seq.num_cached_tokens + seq.num_scheduled_tokens):
                found, expected = self.slots[self._slot(seq, position)], names[seq][position]
                if found != expected:
                    what = "nothing was written there" if found is None else "it was computed from another prefix"
                    raise ShadowError(f"request {seq.seq_id} reads position {position} in block "
                                      f"{seq.block_table[position // self.block_size]}: {what}")
        return [next_token(seq) for seq in seqs]

    def _prefix_names(self, seq: Sequence) -> list[int]:
        names, parent = [], self._name(0, seq.cache_salt)  # tenants never read each other's blocks
        for token in seq.token_ids:
            parent = self._name(parent, token)
            names.append(parent)
        return names

    def _slot(self, seq: Sequence, position: int) -> int:
        return seq.block_table[position // self.block_size] * self.block_size + position % self.block_size


def next_token(seq: Sequence) -> int:
    """What the stand-in says next: it depends on the content alone, so the same prompt always goes on the same way."""
    return (sum(seq.token_ids[-3:]) * 7 + seq.token_ids[0] * 3 + seq.num_tokens) % 3
