"""The Llama family's decoder (Touvron et al., 2023): the shape that Qwen2 and Qwen3 vary.

A layer adds attention and then a gated MLP to a residual stream, each after an RMS norm. Tensor names are those of the
Hugging Face checkpoints.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from ..layers.activation import silu_and_mul
from ..layers.attention import AttentionBackend
from ..layers.embed_head import Embedding, Head
from ..layers.layernorm import RMSNorm
from ..layers.linear import Linear
from ..layers.parallel import ALONE, ColumnParallelLinear, Ranks, Reader, RowParallelLinear
from ..layers.rotary_embedding import RotaryEmbedding, apply_rotary
from .config import ModelConfig


class Attention(nn.Module):
    """Self-attention with grouped query heads, over the paged cache of a backend."""

    def __init__(self, config: ModelConfig, layer: int, qkv_bias: bool, out_bias: bool, qk_norm: bool,
                 ranks: Ranks) -> None:
        super().__init__()
        name = f"model.layers.{layer}.self_attn"
        self.layer, self.head_dim = layer, config.head_dim
        # this rank's heads; a key head is held by several ranks where they are more than key heads
        self.num_heads, self.num_kv_heads = config.num_heads // ranks.size, max(1, config.num_kv_heads // ranks.size)
        q_size, kv_size = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
        self.qkv_proj = ColumnParallelLinear(config.hidden_size, {
            f"{name}.q_proj": q_size, f"{name}.k_proj": kv_size, f"{name}.v_proj": kv_size}, qkv_bias, self.head_dim,
            ranks)
        self.o_proj = RowParallelLinear(q_size, {f"{name}.o_proj": config.hidden_size}, out_bias, ranks)
        self.q_norm = RMSNorm(f"{name}.q_norm", config.head_dim, config.rms_norm_eps) if qk_norm else None
        self.k_norm = RMSNorm(f"{name}.k_norm", config.head_dim, config.rms_norm_eps) if qk_norm else None

    def forward(self, x: Tensor, residual: Tensor, rotation: tuple[Tensor, Tensor],
                backend: AttentionBackend, plan: Any) -> Tensor:
        heads, kv_heads = self.num_heads, self.num_kv_heads
        qkv = self.qkv_proj(x).view(x.shape[0], heads + 2 * kv_heads, self.head_dim)
        qk = qkv[:, :heads + kv_heads]
        if self.q_norm is not None and self.k_norm is not None:
            qk = torch.cat((self.q_norm(qk[:, :heads]), self.k_norm(qk[:, heads:])), 1)
        qk = apply_rotary(qk, *rotation)
        out = backend.attend(self.layer, qk[:, :heads], qk[:, heads:], qkv[:, heads + kv_heads:], plan)
        return self.o_proj(out, residual)


class DecoderLayer(nn.Module):
    """Attention, then the MLP, each on the normalised residual stream and added to it."""

    def __init__(self, config: ModelConfig, layer: int, qkv_bias: bool, out_bias: bool, qk_norm: bool,
                 ranks: Ranks) -> None:
        super().__init__()
        name, eps = f"model.layers.{layer}", config.rms_norm_eps
        self.input_layernorm = RMSNorm(f"{name}.input_layernorm", config.hidden_size, eps)
        self.self_attn = Attention(config, layer, qkv_bias, out_bias, qk_norm, ranks)
        self.post_attention_layernorm = RMSNorm(f"{name}.post_attention_layernorm", config.hidden_size, eps)
        self.gate_up_proj = ColumnParallelLinear(config.hidden_size, {
            f"{name}.mlp.gate_proj": config.intermediate_size, f"{name}.mlp.up_proj": config.intermediate_size},
            config.mlp_bias, ranks=ranks)
        self.down_proj = RowParallelLinear(
            config.intermediate_size, {f"{name}.mlp.down_proj": config.hidden_size}, config.mlp_bias, ranks)

    def forward(self, x: Tensor, rotation: tuple[Tensor, Tensor], backend: AttentionBackend, plan: Any) -> Tensor:
        x = self.self_attn(self.input_layernorm(x), x, rotation, backend, plan)
        return self.down_proj(silu_and_mul(self.gate_up_proj(self.post_attention_layernorm(x))), x)


class LlamaForCausalLM(nn.Module):
    """Token ids and positions in, hidden states out; `compute_logits` turns the rows that sample into logits."""

    qkv_bias: ClassVar[bool | None] = None  # None: what the configuration says
    out_bias: ClassVar[bool | None] = None
    qk_norm: ClassVar[bool] = False

    def __init__(self, config: ModelConfig, ranks: Ranks = ALONE) -> None:
        super().__init__()
        self.config = config
        qkv_bias = config.attention_bias if self.qkv_bias is None else self.qkv_bias
        out_bias = config.attention_bias if self.out_bias is None else self.out_bias
        tied = config.tie_word_embeddings
        vocab_size = config.vocab_size
        self.lm_head = Head(config.hidden_size, {} if tied else {"lm_head": vocab_size}, vocab_size, ranks)
        self.embed_tokens = Embedding("model.embed_tokens", vocab_size, config.hidden_size,
                                      self.lm_head if tied else None, ranks)
        self.layers = nn.ModuleList(
            DecoderLayer(config, i, qkv_bias, out_bias, self.qk_norm, ranks) for i in range(config.num_layers))
        self.norm = RMSNorm("model.norm", config.hidden_size, config.rms_norm_eps)
        self.rotary: RotaryEmbedding | None = None

    def leaves(self) -> list[Any]:
        """The modules that hold weights of the checkpoint."""
        return [module for module in self.modules() if isinstance(module, (Linear, RMSNorm, Embedding))
                and not (isinstance(module, Linear) and not module.parts)]

    def expected(self) -> dict[str, tuple[int, ...]]:
        """Names and shapes of all tensors that the checkpoint must hold."""
        return {name: shape for leaf in self.leaves() for name, shape in leaf.expected().items()}

    def load(self, read: Reader, pack: bool, max_position: int, dtype: torch.dtype, device: torch.device) -> None:
        """Take all weights (`read(name)`, in dtype and on device) and make the rotary tables."""
        for leaf in self.leaves():
            leaf.load(read, pack)
        c = self.config
        self.rotary = RotaryEmbedding(c.head_dim, max_position, c.rope_theta, c.rope_scaling, dtype, device)

    def forward(self, input_ids: Tensor, positions: Tensor, backend: AttentionBackend, plan: Any) -> Tensor:
        """input_ids and positions (tokens,) int64 → (tokens, hidden), normalised."""
        x = self.embed_tokens(input_ids)
        rotation = self.rotary(positions)
        for layer in self.layers:
            x = layer(x, rotation, backend, plan)
        return self.norm(x)

    def compute_logits(self, hidden: Tensor) -> Tensor | None:
        """(rows, hidden) → (rows, vocab_size) fp32 on rank 0, None on the others."""
        logits = self.lm_head(hidden)
        return None if logits is None else logits.float()
