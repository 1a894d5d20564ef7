"""nanovllm_edu: a small, complete LLM inference engine whose KV-cache ledger you can watch, question and rewrite.

The engine half (`LLM`, `SamplingParams`, `nanovllm_edu.engine`) runs a real model and knows nothing of the lab.
The lab half (`record`, `Trace`, `watch`, `replay`, `exercise`) observes it and never pokes.

Names are loaded when they are first used, so that importing the package costs nothing and brings in no torch:
the ledger, traces and their pictures work without it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from nanovllm_edu.errors import ConfigError, LedgerError, NanoVLLMError, RequestError
    from nanovllm_edu.llm import LLM
    from nanovllm_edu.sampling_params import SamplingParams
    from nanovllm_edu.trace import Trace, record
    from nanovllm_edu.widgets import replay, watch

_HOME = {
    "LLM": "nanovllm_edu.llm",
    "SamplingParams": "nanovllm_edu.sampling_params",
    "ConfigError": "nanovllm_edu.errors",
    "LedgerError": "nanovllm_edu.errors",
    "NanoVLLMError": "nanovllm_edu.errors",
    "RequestError": "nanovllm_edu.errors",
    "Trace": "nanovllm_edu.trace",
    "record": "nanovllm_edu.trace",
    "replay": "nanovllm_edu.widgets",
    "watch": "nanovllm_edu.widgets",
}

__all__ = [
    "LLM",
    "ConfigError",
    "LedgerError",
    "NanoVLLMError",
    "RequestError",
    "SamplingParams",
    "Trace",
    "__version__",
    "record",
    "replay",
    "watch",
]


def __getattr__(name: str) -> Any:
    """Import the module that a public name lives in (PEP 562) and keep the object for the next look-up."""
    if name not in _HOME:
        raise AttributeError(f"module 'nanovllm_edu' has no attribute {name!r}; public names: {', '.join(__all__)}")
    value = getattr(importlib.import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
