"""From lists on the host to tensors on the device, without making the host wait.

A copy from ordinary memory makes the CPU wait for the GPU; one from pinned memory can be queued behind the GPU's work
(CUDA C++ Best Practices Guide, "Pinned Memory"). torch keeps the pinned source alive until the copy is done.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import Any

import torch
from torch import Tensor


def upload(values: Any, dtype: torch.dtype, device: torch.device) -> Tensor:
    """A tensor on `device` of (nested) lists of numbers; on CUDA through pinned memory, and without waiting."""
    if device.type == "cuda":
        return torch.tensor(values, dtype=dtype, pin_memory=True).to(device, non_blocking=True)
    return torch.tensor(values, dtype=dtype, device=device)


def pad_tables(block_tables: Seq[Seq[int]], width: int | None = None) -> list[list[int]]:
    """Block tables as rows of one width (the longest table's, if not given), filled up with block 0.

    A kernel reads a row up to ceil(context_len / block_size) entries and no further; the filling only has to be the id
    of a block that exists, for kernels that fetch an entry ahead. Raises ValueError for a table that is too long.
    """
    longest = max(map(len, block_tables))
    width = longest if width is None else width
    if longest > width:
        raise ValueError(f"a block table of {longest} entries does not fit into {width} columns; "
                         "make the rows at least as wide as the longest table")
    return [[*table, *[0] * (width - len(table))] for table in block_tables]
