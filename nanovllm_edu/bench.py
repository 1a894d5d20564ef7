"""`python -m nanovllm_edu bench`: tokens per second, beside transformers' `generate` in the same run.

Random token ids, greedy, end-of-sequence ignored; both read the same safetensors in the same dtype, and take turns, so
that a busy machine slows both. The figure is generated tokens over the time of the whole call, prefill included; of
several rounds the median is shown.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import psutil
import torch

from .llm import LLM, SamplingParams


@dataclass(frozen=True)
class Workload:
    """`requests` prompts, their lengths spread evenly over prompt_lens, each continued by new_tokens."""

    requests: int
    prompt_lens: tuple[int, int]
    new_tokens: int

    def __str__(self) -> str:
        low, high = self.prompt_lens
        return f"{self.requests} x {low if low == high else f'{low}-{high}'} -> {self.new_tokens}"

    def prompts(self, vocab_size: int, seed: int) -> list[list[int]]:
        """Random token ids, new ones for each seed, so that no prefix is found in the cache."""
        generator = torch.Generator().manual_seed(seed)
        low, high = self.prompt_lens
        lengths = [low + (high - low) * i // max(1, self.requests - 1) for i in range(self.requests)]
        return [torch.randint(0, vocab_size, (n,), generator=generator).tolist() for n in lengths]


WORKLOADS = (Workload(1, (32, 32), 128), Workload(16, (32, 128), 64))


@dataclass(frozen=True)
class Timing:
    """Generated tokens per second of a whole call, and mean seconds to the first token where it is known."""

    tokens_per_second: float
    first_token: float | None = None


def bench(model: str | None = None, rounds: int = 3, peer: bool = True, **options: Any) -> int:
    """Measure and print the table; returns the exit code 0.

    model, options: as for `LLM`. peer: measure transformers too (twice the memory).
    """
    with LLM(model, **options) as llm:
        info = llm.model_info
        print(f"{info['name']}, {info['dtype']} on {info['device']}, {torch.get_num_threads()} threads, "
              f"{info['attention_backend']} attention, weights packed: {info['weights_packed']}")
        runners: dict[str, Callable[[list[list[int]], int], Timing]] = {"nanovllm_edu": lambda *w: _ours(llm, *w)}
        if peer:
            theirs = _load_peer(llm)
            runners["transformers"] = lambda *w: _peer(theirs, *w)
        print(f"{'workload':<20}" + "".join(f"{name + ' tok/s':>22}" for name in runners) + f"{'ratio':>8}{'TTFT':>10}")
        for number, workload in enumerate(WORKLOADS):
            timings = _measure(runners, workload, info["vocab_size"], rounds, seed=1000 * number)
            speeds = [statistics.median(t.tokens_per_second for t in timings[name]) for name in runners]
            ratio = f"{speeds[0] / speeds[1]:.2f}" if peer else ""
            first = statistics.median(t.first_token for t in timings["nanovllm_edu"])
            print(f"{workload!s:<20}" + "".join(f"{speed:>22.1f}" for speed in speeds)
                  + f"{ratio:>8}{1000 * first:>7.0f} ms", flush=True)
    print(f"memory of this process now: {psutil.Process().memory_info().rss / 2**20:,.0f} MiB")
    return 0


def _measure(runners: dict[str, Callable[[list[list[int]], int], Timing]], workload: Workload, vocab_size: int,
             rounds: int, seed: int) -> dict[str, list[Timing]]:
    """Each runner on the same prompts in turn, after one round that warms up and is thrown away."""
    timings: dict[str, list[Timing]] = {name: [] for name in runners}
    for turn in range(rounds + 1):
        prompts = workload.prompts(vocab_size, seed + turn)
        for name, run in runners.items():
            timing = run(prompts, workload.new_tokens if turn else 4)
            if turn:
                timings[name].append(timing)
    return timings


def _ours(llm: LLM, prompts: list[list[int]], new_tokens: int) -> Timing:
    params = SamplingParams(temperature=0, max_tokens=new_tokens, ignore_eos=True)
    start = time.perf_counter()
    outputs = llm.generate(prompts, params, use_tqdm=False)
    seconds = time.perf_counter() - start
    first = statistics.mean(output.metrics.time_to_first_token for output in outputs)
    return Timing(sum(len(output.token_ids) for output in outputs) / seconds, first)


def _load_peer(llm: LLM) -> Any:
    import transformers

    from .loading import resolve

    transformers.utils.logging.disable_progress_bar()
    dtype = getattr(torch, llm.model_info["dtype"])
    model = transformers.AutoModelForCausalLM.from_pretrained(resolve(llm.config.model), dtype=dtype)
    return model.to(llm.model_info["device"]).eval()


@torch.inference_mode()
def _peer(model: Any, prompts: list[list[int]], new_tokens: int) -> Timing:
    """Shorter prompts are padded on the left, as `generate` wants it."""
    longest = max(map(len, prompts))
    ids = torch.tensor([[0] * (longest - len(p)) + p for p in prompts], device=model.device)
    mask = torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in prompts], device=model.device)
    start = time.perf_counter()
    out = model.generate(ids, attention_mask=mask, do_sample=False, max_new_tokens=new_tokens,
                         min_new_tokens=new_tokens, eos_token_id=None, pad_token_id=0)
    return Timing((out.shape[1] - longest) * len(prompts) / (time.perf_counter() - start))
