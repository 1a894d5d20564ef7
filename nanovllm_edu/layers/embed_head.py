"""The two ends of the model: token ids to vectors, and vectors to logits over the vocabulary."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from .linear import Linear, Reader


class Embedding(nn.Module):
    """Rows of a (vocab_size, hidden) table. With `head`, the same table also makes the logits (tied weights)."""

    def __init__(self, name: str, vocab_size: int, hidden_size: int, head: Linear | None = None) -> None:
        super().__init__()
        self.name, self.shape = name, (vocab_size, hidden_size)
        self.weight: Tensor | None = None
        self._tied = (head,)  # a tuple, so that torch does not list the head as a part of the embedding

    def expected(self) -> dict[str, tuple[int, ...]]:
        return {f"{self.name}.weight": self.shape}

    def load(self, read: Reader, pack: bool) -> None:
        self.weight = read(f"{self.name}.weight")
        if self._tied[0] is not None:
            self._tied[0].set_weight(self.weight, pack)

    def forward(self, input_ids: Tensor) -> Tensor:
        """(tokens,) int64 → (tokens, hidden)."""
        return F.embedding(input_ids, self.weight)
