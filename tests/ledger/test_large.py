"""The same ledger with numbers beyond 256, where two equal integers need not be one object."""
from __future__ import annotations

import pytest

from nanovllm_edu.engine.events import (
    AllocationDenied,
    BlockRevived,
    BlockShared,
    RequestPreempted,
    RequestScheduled,
    StepEnded,
)
from nanovllm_edu.fuzz import Request, Workload
from nanovllm_edu.fuzz.runner import run as run_workload
from tests.ledger.helpers import Log, request, run, scheduler, step


class Seen(set):
    def on_event(self, event) -> None:
        self.add(type(event))
        if isinstance(event, RequestScheduled) and event.is_prefill_after and not event.admitted:
            self.add("chunk")


def prompt(first: int, length: int) -> tuple[int, ...]:
    return tuple((first + i * i) % 3 for i in range(length))


@pytest.mark.parametrize("policy", ["prefill_first", "mixed"])
def test_many_blocks_and_long_prompts(policy: str) -> None:
    stem = prompt(0, 300)
    requests = (Request(stem + prompt(1, 7), 30, 0), Request(stem + prompt(2, 9), 40, 2),
                Request(prompt(5, 330), 30, 2), Request(stem + prompt(1, 9), 5, 45))
    seen = Seen()
    outputs = run_workload(Workload(2, 345, 290, 3, requests, policy=policy), observers=[seen])
    assert [len(outputs[i]) for i in range(4)] == [30, 40, 30, 5]
    assert {RequestPreempted, AllocationDenied, BlockShared, BlockRevived, "chunk"} <= seen


def test_blocks_of_more_than_256_tokens() -> None:
    requests = tuple(Request(prompt(0, length), 6, i) for i, length in enumerate((299, 300, 301, 601, 600)))
    outputs = run_workload(Workload(300, 5, 400, 3, requests))
    assert [len(outputs[i]) for i in range(5)] == [6] * 5


def test_more_than_256_generated_tokens_and_the_limits_beyond() -> None:
    for options, params, reason, tokens in (
            ({"num_kvcache_blocks": 300}, {"max_tokens": 300}, "length", 300),
            ({"num_kvcache_blocks": 300, "max_model_len": 400}, {"max_tokens": 999}, "length", 390),
            ({"num_kvcache_blocks": 80}, {"max_tokens": 999}, "kv_exhausted", 311),
            ({"num_kvcache_blocks": 300, "eos_token_ids": (1000,)}, {"max_tokens": 999, "ignore_eos": False}, "eos", 1),
            ({"num_kvcache_blocks": 300}, {"max_tokens": 999, "stop_token_ids": [1000]}, "stop", 1)):
        sch = scheduler(**options)
        sch.add(seq := request(range(10), 0, **params))
        if reason in ("eos", "stop"):
            step(sch, {0: int("1000")})
        run(sch, 700)
        assert (seq.finish_reason, seq.num_completion_tokens) == (reason, tokens)


def test_a_step_that_failed_says_so() -> None:
    sch = scheduler()
    log = Log(sch)
    sch.add(seq := request([1, 2], 0, 2))
    sch.schedule()
    sch.recover({0: (seq, 2)})
    run(sch)
    assert [(event.failed, event.phase_before) for event in log.of(StepEnded)] == [
        (True, "prefill"), (False, "prefill"), (False, "decode")]
