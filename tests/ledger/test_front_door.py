"""The front door, without a model: every wrong option, parameter and prompt is named, with its rule and a way out.

One table; each row: what is wrong, the value as the message must name it, the rule, and the way out.
"""
from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from nanovllm_edu import SamplingParams
from nanovllm_edu.config import EngineConfig
from nanovllm_edu.engine import BlockManager, Sequence
from nanovllm_edu.errors import ConfigError, LedgerError, NanoVLLMError, RequestError
from tests.ledger.helpers import is_empty, request, run, scheduler


def option(name: str, value: Any) -> Callable[[], Any]:
    return lambda: EngineConfig.from_options(None, {name: value})


def param(name: str, value: Any) -> Callable[[], Any]:
    return lambda: SamplingParams(**{name: value})


def prompt(tokens: Any, **options: Any) -> Callable[[], Any]:
    return lambda: Sequence(tokens, **{"block_size": 4, **options})


def added(*tokens: int, block_size: int = 4, **options: Any) -> Callable[[], Any]:
    return lambda: scheduler(**options).add(request(tokens, 0, block_size=block_size))


WHOLE, FINITE, ONE_OF, TRUE_FALSE = "whole number", "finite number", "must be one of", "must be True or False"
LAST_ALL = "must be 'last' or 'all'"

OPTIONS: list[tuple[str, Any, str, str]] = [
    ("model", 5, "must be None", "a folder or a hub id"),
    ("device", "tpu", "must be 'auto'", "'cpu'"),
    ("device", "cuda:first", "must be 'auto'", "'cuda:0' (a number)"),
    ("dtype", "int8", ONE_OF, "'float32'"),
    ("dtype", "float8", ONE_OF, "'auto'"),
    ("attention_backend", "sdpa", ONE_OF, "'torch'"),
    ("scheduling_policy", "fcfs", ONE_OF, "'prefill_first', 'mixed'"),
    ("prefix_cache_duplicates", "first", ONE_OF, "'last', 'all'"),
    ("pack_weights", "yes", ONE_OF, "'auto', True, False"),
    ("pack_weights", 1, ONE_OF, "'auto', True, False"),
    ("kvcache_block_size", 1, f"{WHOLE} of at least 2", "length % block_size == 1"),
    ("kvcache_block_size", 16.0, f"{WHOLE} of at least 2", "new block begins"),
    ("kvcache_block_size", True, f"{WHOLE} of at least 2", "new block begins"),
    ("num_kvcache_blocks", 0, f"{WHOLE} of at least 1", "None sizes the pool"),
    ("num_kvcache_blocks", "8", f"{WHOLE} of at least 1", "None sizes the pool"),
    ("max_num_seqs", 0, f"{WHOLE} of at least 1", "run at once"),
    ("max_num_seqs", None, f"{WHOLE} of at least 1", "run at once"),
    ("max_num_batched_tokens", 0, f"{WHOLE} of at least 1", "tokens of one step"),
    ("max_num_batched_tokens", math.inf, f"{WHOLE} of at least 1", "tokens of one step"),
    ("max_model_len", 1, f"{WHOLE} of at least 2", "one prompt token and one new one"),
    ("gpu_memory_utilization", 0.0, "a share above 0 and at most 1", "such as 0.9"),
    ("gpu_memory_utilization", 1.5, "a share above 0 and at most 1", "such as 0.9"),
    ("gpu_memory_utilization", True, "a share above 0 and at most 1", "such as 0.9"),
    ("tensor_parallel_size", 0, f"{WHOLE} of at least 1", "1 is one process"),
    ("tensor_parallel_size", -2, f"{WHOLE} of at least 1", "1 is one process"),
    ("enforce_eager", 1, TRUE_FALSE, "True or False"),
    ("enforce_eager", None, TRUE_FALSE, "True or False"),
    ("enable_prefix_caching", "no", TRUE_FALSE, "True or False"),
    ("seed", -1, f"{WHOLE} of at least 0", "None draws a new seed"),
    ("seed", 0.5, f"{WHOLE} of at least 0", "None draws a new seed"),
    ("block_manager_class", BlockManager(2, 2), "must be a class (not an object)", "such as BlockManager"),
    ("observer", 5, "must have a method on_event(event)", "or be a list of such"),
]
UNKNOWN = [("max_num_seqz", 3, "did you mean max_num_seqs=3?"),
           ("block_size", 16, "did you mean kvcache_block_size=16?"),
           ("eos_token_ids", (1,), "options are: device, dtype"), ("asked_for", (), "options are: device, dtype"),
           ("zzz", 1, "options are: device, dtype")]
