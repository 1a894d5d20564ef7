"""Model families, chosen by the `architectures` entry of a checkpoint's config.json."""

from __future__ import annotations

from ..errors import ModelLoadError
from .config import ModelConfig
from .llama import LlamaForCausalLM
from .qwen2 import Qwen2ForCausalLM
from .qwen3 import Qwen3ForCausalLM

REGISTRY: dict[str, type[LlamaForCausalLM]] = {
    cls.__name__: cls for cls in (LlamaForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM)}

__all__ = ["REGISTRY", "ModelConfig", "model_class"]


def model_class(architectures: object) -> type[LlamaForCausalLM]:
    """The class for a checkpoint's `architectures`. Raises ModelLoadError, listing what is supported."""
    names = architectures if isinstance(architectures, list) else []
    for name in names:
        if name in REGISTRY:
            return REGISTRY[name]
    raise ModelLoadError(f"the checkpoint's architectures are {architectures!r}; supported are: {', '.join(REGISTRY)}")
