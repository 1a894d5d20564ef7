"""Where a model runs, in which number format, and how much memory its KV cache may take."""

from __future__ import annotations

from pathlib import Path

import psutil
import torch

from ..config import EngineConfig
from ..errors import ConfigError
from ..layers.attention import KVCacheSpec

CPU_POOL_BYTES = 256 << 20


def resolve_device(name: str) -> torch.device:
    """The torch device for the option `device`. Raises ConfigError when the machine has no such device."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    device = torch.device(name)
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ConfigError(f"device={name!r}: torch sees {torch.cuda.device_count()} CUDA devices; use device='cpu'")
    if device.type == "mps" and not torch.backends.mps.is_available():
        raise ConfigError("device='mps': this machine has no Apple GPU that torch can use; use device='cpu'")
    return device


def resolve_dtype(name: str, device: torch.device) -> torch.dtype:
    """The torch dtype for the option `dtype`. 'auto' is bfloat16 where the device computes in it."""
    if name != "auto":
        return getattr(torch, name)
    if device.type == "cuda":  # bf16 arithmetic came with Ampere
        return torch.bfloat16 if torch.cuda.get_device_capability(device) >= (8, 0) else torch.float16
    if device.type == "cpu" and cpu_has_bf16():
        return torch.bfloat16
    return torch.float32


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
        budget = int(total * config.gpu_memory_utilization) - (total - free) - activation_bytes
        told = (f"{config.gpu_memory_utilization:.0%} of {_mib(total)} less {_mib(total - free)} in use and "
                f"{_mib(activation_bytes)} for activations; raise gpu_memory_utilization or free memory")
    else:
        usable = usable_memory()
        budget = min(CPU_POOL_BYTES, usable // 8)
        told = f"the smaller of {_mib(CPU_POOL_BYTES)} and an eighth of {_mib(usable)}"
    if budget < spec.bytes_per_block:
        raise ConfigError(f"no room for one KV block of {_mib(spec.bytes_per_block)}: {_mib(max(budget, 0))} left "
                          f"({told}). Lower kvcache_block_size, or set num_kvcache_blocks yourself")
    return budget // spec.bytes_per_block


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