PARAMS: list[tuple[str, Any, str, str]] = [
    ("temperature", -0.1, f"{FINITE}, at least 0", "0 is greedy"),
    ("temperature", math.nan, f"{FINITE}, at least 0", "0 is greedy"),
    ("temperature", math.inf, f"{FINITE}, at least 0", "0 is greedy"),
    ("temperature", "hot", f"{FINITE}, at least 0", "0 is greedy"),
    ("temperature", True, f"{FINITE}, at least 0", "0 is greedy"),
    ("max_tokens", 0, f"{WHOLE}, at least 1", "ask for at least one token"),
    ("max_tokens", -5, f"{WHOLE}, at least 1", "ask for at least one token"),
    ("max_tokens", 2.0, f"{WHOLE}, at least 1", "ask for at least one token"),
    ("max_tokens", None, f"{WHOLE}, at least 1", "ask for at least one token"),
    ("ignore_eos", 1, TRUE_FALSE, "True or False"),
    ("top_k", -1, f"{WHOLE}, at least 0", "0 keeps all tokens"),
    ("top_k", 1.5, f"{WHOLE}, at least 0", "0 keeps all tokens"),
    ("top_p", 0.0, f"{FINITE}, above 0, at most 1", "1.0 keeps all tokens"),
    ("top_p", 1.1, f"{FINITE}, above 0, at most 1", "1.0 keeps all tokens"),
    ("min_p", -0.1, f"{FINITE}, at least 0, at most 1", "0.0 keeps all tokens"),
    ("min_p", 1.1, f"{FINITE}, at least 0, at most 1", "0.0 keeps all tokens"),
    ("seed", -1, f"{WHOLE}, from 0 to", "None draws from the engine's own generator"),
    ("seed", 2**63, f"{WHOLE}, from 0 to", "None draws from the engine's own generator"),
    ("stop", 7, "must be a string or several strings", "for example stop="),
    ("stop_token_ids", "eos", "must be token ids", "for example stop_token_ids=[2]"),
    ("logprobs", 21, f"{WHOLE}, from 0 to 20", "0 reports none"),
    ("logprobs", -1, f"{WHOLE}, from 0 to 20", "0 reports none"),
]
INSIDE = [  # one wrong item in a list
    (param("stop", ["a", ""]), "stop holds ''", "a string of at least one character"),
    (param("stop", ["a", 5]), "stop holds 5", "a string of at least one character"),
    (param("stop_token_ids", [3, -1]), "stop_token_ids holds=-1", WHOLE),
    (param("stop_token_ids", [3, "4"]), "stop_token_ids holds='4'", WHOLE),
]
PROMPTS: list[tuple[Callable[[], Any], str, str, str]] = [
    (prompt([]), "no tokens", "at least one", "no last token to continue"),
    (prompt(()), "no tokens", "at least one", "no last token to continue"),
    (prompt(np.array([], dtype=int)), "no tokens", "at least one", "no last token to continue"),
    (prompt([1, True]), "token True", "whole numbers of at least 0", "through the tokenizer first"),
    (prompt([1, 2.5]), "token 2.5", "whole numbers of at least 0", "through the tokenizer first"),
    (prompt([1, 2.0]), "token 2.0", "whole numbers of at least 0", "through the tokenizer first"),
    (prompt([1, -1]), "token -1", "whole numbers of at least 0", "through the tokenizer first"),
    (prompt([1, "2"]), "token '2'", "whole numbers of at least 0", "through the tokenizer first"),
    (prompt("hello"), "token 'h'", "whole numbers of at least 0", "through the tokenizer first"),
    (prompt([[1, 2], [3]]), "token [1, 2]", "whole numbers of at least 0", "through the tokenizer first"),
    (prompt(np.array([1.0])), "token ", "whole numbers of at least 0", "through the tokenizer first"),
    (prompt([1], block_size=1), "block_size=1", "at least 2", "never true"),
    (added(*range(9), num_kvcache_blocks=2), "9 tokens", "the whole pool has 2", "raise num_kvcache_blocks"),
    (added(*range(8), max_model_len=8), "8 tokens", "max_model_len=8 leaves no room", "shorten it to 7 tokens"),
    (added(*range(9), max_model_len=8), "9 tokens", "max_model_len=8 leaves no room", "or raise max_model_len"),
    (added(1, 2, block_size=8), "blocks of 8 tokens", "the pool's blocks hold 4", "Sequence(..., block_size=4)"),
]
SCHEDULERS = [
    (name, value, "must be at least 1", "nothing could ever run")
    for name in ("max_num_seqs", "max_num_batched_tokens", "num_kvcache_blocks") for value in (0, -1, None)
] + [("scheduling_policy", "fcfs", "must be 'prefill_first' or 'mixed'", "mixed"),
     ("prefix_cache_duplicates", "first", LAST_ALL, "all"),
     ("kvcache_block_size", 1, "must be at least 2", "never true")]


