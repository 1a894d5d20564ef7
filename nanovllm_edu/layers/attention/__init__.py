"""Paged attention behind a small interface; each backend owns the layout of its KV cache."""

from __future__ import annotations

from .interface import AttentionBackend, AttentionBatch, KVCacheSpec
from .torch_backend import TorchBackend

BACKENDS: dict[str, type[AttentionBackend]] = {"torch": TorchBackend}

__all__ = ["BACKENDS", "AttentionBackend", "AttentionBatch", "KVCacheSpec", "TorchBackend"]
