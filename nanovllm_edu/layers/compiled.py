"""Small layers fused into one kernel by torch.compile, on CUDA alone.

A norm or an activation is a handful of element-wise kernels; launched one by one they cost more than they compute. On a
CPU the plain functions are as fast, and compiling would take longer than a first answer. To switch it off:
TORCH_COMPILE_DISABLE=1, torch's own variable.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def compiled(function: Callable[..., Tensor], device_type: str = "cuda", **options: Any) -> Callable[..., Tensor]:
    """`function`, compiled for any number of tokens where its first argument lives on `device_type`.

    Where compiling fails (no C compiler, a broken Triton), the plain function is used from then on, and a
    RuntimeWarning says once that it is, and why.
    """
    fused: Callable[..., Tensor] | None = None
    broken = False

    @functools.wraps(function)
    def call(x: Tensor, *args: Any) -> Tensor:
        nonlocal fused, broken
        if x.device.type != device_type or broken:
            return function(x, *args)
        fused = fused or torch.compile(function, dynamic=True, **options)
        try:
            return fused(x, *args)
        except torch._dynamo.exc.TorchDynamoException as error:
            broken = True
            warnings.warn(f"{function.__name__} runs uncompiled and slower: {str(error).strip().splitlines()[0]}",
                          RuntimeWarning, stacklevel=2)
            return function(x, *args)

    return call
