"""Root-mean-square norm (Zhang and Sennrich, 2019)."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from .compiled import compiled
from .linear import Reader


@compiled
def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x / sqrt(mean(x²) + eps) * weight over the last dimension."""
    return F.rms_norm(x, weight.shape, weight, eps)


class RMSNorm(nn.Module):
    """y = x / sqrt(mean(x²) + eps) * weight over the last dimension, of any leading shape.

    Out of place on purpose: `x` is often the residual stream, which is read again later.
    """

    def __init__(self, name: str, size: int, eps: float) -> None:
        super().__init__()
        self.name, self.size, self.eps = name, size, eps
        self.weight: Tensor | None = None

    def expected(self) -> dict[str, tuple[int, ...]]:
        return {f"{self.name}.weight": (self.size,)}

    def load(self, read: Reader, pack: bool) -> None:
        self.weight = read(f"{self.name}.weight")

    def forward(self, x: Tensor) -> Tensor:
        return rms_norm(x, self.weight, self.eps)
