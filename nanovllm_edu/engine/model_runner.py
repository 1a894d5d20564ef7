"""From scheduled sequences to tensors, through the model, to one token each.

The only place where the ledger's block tables meet real tensors. It reads sequences and never changes them.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..config import EngineConfig
from ..errors import ConfigError
from ..layers.attention import BACKENDS, AttentionBatch, KVCacheSpec
from ..layers.sampler import Sampled, sample
from ..loading import Checkpoint
from ..models import ModelConfig, model_class
from ..sampling_params import SamplingParams
from .devices import num_blocks_for, resolve_device, resolve_dtype, should_pack
from .sequence import Sequence


@dataclass
class Batch:
    """One step's input. input_ids, positions: (tokens,) int64. last_rows: (samplers,) rows whose logits are needed."""

    input_ids: Tensor
    positions: Tensor
    attention: AttentionBatch
    last_rows: Tensor


def prepare(seqs: Seq[Sequence], block_size: int, device: torch.device) -> Batch:
    """Flatten the scheduled tokens of all sequences into one batch.

    A sequence computes its tokens num_cached_tokens to num_cached_tokens + num_scheduled_tokens. Chunks of prompts and
    decodes may be mixed. Only a sequence whose tokens are all computed after this step gets a row in last_rows.
    """
    input_ids: list[int] = []
    positions: list[int] = []
    slots: list[int] = []
    cu_seqlens_q, context_lens, last_rows = [0], [], []
    for seq in seqs:
        start = seq.num_cached_tokens
        end = start + seq.num_scheduled_tokens
        input_ids += seq.token_ids[start:end] if seq.is_prefill else [seq.last_token]
        positions += range(start, end)
        slots += slot_mapping(seq.block_table, block_size, start, end)
        cu_seqlens_q.append(len(input_ids))
        context_lens.append(end)
        if end == seq.num_tokens:
            last_rows.append(len(input_ids) - 1)

    def tensor(values: list[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.int64, device=device)

    attention = AttentionBatch(cu_seqlens_q, context_lens, tensor(slots), [seq.block_table for seq in seqs])
    return Batch(tensor(input_ids), tensor(positions), attention, tensor(last_rows))


def slot_mapping(block_table: list[int], block_size: int, start: int, end: int) -> list[int]:
    """Physical slots of the tokens start to end: block_table[i // block_size] * block_size + i % block_size each."""
    slots: list[int] = []
    while start < end:  # a block at a time
        offset = start % block_size
        first = block_table[start // block_size] * block_size + offset
        count = min(block_size - offset, end - start)
        slots += range(first, first + count)
        start += count
    return slots


class ModelRunner:
    """A loaded model with its KV cache. Fills in config.num_kvcache_blocks and config.max_model_len.

    Raises ConfigError for options that do not fit the machine or the model, ModelLoadError for a bad checkpoint.
    """

    def __init__(self, config: EngineConfig, folder: Path) -> None:
        self.device = resolve_device(config.device)
        self.dtype = resolve_dtype(config.dtype, self.device)
        self.pack = should_pack(config.pack_weights, self.dtype, self.device)
        with Checkpoint(folder) as checkpoint:
            build = model_class(checkpoint.config.get("architectures"))
            self.model_config = ModelConfig.from_dict(checkpoint.config)
            self.generation_config = {**checkpoint.config, **checkpoint.generation_config}
            _fit_length(config, self.model_config)
            self.model = build(self.model_config)
            tied = {"lm_head.weight"} if self.model_config.tie_word_embeddings else set()
            checkpoint.check(self.model.expected(), optional=tied)
            self.model.load(lambda name: checkpoint.read(name).to(self.device, self.dtype), self.pack,
                            config.max_model_len, self.dtype, self.device)
        m = self.model_config
        self.spec = KVCacheSpec(m.num_layers, m.num_heads, m.num_kv_heads, m.head_dim, config.kvcache_block_size,
                                self.dtype, self.device)
        config.num_kvcache_blocks = num_blocks_for(config, self.spec, _activation_bytes(config, m, self.dtype))
        name = "torch" if config.attention_backend == "auto" else config.attention_backend
        try:
            self.backend = BACKENDS[name](self.spec, config.num_kvcache_blocks)
        except RuntimeError as error:  # torch reports memory that it cannot get so
            need = self.spec.bytes_per_block * config.num_kvcache_blocks
            raise ConfigError(f"num_kvcache_blocks={config.num_kvcache_blocks}: {need / 2**30:.1f} GiB for the KV "
                              f"cache could not be had ({str(error).splitlines()[0]}); ask for fewer blocks") from error

    @torch.inference_mode()
    def run(self, seqs: Seq[Sequence], params: Seq[SamplingParams], uniforms: Seq[float]) -> Sampled:
        """Compute the scheduled tokens. Samples, in order, for the sequences that are complete after this step.

        params, uniforms: of those sequences alone (see `samples`).
        """
        batch = prepare(seqs, self.spec.block_size, self.device)
        hidden = self.forward(batch)
        if not params:
            return Sampled([], [])
        rows = hidden if hidden.shape[0] == len(params) else hidden.index_select(0, batch.last_rows)
        return sample(self.model.compute_logits(rows), params, uniforms)

    def forward(self, batch: Batch) -> Tensor:
        """Hidden states (tokens, hidden) of a batch, its keys and values stored in the cache."""
        plan: Any = self.backend.plan(batch.attention)
        return self.model(batch.input_ids, batch.positions, self.backend, plan)

    def eos_token_ids(self) -> set[int]:
        """The end-of-sequence ids that the checkpoint's configuration names (one, several or none)."""
        ids = self.generation_config.get("eos_token_id")
        return set() if ids is None else set(ids) if isinstance(ids, list) else {ids}


def samples(seq: Sequence) -> bool:
    """True when the scheduled tokens complete the sequence, so that its last row's logits give a new token."""
    return seq.num_cached_tokens + seq.num_scheduled_tokens == seq.num_tokens


def _fit_length(config: EngineConfig, model: ModelConfig) -> None:
    limit = model.max_position_embeddings
    if config.max_model_len > limit:
        if "max_model_len" in config.asked_for:
            raise ConfigError(f"max_model_len={config.max_model_len}: the model knows {limit} positions; "
                              f"ask for at most {limit}")
        config.max_model_len = limit


def _activation_bytes(config: EngineConfig, m: ModelConfig, dtype: torch.dtype) -> int:
    """A generous guess at what the largest step needs beside weights and cache."""
    row = 6 * m.hidden_size + 3 * m.intermediate_size + 4 * (m.num_heads + 2 * m.num_kv_heads) * m.head_dim
    return config.max_num_batched_tokens * row * dtype.itemsize + 3 * config.max_num_seqs * m.vocab_size * 4
