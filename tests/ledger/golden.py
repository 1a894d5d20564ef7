"""The recorded traces of the reference ledger, and the way each of them was run (see ``tests/data/golden``)."""
from __future__ import annotations

import gzip
import json
from pathlib import Path
from types import SimpleNamespace

from nanovllm_edu import SamplingParams
from nanovllm_edu.engine import Scheduler, Sequence

TRACES = Path(__file__).parents[1] / "data" / "golden" / "traces.jsonl.gz"


def load() -> list[dict]:
    with gzip.open(TRACES, "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def next_token(seq: Sequence) -> int:
    """The model's stand-in: a token that depends on the last and first token and the length."""
    return (seq.last_token * 7 + seq.token_ids[0] * 3 + seq.num_tokens) % 5


def config(**options) -> SimpleNamespace:
    return SimpleNamespace(**{"max_num_seqs": 16, "max_num_batched_tokens": 64, "eos_token_ids": (),
                              "kvcache_block_size": 4, "num_kvcache_blocks": 8, **options})


def replay(trace: dict, **options):
    """Run a recorded workload. Yields ``(scheduler, seqs, is_prefill, step)`` after schedule() and again, with
    ``is_prefill=None``, after postprocess()."""
    scheduler = Scheduler(config(
        kvcache_block_size=trace["block_size"], num_kvcache_blocks=trace["num_blocks"],
        max_num_batched_tokens=trace["max_num_batched_tokens"], max_num_seqs=trace["max_num_seqs"]), **options)
    requests = [Sequence(r["prompt"], SamplingParams(max_tokens=r["max_tokens"], ignore_eos=True),
                         trace["block_size"], seq_id=i) for i, r in enumerate(trace["requests"])]
    arrivals = sorted(range(len(requests)), key=lambda i: (trace["requests"][i]["arrival_step"], i))
    t = 0
    while arrivals or not scheduler.is_finished():
        while arrivals and trace["requests"][arrivals[0]]["arrival_step"] <= t:
            scheduler.add(requests[arrivals.pop(0)])
        if not scheduler.is_finished():
            seqs, is_prefill = scheduler.schedule()
            yield scheduler, seqs, is_prefill, t
            scheduler.postprocess(seqs, [next_token(seq) for seq in seqs], is_prefill)
            yield scheduler, seqs, None, t
        t += 1
