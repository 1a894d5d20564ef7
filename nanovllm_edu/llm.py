"""The front of the engine: `LLM`."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol, TypeVar

from .config import EngineConfig
from .engine.inputs import check_salt, params_for, split_prompts
from .engine.llm_engine import LLMEngine
from .engine.outputs import RequestMetrics, RequestOutput, StepOutput
from .engine.request import Request
from .errors import RequestError
from .loading.tokenizer import check_messages
from .sampling_params import SamplingParams

__all__ = ["LLM", "EngineDriver", "RequestMetrics", "RequestOutput", "SamplingParams", "StepOutput"]

T = TypeVar("T")


class EngineDriver(Protocol):
    """Somebody with a thread of its own that owns a running engine (see `LLM.driver`)."""

    thread_id: int | None
    """`threading.get_ident()` of the thread that owns the engine."""

    def call(self, fn: Callable[[], T]) -> T:
        """Run fn on that thread, wait for it, and return its result or raise its exception."""


class LLM:
    """A language model behind a paged KV cache.

    model: None (the small packaged model), a local folder in the Hugging Face layout, or a hub id.
    options: see `EngineConfig`; an unknown name or an impossible value raises ConfigError.

        with LLM() as llm:
            print(llm.chat([{"role": "user", "content": "What is the capital of France?"}]).text)

    tensor_parallel_size: so many processes compute the model together; how, on one machine or several, is told in
    `engine/tensor_parallel.py`. If one fails, calls raise WorkerError and then EngineClosedError.

    Reading: `scheduler` and `scheduler.block_manager` (the ledger), `outputs`, `tokenizer`, `model_info`, `config`.
    driver: None, or an `EngineDriver` on whose thread all calls are carried out. Without one, calls from several
    threads take turns, a step at a time.
    """

    def __init__(self, model: str | os.PathLike[str] | None = None, **options: Any) -> None:
        self.driver: EngineDriver | None = None
        self._lock = threading.RLock()
        self.config = EngineConfig.from_options(model, options)
        self.engine = LLMEngine(self.config)

    def __repr__(self) -> str:
        info = self.model_info
        state = "closed" if self.is_closed else f"{info['num_blocks']} KV blocks of {info['block_size']} tokens"
        return f"LLM({info['name']}, {info['device']}, {info['dtype']}, {state})"

    # --- to read ---------------------------------------------------------------------------------------------------

    @property
    def scheduler(self) -> Any:
        """The engine's own scheduler; its `block_manager` is the ledger of blocks."""
        return self.engine.scheduler

    @property
    def tokenizer(self) -> Any:
        """`encode(text)`, `decode(token_ids)`, `apply_chat_template(messages)`."""
        self.engine.check_open()
        return self.engine.tokenizer

    @property
    def model_info(self) -> dict[str, Any]:
        """Name, device, dtype, attention backend and the sizes that the cache depends on."""
        return self.engine.model_info

    @property
    def outputs(self) -> dict[int, RequestOutput]:
        """Outputs of finished requests that nobody has taken yet, by seq_id. Pop what you take."""
        return self.engine.outputs

    @property
    def is_closed(self) -> bool:
        """True after `close`."""
        return self.engine.runner is None

    # --- whole requests --------------------------------------------------------------------------------------------

    def generate(self, prompts: Any, sampling_params: Any = None, use_tqdm: bool = True,
                 cache_salt: str | None = None) -> list[RequestOutput]:
        """Complete one prompt or several; returns their outputs in order.

        prompts: a string, token ids, or a list of these. sampling_params: one for all, or a list as long as prompts.
        cache_salt: only requests with the same salt share cached blocks. Raises RequestError, with the number of the
        prompt, before anything has run. Requests that were added beside progress too; their outputs wait in `outputs`.
        Interrupted, it aborts its own requests and leaves the others.
        """
        self.engine.check_open()
        token_ids = [self._encode(prompt, i) for i, prompt in enumerate(split_prompts(prompts))]
        return self._complete(token_ids, params_for(sampling_params, len(token_ids)), use_tqdm, cache_salt)

    def chat(self, messages: Any, sampling_params: Any = None, use_tqdm: bool = False, cache_salt: str | None = None,
             **template: Any) -> Any:
        """Answer a conversation, a list of {"role": ..., "content": ...}, through the model's chat template.

        One conversation gives one RequestOutput; a list of conversations gives a list. template: variables for the
        model's template, such as enable_thinking=False. Raises RequestError, as `generate`.
        """
        several = isinstance(messages, (list, tuple)) and bool(messages) and not isinstance(messages[0], (Mapping, str))
        token_ids = []
        for i, conversation in enumerate(messages if several else [messages]):
            try:
                token_ids.append(self.tokenizer.apply_chat_template(conversation, **template))
            except RequestError as error:
                raise (RequestError(f"conversation {i}: {error}") if several else error) from None
        outputs = self._complete(token_ids, params_for(sampling_params, len(token_ids)), use_tqdm, cache_salt)
        return outputs if several else outputs[0]

    def stream(self, prompt: Any, sampling_params: SamplingParams | None = None, cache_salt: str | None = None,
               **template: Any) -> Iterator[str]:
        """Yield the text of one request piece by piece, never half a character; joined, it is `generate`'s text.

        prompt: a string, token ids, or a conversation. The request is checked now, begins with the first piece, and
        is aborted when the iterator is closed early.
        """
        params = params_for(sampling_params, 1)
        check_salt(cache_salt)
        if isinstance(prompt, (list, tuple)) and prompt and isinstance(prompt[0], Mapping):
            token_ids = self.tokenizer.apply_chat_template(check_messages(prompt), **template)
        else:
            token_ids = self.engine.encode(prompt)
        return self._pieces(token_ids, params, cache_salt)

    def _pieces(self, token_ids: list[int], params: list[SamplingParams], cache_salt: str | None) -> Iterator[str]:
        engine, shown = self.engine, 0
        [request] = self._add([token_ids], params, cache_salt, stream=True, numbered=False)
        try:
            while not request.seq.is_finished:
                self._call(lambda: self._step_unless_done([request]))
                text = request.certain_text
                if not request.seq.is_finished and len(text) > shown:
                    piece, shown = text[shown:], len(text)
                    yield piece
            rest = self._take(request).text[shown:]
            if rest:
                yield rest
        finally:
            self._call(lambda: engine.discard(request))

    def _encode(self, prompt: Any, index: int) -> list[int]:
        try:
            return self.engine.encode(prompt)
        except RequestError as error:
            raise RequestError(f"prompt {index}: {error}") from None

    def _complete(self, token_ids: list[list[int]], params: list[SamplingParams], use_tqdm: bool,
                  cache_salt: str | None) -> list[RequestOutput]:
        engine = self.engine
        requests = self._add(token_ids, params, cache_salt)
        try:
            self._run(requests, use_tqdm)
            return [self._take(request) for request in requests]
        except BaseException:
            self._call(lambda: [engine.discard(request) for request in requests])
            raise

    def _add(self, *args: Any, **options: Any) -> list[Request]:
        """`LLMEngine.add_all`. An interrupt while the driver's thread adds them takes them out again."""
        engine = self.engine
        added: list[Request] = []
        try:
            self._call(lambda: added.extend(engine.add_all(*args, **options)))
        except BaseException:
            self._call(lambda: [engine.discard(request) for request in added])
            raise
        return added

    def _take(self, request: Request) -> RequestOutput:
        """The output of a finished request, out of `outputs`. Raises EngineClosedError if a close cut it off."""
        self.outputs.pop(request.seq.seq_id, None)
        if request.result is None:
            self.engine.check_open()
            raise RequestError(f"request {request.seq.seq_id} was discarded before it had a result")
        return request.result

    def _run(self, requests: list[Request], use_tqdm: bool) -> None:
        if not use_tqdm:
            while not all(request.seq.is_finished for request in requests):
                self._call(lambda: self._step_unless_done(requests))
            return
        from tqdm.auto import tqdm

        with tqdm(total=len(requests), desc="generating", unit="request") as bar:
            while bar.n < len(requests):
                self._call(lambda: self._step_unless_done(requests))
                bar.update(sum(request.seq.is_finished for request in requests) - bar.n)

    def _step_unless_done(self, requests: list[Request]) -> None:
        """A step for the sake of these requests; somebody else's step may have finished them in the meantime."""
        if not all(request.seq.is_finished for request in requests):
            self.engine.step()

    # --- a step at a time ------------------------------------------------------------------------------------------

    def add_request(self, prompt: Any, sampling_params: SamplingParams | None = None,
                    cache_salt: str | None = None) -> int:
        """Queue a request and return its seq_id; `step` runs it, and its output comes to `outputs`."""
        token_ids = self.engine.encode(prompt)
        params = params_for(sampling_params, 1)
        [request] = self._add([token_ids], params, cache_salt, numbered=False)
        return request.seq.seq_id

    def step(self) -> StepOutput:
        """Run one step of the engine. Interrupted or failed, it leaves its requests as before the step."""
        return self._call(self.engine.step)

    def abort(self, seq_id: int) -> RequestOutput | None:
        """End a request now; its output (finish_reason "aborted") also waits in `outputs`. None if it is not live."""
        return self._call(lambda: self.engine.abort(seq_id))

    def is_finished(self) -> bool:
        """True when no request is waiting or running."""
        return self.engine.scheduler.is_finished()

    def reset_prefix_cache(self) -> None:
        """Forget all cached blocks. Raises LedgerError while a request holds blocks."""
        self._call(self._reset)

    def _reset(self) -> None:
        self.engine.check_open()
        self.engine.scheduler.reset_prefix_cache()

    # --- the end ---------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Abort live requests and free weights and cache. May be called again; other calls raise EngineClosedError."""
        self._call(self.engine.close)

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _call(self, fn: Callable[[], T]) -> T:
        """Carry out fn where the engine lives: on the driver's thread, else here, when no other thread is at it."""
        driver = self.driver
        if driver is not None and driver.thread_id != threading.get_ident():
            return driver.call(fn)
        with self._lock:
            return fn()