def table() -> list[tuple[type, Callable[[], Any], str, str, str]]:
    rows = [(ConfigError, (lambda: EngineConfig.from_options(5, {})) if name == "model" else option(name, value),
             f"{name}={value!r}", rule, way_out) for name, value, rule, way_out in OPTIONS]
    rows += [(ConfigError, option(name, value), f"unknown option {name!r}", "unknown option", way_out)
             for name, value, way_out in UNKNOWN]
    rows += [(RequestError, param(name, value), f"{name}={value!r}", rule, way_out)
             for name, value, rule, way_out in PARAMS]
    rows += [(RequestError, call, value, rule, "") for call, value, rule in INSIDE]
    rows += [(RequestError, *row) for row in PROMPTS]
    rows += [(ConfigError, lambda name=name, value=value: scheduler(**{name: value}),
              f"{name.removeprefix('kvcache_')}={value!r}", rule, way_out) for name, value, rule, way_out in SCHEDULERS]
    return rows


TABLE = table()


@pytest.mark.parametrize("number", range(len(TABLE)))
def test_wrong_input_is_refused_by_value_rule_and_way_out(number: int) -> None:
    kind, call, value, rule, way_out = TABLE[number]
    with pytest.raises(kind) as caught:
        call()
    message = str(caught.value)
    assert [part for part in (value, rule, way_out) if part not in message] == [], message
    assert isinstance(caught.value, NanoVLLMError) and isinstance(caught.value, ValueError)


def test_the_table_is_long_and_leaves_nothing_out() -> None:
    assert len(TABLE) >= 60
    assert {name for name, *_ in OPTIONS} == {"model", *EngineConfig.option_names()}
    assert {name for name, *_ in PARAMS} == set(SamplingParams.__dataclass_fields__)


def test_the_scheduler_is_usable_after_each_refusal() -> None:
    sch = scheduler(num_kvcache_blocks=3, max_model_len=20)
    sch.add(first := request([1, 2], 0, 3))
    for i, tokens in enumerate((range(13), range(20), range(100)), 1):
        with pytest.raises(RequestError):
            sch.add(request(tokens, i))
    for wrong in (first, request([1], 0), request([1], 7, block_size=8)):
        with pytest.raises(RequestError):
            sch.add(wrong)
    assert [seq.seq_id for seq in sch.waiting] == [0] and len(sch.sequences) == 1
    run(sch)
    assert first.finish_reason == "length" and is_empty(sch)
    with pytest.raises(RequestError, match="request 0 was added before: make a new Sequence for each request"):
        sch.add(first)
    half = request([1], 9)
    half.block_table = [0]
    with pytest.raises(RequestError, match="request 9 was added before"):
        sch.add(half)
    assert is_empty(sch)


def test_what_stands_at_the_limit_is_served() -> None:
    for tokens, options in ((range(8), {"num_kvcache_blocks": 2}), (range(7), {"max_model_len": 8}), ([0], {})):
        sch = scheduler(**options)
        sch.add(seq := request(tokens, 0, 1))
        run(sch)
        assert seq.finish_reason == "length" and seq.num_completion_tokens == 1
    scheduler(max_num_seqs=1, max_num_batched_tokens=1, num_kvcache_blocks=1, kvcache_block_size=2)


def test_a_batch_and_its_tokens_must_be_as_long_as_each_other() -> None:
    sch = scheduler()
    sch.add(seq := request([1, 2], 0, 1))
    seqs, is_prefill = sch.schedule()
    for tokens in ([], [1, 2]):
        with pytest.raises(LedgerError, match=f"{len(tokens)} tokens for 1 sequences: give one for each"):
            sch.postprocess(seqs, tokens, is_prefill)
    sch.postprocess(seqs, [1], is_prefill)
    assert seq.finish_reason == "length"
    assert sch.schedule() == ([], False) and sch.step == 1 and not sch.in_step


def test_a_manager_that_loses_blocks_is_told_instead_of_a_livelock() -> None:
    class Lossy(BlockManager):
        def can_allocate(self, seq: Sequence) -> int:
            return -1

    sch = scheduler(Lossy)
    sch.add(request([1], 5))
    with pytest.raises(LedgerError, match=r"requests \[5\] wait, nothing runs, and still none fits: the block manager "
                                          r"lost blocks \(8 of 8 are free\)"):
        sch.schedule()
