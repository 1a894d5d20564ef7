"""Where weights and tokenizers come from: the packaged GGUF, a local folder, or the model hub.

`resolve(model)` turns what the user named into a folder in the Hugging Face layout; `Checkpoint` and `Tokenizer` read
such a folder. Nothing here knows how a model computes, and nothing here imports transformers unless a folder has no
`tokenizer.json`.
"""

from __future__ import annotations

from .checkpoint import Checkpoint
from .resolve import resolve
from .tokenizer import Detokenizer, Tokenizer

__all__ = ["Checkpoint", "Detokenizer", "Tokenizer", "resolve"]
