"""Record a small run of the real scheduler, without a model, for the view's tests: tests/data/traces/small.json.

    .venv/bin/python tests/js/make_fixture.py

The run holds what the view must be able to tell: shared and revived blocks, a chunked prefill, evicted entries, a
preemption, requests that wait, finish and are aborted. "states" are walks of the scheduler's real objects by frame.
"""
from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

from nanovllm_edu import SamplingParams
from nanovllm_edu.engine import Scheduler, Sequence
from nanovllm_edu.trace import record, snapshot
from nanovllm_edu.widgets import Feed

TARGET = Path(__file__).resolve().parent.parent / "data" / "traces" / "small.json"
WORDS: dict[str, int] = {}
SYSTEM = "You are a helpful assistant. Answer in one short sentence.\n"
ANSWERS = {
    0: " The capital of France is Paris, a city on the Seine.", 1: " The capital of Italy is Rome.",
    2: " Water boils at 100 degrees Celsius at sea level, and lower in the mountains.",
    3: " Cats sleep for most of the day.", 4: " Paris has about two million people.",
}


def tokens(text: str) -> list[int]:
    """Words as tokens, each with the space before it."""
    pieces, piece = [], ""
    for character in text:
        if character in " \n.,?" and piece:
            pieces.append(piece)
            piece = ""
        piece += character
    return [WORDS.setdefault(piece, len(WORDS) + 100) for piece in [*pieces, piece]]


def drive(scheduler: Scheduler, states: dict[int, dict], trace, prompts: dict[int, tuple[int, str]]) -> None:
    """Add each prompt before its step and let scripted answers stand in for the model, until all is done."""
    answers = {seq_id: tokens(text) for seq_id, text in ANSWERS.items()}
    step = 0
    while prompts or not scheduler.is_finished():
        for seq_id, (at, text) in list(prompts.items()):
            if at <= step:
                params = SamplingParams(max_tokens=len(answers[seq_id]), ignore_eos=True)
                scheduler.add(Sequence(tokens(text), params, scheduler.block_size, seq_id=seq_id))
                del prompts[seq_id]
        seqs, is_prefill = scheduler.schedule()
        scheduler.postprocess(seqs, [answers[s.seq_id][min(s.num_completion_tokens, len(answers[s.seq_id]) - 1)]
                                     for s in seqs], is_prefill)
        states[len(trace.events)] = snapshot(scheduler)
        if step == 16:
            scheduler.abort(3)
            states[len(trace.events)] = snapshot(scheduler)
        step += 1


def main() -> None:
    config = SimpleNamespace(max_num_seqs=4, max_num_batched_tokens=20, eos_token_ids=(), kvcache_block_size=4,
                             num_kvcache_blocks=14)
    scheduler = Scheduler(config)
    states: dict[int, dict] = {}
    with record(scheduler) as trace:
        drive(scheduler, states, trace, {
            0: (0, SYSTEM + "What is the capital of France?"), 1: (1, SYSTEM + "What is the capital of Italy?"),
            2: (1, "When does water boil?"), 3: (6, SYSTEM + "Why do cats sleep?"),
            4: (20, SYSTEM + "What is the capital of France?" + ANSWERS[0][:32] + ". How many people live there?"),
        })
    trace = type(trace)(trace.initial, trace.events, trace.info, {token: word for word, token in WORDS.items()})
    feed = Feed(trace)
    message = feed.message(0, len(trace.events))
    TARGET.parent.mkdir(parents=True, exist_ok=True)
    TARGET.write_text(json.dumps({"initial": trace.initial, "chunk": message, "states": states}, ensure_ascii=False,
                                 separators=(",", ":")) + "\n", encoding="utf-8")
    kinds: dict[str, int] = {}
    for event in trace.events:
        kinds[type(event).__name__] = kinds.get(type(event).__name__, 0) + 1
    print(f"{len(trace.events)} events, {TARGET.stat().st_size // 1024} KB:", kinds)


if __name__ == "__main__":
    main()
