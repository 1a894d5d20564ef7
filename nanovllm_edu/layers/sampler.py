"""From logits to one token per request: greedy, temperature, top-k, top-p, min-p, and log-probabilities.

Every request brings its own uniform number, so what it draws depends on nobody else in the batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..sampling_params import SamplingParams
from .compiled import compiled


@dataclass(frozen=True)
class Sampled:
    """token_ids: one per row. logprobs: per row, {token id: log-probability} of the chosen and the top n, or None."""

    token_ids: list[int]
    logprobs: list[dict[int, float] | None]


def sample(logits: Tensor, params: Sequence[SamplingParams], uniforms: Sequence[float]) -> Sampled:
    """Choose a token for each row of logits (rows, vocab_size), fp32.

    uniforms: a number in [0, 1) for each row; greedy rows ignore theirs. Log-probabilities are those of the model
    itself, before temperature and filters.
    """
    tokens = logits.argmax(-1)
    random = [i for i, p in enumerate(params) if not p.is_greedy]
    if random:
        rows = torch.tensor(random, device=logits.device)
        tokens[rows] = _draw(logits[rows], [params[i] for i in random], [uniforms[i] for i in random])
    token_ids: list[int] = tokens.tolist()
    return Sampled(token_ids, [_logprobs(logits[i], token_ids[i], p.logprobs) if p.logprobs else None
                               for i, p in enumerate(params)])


def _draw(logits: Tensor, params: list[SamplingParams], uniforms: list[float]) -> Tensor:
    """Inverse-transform sampling: the first token at which the cumulated probability exceeds the uniform number."""
    def column(values: list[float]) -> Tensor:
        return torch.tensor(values, dtype=torch.float32, device=logits.device).unsqueeze(1)

    logits = tempered(logits, column([p.temperature for p in params]))
    if any(p.top_k or p.top_p < 1.0 for p in params):
        logits = _keep_top(logits, params)
    if any(p.min_p for p in params):
        logits = logits.masked_fill(logits < column([p.min_p for p in params]).log(), -torch.inf)
    cumulated = logits.softmax(-1).double().cumsum(-1)
    target = torch.tensor(uniforms, dtype=torch.float64, device=logits.device).unsqueeze(1) * cumulated[:, -1:]
    return torch.searchsorted(cumulated, target, right=True).squeeze(1).clamp_(max=logits.shape[-1] - 1)


@compiled
def tempered(logits: Tensor, temperatures: Tensor) -> Tensor:
    """logits / temperature, each row moved so that its largest is 0."""
    logits = logits / temperatures
    return logits - logits.amax(-1, keepdim=True)  # a tiny temperature must not overflow to inf - inf


def _keep_top(logits: Tensor, params: list[SamplingParams]) -> Tensor:
    """Set the logits outside of each row's top-k, and then outside of its top-p nucleus, to -inf."""
    vocab = logits.shape[-1]
    ordered, order = logits.sort(dim=-1, descending=True, stable=True)
    rank = torch.arange(vocab, device=logits.device)
    limit = torch.tensor([min(p.top_k, vocab) or vocab for p in params], device=logits.device).unsqueeze(1)
    ordered = ordered.masked_fill(rank >= limit, -torch.inf)
    probabilities = ordered.softmax(-1)
    before = probabilities.cumsum(-1) - probabilities  # mass of the more probable tokens: the first is always kept
    nucleus = torch.tensor([p.top_p if p.top_p < 1.0 else 2.0 for p in params], device=logits.device).unsqueeze(1)
    ordered = ordered.masked_fill(before >= nucleus, -torch.inf)
    return torch.empty_like(logits).scatter_(-1, order, ordered)


def _logprobs(logits: Tensor, chosen: int, count: int) -> dict[int, float]:
    values = logits.log_softmax(-1)
    top, ids = values.topk(min(count, values.shape[-1]))
    found = dict(zip(ids.tolist(), top.tolist(), strict=True))
    return found if chosen in found else {chosen: values[chosen].item(), **found}
