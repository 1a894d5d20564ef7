"""Linear layers, with several of the checkpoint's projections packed into one matrix product.

One product with a tall matrix is faster than three with short ones, so q, k and v live in one layer, and so do gate
and up (as in nano-vllm's `layers/linear.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Reader = Callable[[str], Tensor]


class Linear(nn.Module):
    """y = x @ W.T + b over the rows of all `parts`.

    parts: checkpoint prefix → number of output rows, in order; `{"model.layers.0.self_attn.q_proj": 576, ...}`.
    Input (..., in_features), output (..., sum of rows), both in the dtype the weights were loaded in.
    """

    def __init__(self, in_features: int, parts: Mapping[str, int], bias: bool = False) -> None:
        super().__init__()
        self.in_features, self.parts, self.has_bias = in_features, dict(parts), bias
        self.weight: Tensor | None = None
        self.bias: Tensor | None = None
        self.packed: Tensor | None = None

    def expected(self) -> dict[str, tuple[int, ...]]:
        """Names and shapes of the checkpoint's tensors that `load` reads."""
        shapes: dict[str, tuple[int, ...]] = {}
        for prefix, rows in self.parts.items():
            shapes[f"{prefix}.weight"] = (rows, self.in_features)
            if self.has_bias:
                shapes[f"{prefix}.bias"] = (rows,)
        return shapes

    def load(self, read: Reader, pack: bool) -> None:
        """Take the weights; `read(name)` gives them in the dtype and on the device of the run.

        pack: let oneDNN reorder the matrix once into the layout its kernels like (CPU only). The packed copy then
        replaces the plain one.
        """
        weights = [read(f"{prefix}.weight") for prefix in self.parts]
        self.set_weight(weights[0] if len(weights) == 1 else torch.cat(weights), pack)
        if self.has_bias:
            self.bias = torch.cat([read(f"{prefix}.bias") for prefix in self.parts])

    def set_weight(self, weight: Tensor, pack: bool) -> None:
        """Use this matrix of shape (rows, in_features)."""
        if pack:
            self.packed, self.weight = torch.ops.mkldnn._reorder_linear_weight(weight), None
        else:
            self.weight, self.packed = weight, None

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        """x @ W.T + b, plus `residual` (of the output's shape) when given."""
        if self.packed is not None:
            if residual is None:
                return torch.ops.mkldnn._linear_pointwise(x, self.packed, self.bias, "none", [], "")
            return torch.ops.mkldnn._linear_pointwise.binary(x, residual, self.packed, self.bias, "add")
        y = F.linear(x, self.weight, self.bias)
        return y if residual is None else residual + y
