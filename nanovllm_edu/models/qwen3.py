"""Qwen3 (dense): Llama with an RMS norm on each query and key head, before the rotary embedding."""

from __future__ import annotations

from typing import ClassVar

from .llama import LlamaForCausalLM


class Qwen3ForCausalLM(LlamaForCausalLM):
    qk_norm: ClassVar[bool] = True
