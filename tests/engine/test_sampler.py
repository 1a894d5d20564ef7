"""Each filter against its definition, and each request's independence of the others."""

from __future__ import annotations

import math

import pytest
import torch

from nanovllm_edu import SamplingParams
from nanovllm_edu.layers.sampler import sample

PROBABILITIES = [0.05, 0.4, 0.1, 0.3, 0.15]
LOGITS = torch.tensor([PROBABILITIES]).log()


def support(params: SamplingParams, draws: int = 500) -> dict[int, float]:
    """Share of each token over evenly spread uniform numbers: exact to 1 / draws."""
    uniforms = [(i + 0.5) / draws for i in range(draws)]
    ids = torch.tensor(sample(LOGITS.expand(draws, -1), [params] * draws, uniforms).token_ids)
    return {int(token): (ids == token).float().mean().item() for token in ids.unique()}


@pytest.mark.parametrize("params,want", [
    (dict(), {0: 0.05, 1: 0.4, 2: 0.1, 3: 0.3, 4: 0.15}),
    (dict(top_k=2), {1: 4 / 7, 3: 3 / 7}),
    (dict(top_k=1), {1: 1.0}),
    (dict(top_k=99), {0: 0.05, 1: 0.4, 2: 0.1, 3: 0.3, 4: 0.15}),
    (dict(top_p=0.69), {1: 4 / 7, 3: 3 / 7}),
    (dict(top_p=0.75), {1: 0.4 / 0.85, 3: 0.3 / 0.85, 4: 0.15 / 0.85}),
    (dict(top_p=1e-9), {1: 1.0}),
    (dict(min_p=0.3), {1: 0.4 / 0.85, 3: 0.3 / 0.85, 4: 0.15 / 0.85}),
    (dict(min_p=1.0), {1: 1.0}),
    (dict(top_k=3, top_p=0.5), {1: 4 / 7, 3: 3 / 7}),
    (dict(temperature=0.5), {i: p * p / 0.285 for i, p in enumerate(PROBABILITIES)}),
    (dict(temperature=0), {1: 1.0}),
    (dict(temperature=1e-7), {1: 1.0}),
    (dict(temperature=2e-5), {1: 1.0}),
])
def test_filters(params, want):
    got = support(SamplingParams(**params))
    assert got.keys() == want.keys()
    for token, share in want.items():
        assert got[token] == pytest.approx(share, abs=0.003)


def test_a_batch_may_mix_everything():
    params = [SamplingParams(**p) for p in (
        dict(temperature=0), dict(), dict(top_k=2), dict(temperature=0), dict(min_p=0.9))]
    uniforms = [0.99, 0.99, 0.99, 0.0, 0.99]
    together = sample(LOGITS.expand(5, -1), params, uniforms).token_ids
    assert together == [sample(LOGITS, [p], [u]).token_ids[0] for p, u in zip(params, uniforms, strict=True)]
    assert together == [1, 4, 3, 1, 1]


def test_extreme_logits_and_uniforms():
    wide = torch.tensor([[-1e30, 50.0, 49.0, -torch.inf]])
    assert sample(wide, [SamplingParams(temperature=1e-4)], [1 - 2**-53]).token_ids == [1]
    assert sample(LOGITS, [SamplingParams()], [0.0]).token_ids == [0]
    assert sample(LOGITS, [SamplingParams()], [1 - 2**-53]).token_ids == [4]
    assert sample(torch.tensor([[-torch.inf, 0.0]]), [SamplingParams()], [0.0]).token_ids == [1]


def test_logprobs_are_the_models_own():
    got = sample(LOGITS, [SamplingParams(temperature=0.1, top_k=1, logprobs=2)], [0.5]).logprobs[0]
    assert list(got) == [1, 3]
    assert got[1] == pytest.approx(math.log(0.4), abs=1e-5)
    rare = sample(LOGITS, [SamplingParams(logprobs=1)], [0.01]).logprobs[0]
    assert list(rare) == [0, 1], "the chosen token comes first when it is not among the top ones"
    assert sample(LOGITS, [SamplingParams()], [0.5]).logprobs == [None]
