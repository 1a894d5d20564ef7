"""What a decoder needs to know about itself, read from a checkpoint's config.json."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import ModelLoadError
from ..layers.rotary_embedding import ROPE_TYPES


@dataclass(frozen=True)
class ModelConfig:
    """Sizes and switches of a dense decoder. Raises ModelLoadError when config.json lacks or contradicts them."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    max_position_embeddings: int
    rope_theta: float
    rope_scaling: Mapping[str, Any] | None
    tie_word_embeddings: bool
    attention_bias: bool
    mlp_bias: bool

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> ModelConfig:
        """Parse config.json, as written by transformers 4 or 5."""
        def size(key: str, default: int | None = None) -> int:
            value = raw.get(key)
            value = default if value is None else value
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ModelLoadError(f"config.json: {key}={value!r} must be a whole number of at least 1")
            return value

        if raw.get("hidden_act", "silu") not in ("silu", "swish"):
            raise ModelLoadError(f"config.json: hidden_act={raw['hidden_act']!r} is not supported; 'silu' is")
        if raw.get("quantization_config"):
            raise ModelLoadError("config.json: quantised weights are not supported; take the plain checkpoint")
        if raw.get("use_sliding_window") or "sliding_attention" in (raw.get("layer_types") or ()):
            raise ModelLoadError("config.json: sliding-window attention is not supported")
        heads, hidden = size("num_attention_heads"), size("hidden_size")
        kv_heads = size("num_key_value_heads", heads)
        if heads % kv_heads:
            raise ModelLoadError(f"config.json: {heads} heads cannot share {kv_heads} key/value heads evenly")
        head_dim = size("head_dim", hidden // heads)
        if head_dim % 2:
            raise ModelLoadError(f"config.json: head_dim={head_dim} must be even, for the rotary embedding")
        theta, scaling = _rope(raw)
        return cls(
            vocab_size=size("vocab_size"), hidden_size=hidden, intermediate_size=size("intermediate_size"),
            num_layers=size("num_hidden_layers"), num_heads=heads, num_kv_heads=kv_heads, head_dim=head_dim,
            rms_norm_eps=float(raw.get("rms_norm_eps", 1e-6)),
            max_position_embeddings=size("max_position_embeddings", 2048), rope_theta=theta, rope_scaling=scaling,
            tie_word_embeddings=bool(raw.get("tie_word_embeddings", False)),
            attention_bias=bool(raw.get("attention_bias", False)), mlp_bias=bool(raw.get("mlp_bias", False)))


def _rope(raw: Mapping[str, Any]) -> tuple[float, Mapping[str, Any] | None]:
    """Base and scaling. transformers 5 keeps both in `rope_parameters`; 4 had `rope_theta` and `rope_scaling`."""
    rope = dict(raw.get("rope_parameters") or raw.get("rope_scaling") or {})
    kind = rope.setdefault("rope_type", rope.pop("type", "default"))
    theta = float(rope.pop("rope_theta", None) or raw.get("rope_theta") or 10000.0)
    if kind not in ROPE_TYPES:
        raise ModelLoadError(f"config.json: rope type {kind!r} is not supported; these are: {', '.join(ROPE_TYPES)}")
    if rope.get("partial_rotary_factor", 1.0) != 1.0:
        raise ModelLoadError("config.json: a partial rotary embedding is not supported")
    needed = {"default": (), "linear": ("factor",),
              "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")}[kind]
    if lacking := [key for key in needed if key not in rope]:
        raise ModelLoadError(f"config.json: rope type {kind!r} lacks {', '.join(lacking)}")
    return theta, None if kind == "default" else rope
