"""Where a model runs, in which number format, and how much memory its KV cache may take."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import psutil
import torch

from ..config import EngineConfig
from ..errors import ConfigError
from ..layers.attention import KVCacheSpec

CPU_POOL_BYTES = 256 << 20


def resolve_device(name: str) -> torch.device:
    """The torch device for the option `device`. Raises ConfigError when the machine has no such device."""
    if name == "auto":
        return torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
    device = torch.device(name)
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ConfigError(f"device={name!r}: torch sees {torch.cuda.device_count()} CUDA devices; use device='cpu'")
    if device.type == "cuda":
        return torch.device("cuda", device.index or 0)
    if device.type == "mps" and not torch.backends.mps.is_available():
        raise ConfigError("device='mps': this machine has no Apple GPU that torch can use; use device='cpu'")
    return device


def resolve_dtype(name: str, device: torch.device) -> torch.dtype:
    """The torch dtype for the option `dtype`. 'auto' is bfloat16 where the device computes in it."""
    if device.type == "cuda":
        return cuda_dtype(name, torch.cuda.get_device_capability(device))
    if name != "auto":
        return getattr(torch, name)
    if device.type == "cpu" and cpu_has_bf16():
        return torch.bfloat16
    return torch.float32


def cuda_dtype(name: str, capability: tuple[int, int]) -> torch.dtype:
    """The dtype for a GPU of a compute capability. bfloat16 arithmetic came with Ampere (8.0): a T4 or V100 lacks it.

    Raises ConfigError when bfloat16 is asked of an older one.
    """
    has_bf16 = capability >= (8, 0)
    if name == "auto":
        return torch.bfloat16 if has_bf16 else torch.float16
    if name == "bfloat16" and not has_bf16:
        raise ConfigError(f"dtype='bfloat16': this GPU, of compute capability {capability[0]}.{capability[1]}, does "
                          "not compute in it (8.0 and newer do); use dtype='float16' or 'auto'")
    return getattr(torch, name)


def on_device(device: torch.device) -> AbstractContextManager[Any]:
    """Make a CUDA device the current one, for code that launches kernels by itself: torch keeps one per thread."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def cpu_has_bf16() -> bool:
    """True when the CPU multiplies in bfloat16 (AVX512-BF16 or AMX); emulated, it would be slower than fp32."""
    checks = (getattr(torch.cpu, name, None) for name in ("_is_avx512_bf16_supported", "_is_amx_tile_supported"))
    return torch.backends.mkldnn.is_available() and any(check() for check in checks if check is not None)


def should_pack(option: bool | str, dtype: torch.dtype, device: torch.device) -> bool:
    """Whether oneDNN reorders the weights. 'auto': on a CPU in bf16, where it halves a step."""
    possible = device.type == "cpu" and torch.backends.mkldnn.is_available()
    if option is True and not possible:
        raise ConfigError(f"pack_weights=True needs a CPU with oneDNN, and the device is {device}; use 'auto'")
    return possible and (option is True or (option == "auto" and dtype == torch.bfloat16))


def num_blocks_for(config: EngineConfig, spec: KVCacheSpec, activation_bytes: int) -> int:
    """How many KV blocks the pool gets: what was asked for, else what fits. Raises ConfigError, with the arithmetic."""
    if config.num_kvcache_blocks is not None:
        return config.num_kvcache_blocks
    if spec.device.type == "cuda":
        free, total = torch.cuda.mem_get_info(spec.device)
        budget, told = cuda_budget(total, free, config.gpu_memory_utilization, activation_bytes)
    else:
        usable = usable_memory()
        budget = min(CPU_POOL_BYTES, usable // 8) // config.tensor_parallel_size  # ranks share the machine
        told = f"the smaller of {_mib(CPU_POOL_BYTES)} and an eighth of {_mib(usable)}"
    if budget < spec.bytes_per_block:
        raise ConfigError(f"no room for one KV block of {_mib(spec.bytes_per_block)}: {_mib(max(budget, 0))} left "
                          f"({told}). Lower kvcache_block_size, or set num_kvcache_blocks yourself")
    return budget // spec.bytes_per_block


def cuda_budget(total: int, free: int, utilization: float, activation_bytes: int) -> tuple[int, str]:
    """Bytes for the KV cache on a GPU, and the arithmetic in words. Negative when others use more than is left.

    The share of the whole GPU that this engine may take, less everything in use (weights, the CUDA context, other
    processes), less what the largest step needs beside them.
    """
    used = total - free
    told = (f"{utilization:.0%} of {_mib(total)} less {_mib(used)} in use and {_mib(activation_bytes)} for "
            "activations; raise gpu_memory_utilization, free memory, or lower max_num_batched_tokens or max_num_seqs")
    return int(total * utilization) - used - activation_bytes, told


def usable_memory() -> int:
    """Bytes that this process may use: the machine's memory, or less where a container's limit says so."""
    return min([psutil.virtual_memory().total, *_cgroup_limits(Path("/proc/self/cgroup"), Path("/sys/fs/cgroup"))])


def _cgroup_limits(membership: Path, root: Path) -> list[int]:
    """Limits of the process's own control group and of all above it (versions 1 and 2)."""
    limits = []
    try:
        lines = membership.read_text().splitlines()
    except OSError:
        return []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers not in ("", "memory"):
            continue
        base, name = (root / "memory", "memory.limit_in_bytes") if controllers else (root, "memory.max")
        group = base / path.lstrip("/")
        for place in (group, *group.parents):
            try:
                limits.append(int((place / name).read_text()))
            except (OSError, ValueError):  # no such file here, or "max"
                pass
            if place == base:
                break
    return limits


def _mib(count: int) -> str:
    return f"{count / (1 << 20):,.1f} MiB" if count < 10 << 20 else f"{count / (1 << 20):,.0f} MiB"
