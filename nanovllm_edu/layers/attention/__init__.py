"""Paged attention behind a small interface; each backend owns the layout of its KV cache."""

from __future__ import annotations

from .choose import Choice, backend_class, choose, look
from .interface import AttentionBackend, AttentionBatch, KVCacheSpec
from .torch_backend import TorchBackend

__all__ = ["AttentionBackend", "AttentionBatch", "Choice", "KVCacheSpec", "TorchBackend", "backend_class", "choose",
           "look"]
