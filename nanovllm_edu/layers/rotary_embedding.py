"""Rotary position embedding (Su et al., 2021), in the half-split layout of the Hugging Face checkpoints.

Pair (i, i + head_dim/2) of each head turns by `position * frequency[i]`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from .compiled import compiled

ROPE_TYPES = ("default", "linear", "llama3")


class RotaryEmbedding(nn.Module):
    """Cosine and sine tables for positions below max_position.

    The sine carries the sign of the rotation in its first half, so that `apply_rotary` needs no negation.
    """

    def __init__(self, head_dim: int, max_position: int, theta: float, scaling: Mapping[str, Any] | None,
                 dtype: torch.dtype, device: torch.device) -> None:
        super().__init__()
        angles = torch.outer(torch.arange(max_position, dtype=torch.float32), frequencies(head_dim, theta, scaling))
        cos, sin = angles.cos(), angles.sin()
        self.cos = torch.cat((cos, cos), -1).unsqueeze(1).to(device, dtype)  # (max_position, 1, head_dim)
        self.sin = torch.cat((-sin, sin), -1).unsqueeze(1).to(device, dtype)

    def forward(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """cos and sin of shape (tokens, 1, head_dim) for positions of shape (tokens,). Once a step, for all layers."""
        return self.cos.index_select(0, positions), self.sin.index_select(0, positions)


@compiled
def apply_rotary(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate x of shape (tokens, heads, head_dim)."""
    return torch.addcmul(x * cos, x.roll(x.shape[-1] // 2, -1), sin)


def frequencies(head_dim: int, theta: float, scaling: Mapping[str, Any] | None) -> Tensor:
    """Radians per position of each pair, shape (head_dim // 2,), fp32.

    'linear' divides all by a factor; 'llama3' divides the slow ones only, and blends in between (Llama 3.1's
    `rope_scaling`: wavelengths above original length / low_freq_factor are slow).
    """
    plain = 1.0 / theta ** (torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim)
    kind = (scaling or {}).get("rope_type", "default")
    if kind == "default" or scaling is None:
        return plain
    if kind == "linear":
        return plain / scaling["factor"]
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    turns = scaling["original_max_position_embeddings"] * plain / (2 * math.pi)  # full turns over the original length
    keep = ((turns - low) / (high - low)).clamp(0, 1)  # 1 keeps a fast pair as it is, 0 slows it down
    return keep * plain + (1 - keep) * plain / scaling["factor"]
