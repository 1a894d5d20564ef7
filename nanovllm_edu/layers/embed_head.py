"""The two ends of the model: token ids to vectors, and vectors to logits over the vocabulary.

In a tensor-parallel group each rank holds a stretch of the vocabulary, as in nano-vllm's `layers/embed_head.py`.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .linear import Linear
from .parallel import ALONE, Ranks, Reader


class Head(Linear):
    """Logits over the vocabulary, of which each rank holds a stretch of rows. Rank 0 gets them all, the others None.

    All stretches are ceil(vocab_size / ranks) rows, so that they can be gathered; what is missing from the last is
    filled with zeros, and its logits are cut off again.
    """

    def __init__(self, in_features: int, parts: Mapping[str, int], vocab_size: int, ranks: Ranks = ALONE) -> None:
        super().__init__(in_features, parts)
        self.vocab_size, self.ranks = vocab_size, ranks

    def load(self, read: Reader, pack: bool) -> None:
        if self.ranks.size == 1:
            return super().load(read, pack)
        super().load(lambda name: vocabulary_share(read, name, self.vocab_size, self.ranks), pack)

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Tensor | None:
        """(rows, hidden) → (rows, vocab_size)."""
        logits = super().forward(x, residual)
        if self.ranks.size == 1:
            return logits
        logits = self.ranks.gather(logits)
        return None if logits is None else logits[..., :self.vocab_size]


class Embedding(nn.Module):
    """Rows of a (vocab_size, hidden) table, of which each rank holds a stretch (see `Head`).

    head: a layer that makes logits of the same table (tied weights), None if there is none.
    """

    def __init__(self, name: str, vocab_size: int, hidden_size: int, head: Head | None = None,
                 ranks: Ranks = ALONE) -> None:
        super().__init__()
        self.name, self.shape, self.ranks = name, (vocab_size, hidden_size), ranks
        self.weight: Tensor | None = None
        self._tied = (head,)  # a tuple, so that torch does not list the head as a part of the embedding

    def expected(self) -> dict[str, tuple[int, ...]]:
        return {f"{self.name}.weight": self.shape}

    def load(self, read: Reader, pack: bool) -> None:
        name = f"{self.name}.weight"
        self.weight = read(name) if self.ranks.size == 1 else vocabulary_share(read, name, self.shape[0], self.ranks)
        if self._tied[0] is not None:
            self._tied[0].set_weight(self.weight, pack)

    def forward(self, input_ids: Tensor) -> Tensor:
        """(tokens,) int64 → (tokens, hidden), the same on every rank."""
        if self.ranks.size == 1:
            return F.embedding(input_ids, self.weight)
        rows = self.weight.shape[0]
        local = input_ids - self.ranks.rank * rows
        elsewhere = (local < 0) | (local >= rows)
        vectors = F.embedding(local.masked_fill(elsewhere, 0), self.weight)
        return self.ranks.all_reduce(vectors.masked_fill(elsewhere.unsqueeze(-1), 0))


def vocabulary_share(read: Reader, name: str, vocab_size: int, ranks: Ranks) -> Tensor:
    """This rank's rows of a table over the vocabulary, filled with zeros to ceil(vocab_size / ranks) of them."""
    rows = -(-vocab_size // ranks.size)
    start = min(ranks.rank * rows, vocab_size)
    share = read(name, slice(start, min(start + rows, vocab_size)))
    missing = rows - share.shape[0]
    return share if missing == 0 else torch.cat((share, share.new_zeros(missing, share.shape[1])))
