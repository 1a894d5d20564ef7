"""The gated activation of the MLP (SwiGLU, Shazeer 2020)."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from .compiled import compiled


@compiled
def silu_and_mul(gate_up: Tensor) -> Tensor:
    """silu(gate) * up; gate_up is (tokens, 2 * intermediate) with the gate in the first half."""
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate).mul_(up)
