"""Qwen2 and Qwen2.5: Llama with biases on the query, key and value projections alone."""

from __future__ import annotations

from typing import ClassVar

from .llama import LlamaForCausalLM


class Qwen2ForCausalLM(LlamaForCausalLM):
    qkv_bias: ClassVar[bool | None] = True
    out_bias: ClassVar[bool | None] = False
