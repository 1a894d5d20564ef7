"""Linear layers shared out over the processes of a tensor-parallel group (Megatron-LM, Shoeybi et al., 2019).

A column-parallel layer holds some rows of its matrix and so computes some of the outputs; a row-parallel one holds the
columns that belong to those and computes a summand of every output, so one all-reduce makes the pair whole:

    x ──► qkv (some heads) ──► attention (own heads, own KV cache) ──► o_proj (their columns) ──► all-reduce ──► y
    x ──► gate, up (some rows) ──► activation ──────────────────────► down_proj (their columns) ─► all-reduce ──► y

The two ends of the model are in `embed_head.py`; nano-vllm has these layers in its `layers/linear.py`. With one rank
they are the plain ones.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from torch import Tensor

from .linear import Linear

Reader = Callable[..., Tensor]
"""read(name, index=slice(None)): a tensor of the checkpoint, or the part `tensor[index]` of it."""


class Ranks:
    """The processes that compute one model together: this one is `rank` of `size`. As it stands, it is alone."""

    rank = 0
    size = 1

    def all_reduce(self, x: Tensor) -> Tensor:
        """The sum of all ranks' x, of any shape, on every rank. May be done in place."""
        return x

    def gather(self, x: Tensor) -> Tensor | None:
        """Rank 0 gets all ranks' x (rows, n) side by side, as (rows, size * n); the others get None."""
        return x

    def smallest(self, number: int) -> int:
        """The smallest of the ranks' numbers, on every rank."""
        return number

    def share(self, units: int) -> slice:
        """This rank's share of so many heads or rows. Where ranks are more than units, several have the same unit.

        One of the two numbers must divide the other; `check_split` in `engine/tensor_parallel.py` sees to it.
        """
        if units >= self.size:
            each = units // self.size
            return slice(self.rank * each, (self.rank + 1) * each)
        unit = self.rank // (self.size // units)
        return slice(unit, unit + 1)


ALONE = Ranks()


class ColumnParallelLinear(Linear):
    """A `Linear` of which each rank holds, of every part, the rows of its own heads (or of its own neurons).

    unit: rows that stay together, such as head_dim. Output (..., this rank's rows).
    """

    def __init__(self, in_features: int, parts: Mapping[str, int], bias: bool = False, unit: int = 1,
                 ranks: Ranks = ALONE) -> None:
        super().__init__(in_features, parts, bias)
        self.unit, self.ranks = unit, ranks

    def load(self, read: Reader, pack: bool) -> None:
        if self.ranks.size == 1:
            return super().load(read, pack)

        def read_share(name: str) -> Tensor:
            share = self.ranks.share(self.parts[name.rpartition(".")[0]] // self.unit)
            return read(name, slice(share.start * self.unit, share.stop * self.unit))

        super().load(read_share, pack)


class RowParallelLinear(Linear):
    """A `Linear` of which each rank holds the columns that belong to its part of the input; the results are summed.

    Input (..., this rank's columns), output (..., all rows), the same on every rank. Rank 0 alone adds the bias and the
    residual: added by each, they would be in the sum as often as there are ranks.
    """

    def __init__(self, in_features: int, parts: Mapping[str, int], bias: bool = False, ranks: Ranks = ALONE) -> None:
        super().__init__(in_features, parts, bias)
        self.ranks = ranks

    def load(self, read: Reader, pack: bool) -> None:
        if self.ranks.size == 1:
            return super().load(read, pack)
        share = self.ranks.share(self.in_features)

        def read_share(name: str) -> Tensor:
            return read(name) if name.endswith(".bias") else read(name, (slice(None), share))

        super().load(read_share, pack)
        if self.ranks.rank > 0:
            self.bias = None

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        if self.ranks.size == 1:
            return super().forward(x, residual)
        return self.ranks.all_reduce(super().forward(x, residual if self.ranks.rank == 0 else None))
