"""Which attention backend a run gets, and why.

flash-attn and Triton are optional: they are looked for only here, and a build of them that cannot be loaded counts as
missing, with the loader's own words as the reason.
"""

from __future__ import annotations

import importlib
import os
from dataclasses import dataclass, field

import torch

from ...errors import ConfigError
from .interface import AttentionBackend, KVCacheSpec

FLASH_PAGE = 256  # what flash-attn 2 asks of a paged cache
BACKENDS = {"torch": ("torch_backend", "TorchBackend"), "triton": ("triton_backend", "TritonBackend"),
            "flash": ("flash_backend", "FlashBackend")}
NEEDS = {"triton": ("triton",), "flash": ("flash_attn",)}
FASTEST_FIRST = ("flash", "triton")  # on CUDA; the torch backend comes after them


@dataclass(frozen=True)
class Machine:
    """What the choice depends on, beside the cache's sizes. Made by `look`, or by hand in tests.

    capability: the CUDA device's compute capability, None elsewhere. missing: package → why it cannot be used.
    """

    capability: tuple[int, int] | None = None
    missing: dict[str, str] = field(default_factory=dict)
    triton_interpreted: bool = False


@dataclass(frozen=True)
class Choice:
    """A backend's name, and one line that says why it was taken."""

    name: str
    reason: str
    passed_over: tuple[str, ...] = ()  # faster ones that cannot be used here


def choose(asked: str, spec: KVCacheSpec, machine: Machine) -> Choice:
    """The backend for the option `attention_backend`. Raises ConfigError when the one asked for cannot work."""
    if asked != "auto":
        if obstacle := find_obstacle(asked, spec, machine):
            others = [repr(name) for name in BACKENDS if name != asked and not find_obstacle(name, spec, machine)]
            raise ConfigError(f"attention_backend={asked!r}: {obstacle}. "
                              f"What works here: {' or '.join(others)}, or 'auto'")
        return Choice(asked, "asked for")
    if machine.capability is None:
        return Choice("torch", f"the one that runs on {spec.device.type}")
    passed: dict[str, str] = {}
    for name in FASTEST_FIRST:
        if not (obstacle := find_obstacle(name, spec, machine)):
            return Choice(name, "; ".join(["the fastest that works here", *passed.values()]), tuple(passed))
        passed[name] = f"not {name}: {obstacle}"
    return Choice("torch", "; ".join(["it runs everywhere", *passed.values()]), tuple(passed))


def find_obstacle(name: str, spec: KVCacheSpec, machine: Machine) -> str | None:
    """Why a backend cannot run, in words; None when it can."""
    for package in NEEDS.get(name, ()):
        if package in machine.missing:
            return f"the package {package} cannot be used ({machine.missing[package]})"
    if name == "triton":
        return _triton_obstacle(spec, machine)
    if name == "flash":
        return _flash_obstacle(spec, machine)
    return None


def _triton_obstacle(spec: KVCacheSpec, machine: Machine) -> str | None:
    if machine.capability is None:
        if spec.device.type == "cpu" and machine.triton_interpreted:
            return None
        return (f"Triton's kernels run on CUDA devices, and this one is {spec.device.type} (on a CPU only in Triton's "
                "slow interpreter: set the environment variable TRITON_INTERPRET=1 before Python starts)")
    if machine.capability < (7, 0):
        return f"Triton needs compute capability 7.0, and this GPU has {_dotted(machine.capability)}"
    if spec.dtype == torch.bfloat16 and machine.capability < (8, 0):
        return f"bfloat16 needs compute capability 8.0, and this GPU has {_dotted(machine.capability)}; use float16"
    return None


def _flash_obstacle(spec: KVCacheSpec, machine: Machine) -> str | None:
    if machine.capability is None:
        return f"flash-attn runs on CUDA devices, and this one is {spec.device.type}"
    if machine.capability < (8, 0):
        return (f"flash-attn 2 needs an Ampere GPU or a newer one (compute capability 8.0), and this one has "
                f"{_dotted(machine.capability)}")
    if spec.dtype not in (torch.float16, torch.bfloat16):
        return f"flash-attn computes in float16 and bfloat16, not in {str(spec.dtype).removeprefix('torch.')}"
    if spec.head_dim > 256 or spec.head_dim % 8:
        return f"flash-attn takes a head_dim of at most 256 that 8 divides, and the model's is {spec.head_dim}"
    if spec.block_size % FLASH_PAGE:
        return (f"flash-attn needs blocks of a multiple of {FLASH_PAGE} tokens, and kvcache_block_size is "
                f"{spec.block_size}")
    return None


def look(device: torch.device) -> Machine:
    """What this machine offers on a device. Imports the optional packages only where they could be used."""
    if device.type == "cuda":
        missing = {package: reason for package in ("triton", "flash_attn") if (reason := why_missing(package))}
        return Machine(torch.cuda.get_device_capability(device), missing)
    if device.type != "cpu" or not os.environ.get("TRITON_INTERPRET"):
        return Machine()
    if reason := why_missing("triton"):
        return Machine(missing={"triton": reason})
    # the variable may have been set after Triton was imported, which is too late
    return Machine(triton_interpreted=importlib.import_module(".triton_kernels", __package__).INTERPRETED)


def why_missing(package: str) -> str | None:
    """None if a package can be imported, else the reason in a line.

    A build for another torch or CUDA fails with ImportError or OSError ("undefined symbol"), half-installed ones with
    nearly anything.
    """
    try:
        importlib.import_module(package)
    except ModuleNotFoundError as error:
        if error.name == package:
            return f"not installed; pip install {package.replace('_', '-')}"
        return f"it needs {error.name}, which is not installed"
    except Exception as error:  # noqa: BLE001
        lines = str(error).splitlines() or [type(error).__name__]
        return f"its build is broken: {lines[0]}"
    return None


def backend_class(name: str) -> type[AttentionBackend]:
    """The class of a backend; its module, and what that needs, is imported now."""
    module, cls = BACKENDS[name]
    return getattr(importlib.import_module(f".{module}", __package__), cls)


def _dotted(capability: tuple[int, int]) -> str:
    return ".".join(map(str, capability))
