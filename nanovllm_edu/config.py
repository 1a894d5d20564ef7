"""The engine's options: their names, their defaults and what they may be."""

from __future__ import annotations

import difflib
import math
import numbers
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from .errors import ConfigError

DTYPES = ("float32", "bfloat16", "float16")


@dataclass
class EngineConfig:
    """All options of `LLM(model, **options)`, validated. Raises ConfigError.

    The defaults are those of nano-vllm's `config.py`, except that the pool is sized for the machine it runs on. The
    engine fills in `eos_token_ids`, and narrows `max_model_len` and `num_kvcache_blocks`, once it knows the model.
    """

    model: str | os.PathLike[str] | None = None
    device: str = "auto"
    dtype: str = "auto"
    attention_backend: str = "auto"
    scheduling_policy: str = "prefill_first"
    prefix_cache_duplicates: str = "last"
    pack_weights: bool | str = "auto"
    kvcache_block_size: int = 256
    num_kvcache_blocks: int | None = None
    max_num_seqs: int = 512
    max_num_batched_tokens: int = 16384
    max_model_len: int = 4096
    gpu_memory_utilization: float = 0.9
    tensor_parallel_size: int = 1
    enforce_eager: bool = False
    enable_prefix_caching: bool = True
    seed: int | None = None
    block_manager_class: type | None = None
    observer: Any = None
    eos_token_ids: frozenset[int] = field(default=frozenset(), metadata={"option": False})
    asked_for: frozenset[str] = field(default=frozenset(), metadata={"option": False})

    @classmethod
    def from_options(cls, model: str | os.PathLike[str] | None, options: Mapping[str, Any]) -> EngineConfig:
        """Build the configuration from the keyword arguments of `LLM`; unknown names raise ConfigError."""
        known = cls.option_names()
        for name in options:
            if name not in known:
                close = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
                hint = f"did you mean {close[0]}={options[name]!r}?" if close else f"options are: {', '.join(known)}"
                raise ConfigError(f"unknown option {name!r}: {hint}")
        return cls(model=model, **options, asked_for=frozenset(options))

    @classmethod
    def option_names(cls) -> list[str]:
        """Names that `LLM` accepts as keyword arguments."""
        return [f.name for f in fields(cls) if f.name != "model" and f.metadata.get("option", True)]

    def __post_init__(self) -> None:
        if self.model is not None and not isinstance(self.model, (str, os.PathLike)):
            raise ConfigError(f"model={self.model!r}: must be None (the small packaged model), a folder or a hub id")
        self._check_device_and_numbers()
        self._check_choices()
        self._check_sizes()
        self._check_objects()

    def _check_device_and_numbers(self) -> None:
        self.device = str(self.device)  # a torch.device prints as its own name
        kind, _, index = self.device.partition(":")
        if kind not in ("auto", "cpu", "cuda", "mps") or (index and not index.isdigit()):
            raise ConfigError(f"device={self.device!r}: must be 'auto', 'cpu', 'cuda', 'cuda:0' (a number) or 'mps'")
        self.dtype = {"float": "float32", "half": "float16"}.get(
            name := str(self.dtype).removeprefix("torch."), name)
        _one_of("dtype", self.dtype, ("auto", *DTYPES))

    def _check_choices(self) -> None:
        _one_of("attention_backend", self.attention_backend, ("auto", "torch", "triton", "flash"))
        _one_of("scheduling_policy", self.scheduling_policy, ("prefill_first", "mixed"))
        _one_of("prefix_cache_duplicates", self.prefix_cache_duplicates, ("last", "all"))
        _one_of("pack_weights", self.pack_weights, ("auto", True, False))
        _boolean("enforce_eager", self.enforce_eager)
        _boolean("enable_prefix_caching", self.enable_prefix_caching)

    def _check_sizes(self) -> None:
        self.kvcache_block_size = _integer(
            "kvcache_block_size", self.kvcache_block_size, 2,
            "with blocks of one token, 'length % block_size == 1' could never tell that a new block begins")
        if self.num_kvcache_blocks is not None:
            self.num_kvcache_blocks = _integer(
                "num_kvcache_blocks", self.num_kvcache_blocks, 1, "None sizes the pool from the machine's memory")
        self.max_num_seqs = _integer("max_num_seqs", self.max_num_seqs, 1, "it bounds the requests that run at once")
        self.max_num_batched_tokens = _integer(
            "max_num_batched_tokens", self.max_num_batched_tokens, 1, "it bounds the prompt tokens of one step")
        self.max_model_len = _integer(
            "max_model_len", self.max_model_len, 2, "a request needs room for one prompt token and one new one")
        share = self.gpu_memory_utilization
        if not isinstance(share, numbers.Real) or isinstance(share, bool) or not 0 < share <= 1 or math.isnan(share):
            raise ConfigError(f"gpu_memory_utilization={share!r}: must be a share above 0 and at most 1, such as 0.9")
        self.tensor_parallel_size = _integer("tensor_parallel_size", self.tensor_parallel_size, 1, "1 is one process")
        if self.seed is not None:
            self.seed = _integer("seed", self.seed, 0, "None draws a new seed for each engine")

    def _check_objects(self) -> None:
        manager = self.block_manager_class
        if manager is not None and not isinstance(manager, type):
            raise ConfigError(f"block_manager_class={manager!r}: must be a class (not an object), such as BlockManager")
        for observer in self.observers:
            if not callable(getattr(observer, "on_event", None)):
                raise ConfigError(f"observer={observer!r}: must have a method on_event(event), or be a list of such")

    @property
    def observers(self) -> list[Any]:
        """The observers given at the start, as a list."""
        if self.observer is None:
            return []
        if isinstance(self.observer, Iterable) and not hasattr(self.observer, "on_event"):
            return list(self.observer)
        return [self.observer]


def _one_of(name: str, value: Any, choices: tuple[Any, ...]) -> None:
    # 1 == True, so the type is compared too
    if not any(type(value) is type(choice) and value == choice for choice in choices):
        raise ConfigError(f"{name}={value!r}: must be one of {', '.join(repr(choice) for choice in choices)}")


def _boolean(name: str, value: Any) -> None:
    if not isinstance(value, bool):
        raise ConfigError(f"{name}={value!r}: must be True or False")


def _integer(name: str, value: Any, low: int, why: str) -> int:
    if not isinstance(value, numbers.Integral) or isinstance(value, bool) or value < low:
        raise ConfigError(f"{name}={value!r}: must be a whole number of at least {low} ({why})")
    return int(value)
