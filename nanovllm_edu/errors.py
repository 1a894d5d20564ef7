"""The errors that nanovllm_edu raises on purpose.

Every message names the value, the rule that it breaks and the way out. All of them are `NanoVLLMError`s, and each is
also the built-in error that a Python programmer would expect in its place.
"""

from __future__ import annotations


class NanoVLLMError(Exception):
    """Root of all errors that this package raises on purpose."""


class ConfigError(NanoVLLMError, ValueError, TypeError):
    """An engine option that is unknown, impossible, or cannot work together with another one."""


class RequestError(NanoVLLMError, ValueError):
    """A request (its prompt or its sampling parameters) that the engine refuses at the door."""


class LedgerError(NanoVLLMError, RuntimeError):
    """The ledger of KV blocks breaks its own law (see `engine.check_invariants`)."""


class EngineClosedError(NanoVLLMError, RuntimeError):
    """The engine was closed, so it has no weights and no KV cache any more."""


class WorkerError(NanoVLLMError, RuntimeError):
    """A process of a tensor-parallel engine failed or is gone, and with it the engine: make a new one."""


class ModelLoadError(NanoVLLMError, RuntimeError):
    """A checkpoint that is missing, damaged, contradicts itself, or has an architecture that is not built."""
