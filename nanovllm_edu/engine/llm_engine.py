"""The loop: schedule, run the model, take in its tokens, hand out what finished.

Follows nano-vllm's `engine/llm_engine.py`. One step is all or nothing: whatever interrupts it, its requests are as
before it.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence as Seq
from itertools import count
from pathlib import Path
from typing import Any

from ..config import EngineConfig
from ..errors import EngineClosedError, RequestError
from ..loading import Tokenizer, resolve
from ..sampling_params import SamplingParams
from .block_manager import BlockManager
from .inputs import check_salt, token_ids_of
from .model_runner import ModelRunner, samples
from .outputs import RequestOutput, StepOutput
from .request import Request
from .scheduler import Scheduler
from .sequence import Sequence


class LLMEngine:
    """A model, its ledger and its live requests. Not safe for several threads at once: `LLM` sees to that.

    outputs: finished requests by seq_id, until somebody pops them.
    """

    def __init__(self, config: EngineConfig) -> None:
        self.config = config
        folder = resolve(config.model)
        self.tokenizer: Tokenizer | None = Tokenizer(folder)
        self.runner: ModelRunner | None = _make_runner(config, folder)
        try:
            self._make_ledger(config, folder.name)
        except BaseException:
            self.runner.close()
            raise

    def _make_ledger(self, config: EngineConfig, name: str) -> None:
        eos = self.runner.eos_token_ids() | {self.tokenizer.eos_token_id}
        config.eos_token_ids = frozenset(eos - {None})
        self.scheduler = Scheduler(config, config.block_manager_class or BlockManager, config.observers)
        self.model_info = self._model_info(name)
        self.outputs: dict[int, RequestOutput] = {}
        self._requests: dict[int, Request] = {}
        self._ids = count()
        self._random = random.Random(config.seed)

    def _model_info(self, name: str) -> dict[str, Any]:
        from ..loading.packaged import ENTRY, MODEL_NAME

        runner, spec, model = self.runner, self.runner.spec, self.runner.model_config
        shown = MODEL_NAME if self.config.model is None or name == ENTRY else str(self.config.model)
        return {"name": shown, "device": str(runner.device), "dtype": str(runner.dtype).removeprefix("torch."),
                "attention_backend": runner.backend.name, "attention_backend_reason": runner.choice.reason,
                "cuda_graphs": runner.graphs is not None, "weights_packed": runner.pack,
                "tensor_parallel_size": runner.ranks.size, "num_layers": model.num_layers,
                "num_heads": model.num_heads, "num_kv_heads": model.num_kv_heads,
                "head_dim": model.head_dim, "vocab_size": model.vocab_size,
                "max_model_len": self.config.max_model_len, "block_size": spec.block_size,
                "num_blocks": self.config.num_kvcache_blocks, "bytes_per_block": spec.bytes_per_block}

    # --- requests --------------------------------------------------------------------------------------------------

    def encode(self, prompt: Any) -> list[int]:
        """Token ids of a prompt, checked. Raises RequestError."""
        self.check_open()
        return token_ids_of(prompt, self.tokenizer, self.model_info["vocab_size"])

    def check_params(self, params: SamplingParams) -> None:
        """Raise RequestError for parameters that this model cannot serve."""
        vocab_size = self.model_info["vocab_size"]
        for token in params.stop_token_ids:
            if token >= vocab_size:
                raise RequestError(f"stop_token_ids holds {token}: the vocabulary ends at {vocab_size - 1}")

    def add_all(self, prompts: Seq[list[int]], params: Seq[SamplingParams], cache_salt: str | None = None,
                stream: bool = False, numbered: bool = True) -> list[Request]:
        """Queue requests, all or none. Raises RequestError, with the prompt's number, if one can never run.

        prompts: token ids, as `encode` gives them.
        """
        self.check_open()
        check_salt(cache_salt)
        for i, (token_ids, one) in enumerate(zip(prompts, params, strict=True)):
            try:
                self.check_params(one)
                if not self._fits(len(token_ids)):
                    self._refuse(token_ids, one)
            except RequestError as error:
                raise (RequestError(f"prompt {i}: {error}") if numbered else error) from None
        added = []
        try:
            for token_ids, one in zip(prompts, params, strict=True):
                added.append(self._add(token_ids, one, cache_salt, stream))
        except BaseException:
            for request in added:
                self.discard(request)
            raise
        return added

    def _fits(self, num_tokens: int) -> bool:
        capacity = self.scheduler.num_blocks * self.scheduler.block_size
        return num_tokens < self.config.max_model_len and num_tokens <= capacity

    def _refuse(self, token_ids: list[int], params: SamplingParams) -> None:
        """Let the scheduler refuse a request, so that whoever watches sees it refused and why."""
        seq = Sequence(token_ids, params, self.scheduler.block_size, seq_id=next(self._ids))
        self.scheduler.add(seq)

    def _add(self, token_ids: list[int], params: SamplingParams, cache_salt: str | None, stream: bool) -> Request:
        seq = Sequence(token_ids, params, self.scheduler.block_size, seq_id=next(self._ids), cache_salt=cache_salt)
        rng_seed = params.seed if params.seed is not None else self._random.getrandbits(63)
        request = Request(seq, self.tokenizer, rng_seed, stream)
        self._requests[seq.seq_id] = request
        try:
            self.scheduler.add(seq)
        except BaseException:
            self._requests.pop(seq.seq_id, None)
            raise
        return request

    def abort(self, seq_id: int) -> RequestOutput | None:
        """End a request wherever it stands. None if there is no such request (any more)."""
        self.check_open()
        if self.scheduler.abort(seq_id) is None:
            return None
        return self._finish(seq_id)

    def discard(self, request: Request) -> None:
        """End a request and forget its output: nobody waits for it."""
        seq_id = request.seq.seq_id
        self.scheduler.abort(seq_id)
        self._requests.pop(seq_id, None)
        self.outputs.pop(seq_id, None)

    # --- steps -----------------------------------------------------------------------------------------------------

    def step(self) -> StepOutput:
        """Run one step. If it fails or is interrupted, its requests are as before it, and the error passes through."""
        self.check_open()
        scheduler = self.scheduler
        if scheduler.is_finished():
            return StepOutput(scheduler.step, "idle")
        before = {seq.seq_id: (seq, seq.num_tokens) for seq in scheduler.sequences}
        requests = {seq_id: self._requests[seq_id] for seq_id in before}
        try:
            return self._step()
        except BaseException:
            scheduler.recover(before)
            self._requests.update(requests)  # some may have been published already
            for seq_id, (_, num_tokens) in before.items():
                self.outputs.pop(seq_id, None)
                requests[seq_id].forget(num_tokens)
            raise

    def _step(self) -> StepOutput:
        scheduler = self.scheduler
        seqs, is_prefill = scheduler.schedule()
        output = StepOutput(scheduler.step, scheduler.phase, [seq.seq_id for seq in seqs])
        if not seqs:  # the only running request gave way to itself; it is first in line now
            return output
        samplers = [self._requests[seq.seq_id] for seq in seqs if samples(seq)]
        sampled = self.runner.run(seqs, [r.params for r in samplers], [r.uniform() for r in samplers])
        output.new_token_ids = {r.seq.seq_id: t for r, t in zip(samplers, sampled.token_ids, strict=True)}
        scheduler.postprocess(seqs, [output.new_token_ids.get(seq.seq_id, 0) for seq in seqs], is_prefill)
        done = []
        for request, logprobs in zip(samplers, sampled.logprobs, strict=True):
            if request.metrics.first_token_time is None:
                request.metrics.first_token_time = time.perf_counter()
            if logprobs is not None:
                request.logprobs.append(logprobs)
            # a request that its last token ended anyway stays so in the ledger; its output says "stop"
            if request.follow_text() and not request.seq.is_finished:
                scheduler.finish(request.seq, "stop")
            if request.seq.is_finished:
                done.append(request)
        # outputs are built first and published together; an interrupt in between takes them back
        output.finished = [request.output() for request in done]
        for finished in output.finished:
            del self._requests[finished.seq_id]
            self.outputs[finished.seq_id] = finished
        return output

    def _finish(self, seq_id: int) -> RequestOutput:
        output = self._requests.pop(seq_id).output()
        self.outputs[seq_id] = output
        return output

    # --- the end ---------------------------------------------------------------------------------------------------

    def check_open(self) -> None:
        """Raise EngineClosedError after `close`."""
        if self.runner is None:
            raise EngineClosedError("this LLM was closed, its weights and KV cache are gone: make a new one")
        if (failure := self.runner.failure) is not None:
            raise EngineClosedError(f"this LLM can no longer be used: {failure}\nClose it, and make a new one")

    def close(self) -> None:
        """Abort what is live and let go of weights, cache and tokenizer. A second call does nothing."""
        if self.runner is None:
            return
        for request in list(self._requests.values()):
            self.discard(request)
        self.runner.close()
        self.runner = self.tokenizer = None


def _make_runner(config: EngineConfig, folder: Path) -> ModelRunner:
    if config.tensor_parallel_size == 1:  # one process: no group, no thread, nothing to be sent
        return ModelRunner(config, folder)
    from .tensor_parallel import make_runner

    return make_runner(config, folder)
