"""From scheduled sequences, through the model, to one token each: a model with its KV cache and its device.

`batch.py` makes the tensors of a step, `warm_up.py` and `devices.py` size the cache, `cuda_graphs.py` records decodes.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence as Seq
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..config import EngineConfig
from ..errors import ConfigError
from ..layers.attention import AttentionBackend, Choice, KVCacheSpec, backend_class, choose, look
from ..layers.parallel import ALONE, Ranks
from ..layers.sampler import Sampled, sample
from ..loading import Checkpoint
from ..models import ModelConfig, model_class
from ..sampling_params import SamplingParams
from .batch import Batch, prepare, samples, slot_mapping
from .cuda_graphs import DecodeGraphs, is_decode, record_decode
from .devices import num_blocks_for, on_device, resolve_device, resolve_dtype, should_pack
from .sequence import Sequence
from .warm_up import activation_bytes

__all__ = ["Batch", "ModelRunner", "prepare", "samples", "slot_mapping"]


class ModelRunner:
    """A loaded model with its KV cache. Fills in config.num_kvcache_blocks and config.max_model_len.

    ranks: the tensor-parallel group; each of its processes has a runner with its share of the heads (see
    `tensor_parallel.py`). failure: what made this runner unusable, None while it is in order.
    Raises ConfigError for options that do not fit the machine or the model, ModelLoadError for a bad checkpoint.
    """

    graphs: DecodeGraphs | None = None
    ranks: Ranks = ALONE
    failure: BaseException | None = None

    def __init__(self, config: EngineConfig, folder: Path, ranks: Ranks = ALONE) -> None:
        self.ranks = ranks
        self.device = resolve_device(config.device)
        self.dtype = resolve_dtype(config.dtype, self.device)
        self.pack = should_pack(config.pack_weights, self.dtype, self.device)
        with Checkpoint(folder) as checkpoint:
            build = model_class(checkpoint.config.get("architectures"))
            self.model_config = ModelConfig.from_dict(checkpoint.config)
            self.generation_config = {**checkpoint.config, **checkpoint.generation_config}
            _fit_length(config, self.model_config)
            m = self.model_config
            self.spec = KVCacheSpec(m.num_layers, m.num_heads // ranks.size, max(1, m.num_kv_heads // ranks.size),
                                    m.head_dim, config.kvcache_block_size, self.dtype, self.device)
            self.choice = choose(config.attention_backend, self.spec, look(self.device))
            self.model = build(self.model_config, ranks)
            tied = {"lm_head.weight"} if self.model_config.tie_word_embeddings else set()
            checkpoint.check(self.model.expected(), optional=tied)
            # a copy lets go of the file, of whose pages a packed layer would otherwise hold a second set
            copy = config.pack_weights is not False

            def read(name: str, index: Any = slice(None)) -> Tensor:
                return checkpoint.read(name)[index].to(self.device, self.dtype, copy=copy)

            self.model.load(read, self.pack, config.max_model_len, self.dtype, self.device)
        if ranks.rank == 0:
            _say(self.choice)
        with on_device(self.device):
            self.backend = self._make_backend(config)
            if self.device.type == "cuda" and self.backend.supports_graphs and not config.enforce_eager:
                self.graphs = record_decode(self.model, self.backend, config)

    def _make_backend(self, config: EngineConfig) -> AttentionBackend:
        """The backend with its KV cache, sized after the largest step was measured (CUDA) or guessed (elsewhere)."""
        build = backend_class(self.choice.name)
        if config.num_kvcache_blocks is None:
            config.num_kvcache_blocks = num_blocks_for(config, self.spec, activation_bytes(
                config, self.model, self.model_config, build, self.spec))
        config.num_kvcache_blocks = self.ranks.smallest(config.num_kvcache_blocks)  # one ledger serves all
        try:
            return build(self.spec, config.num_kvcache_blocks)
        except RuntimeError as error:  # torch reports memory that it cannot get so
            need = self.spec.bytes_per_block * config.num_kvcache_blocks
            raise ConfigError(f"num_kvcache_blocks={config.num_kvcache_blocks}: {need / 2**30:.1f} GiB for the KV "
                              f"cache could not be had ({str(error).splitlines()[0]}); ask for fewer blocks") from error

    @torch.inference_mode()
    def run(self, seqs: Seq[Sequence], params: Seq[SamplingParams], uniforms: Seq[float]) -> Sampled:
        """Compute the scheduled tokens. Samples, in order, for the sequences that are complete after this step.

        params, uniforms: of those sequences alone (see `samples`).
        """
        logits = self.compute(seqs)
        if logits is None:
            return Sampled([], [])
        if self.device.type == "mps":  # sampling needs float64, which Metal lacks
            logits = logits.cpu()
        with on_device(self.device):
            return sample(logits, params, uniforms)

    @torch.inference_mode()
    def compute(self, seqs: Seq[Sequence]) -> Tensor | None:
        """Logits (samplers, vocab_size) of the sequences that are complete after this step; None if none is.

        In a tensor-parallel group, every rank computes the same sequences, and rank 0 alone gets the logits.
        """
        with on_device(self.device):
            batch = prepare(seqs, self.spec.block_size, self.device)
            hidden = self.forward(batch)
            samplers = batch.last_rows.shape[0]
            if samplers == 0:
                return None
            rows = hidden if hidden.shape[0] == samplers else hidden.index_select(0, batch.last_rows)
            return self.model.compute_logits(rows)

    def forward(self, batch: Batch) -> Tensor:
        """Hidden states (tokens, hidden) of a batch, its keys and values stored in the cache."""
        if self.graphs is not None and is_decode(batch.attention):
            return self.graphs.run(batch.input_ids, batch.positions, batch.attention)
        plan: Any = self.backend.plan(batch.attention)
        return self.model(batch.input_ids, batch.positions, self.backend, plan)

    def close(self) -> None:
        """Let go of recorded graphs. To be called before a process group is destroyed."""
        if self.graphs is not None:
            self.graphs.release()
            self.graphs = None

    def eos_token_ids(self) -> set[int]:
        """The end-of-sequence ids that the checkpoint's configuration names (one, several or none)."""
        ids = self.generation_config.get("eos_token_id")
        return set() if ids is None else set(ids) if isinstance(ids, list) else {ids}


def _say(choice: Choice) -> None:
    """A line in the log; one that is seen without any set-up where a faster backend had to be passed over."""
    level = logging.WARNING if choice.passed_over else logging.INFO
    logging.getLogger("nanovllm_edu").log(level, "attention backend: %s (%s)", choice.name, choice.reason)


def _fit_length(config: EngineConfig, model: ModelConfig) -> None:
    limit = model.max_position_embeddings
    if config.max_model_len > limit:
        if "max_model_len" in config.asked_for:
            raise ConfigError(f"max_model_len={config.max_model_len}: the model knows {limit} positions; "
                              f"ask for at most {limit}")
        config.max_model_len = limit
