"""A sentence for every event, and text that stays text."""
from __future__ import annotations

import re
from collections import Counter
from dataclasses import fields
from itertools import pairwise
from string import ascii_uppercase

import pytest

from nanovllm_edu.engine import events as ev
from nanovllm_edu.render import parts, plain, sentence, sentence_text, seq_name, strings
from nanovllm_edu.trace import record, snapshot
from nanovllm_edu.trace.recorder import start
from tests.ledger import golden

TRACES = golden.load()
HASH = 0x0878ABCD12345678


def events_of(trace: dict) -> list[ev.Event]:
    recorded = None
    for scheduler, *_ in golden.replay(trace):
        recorded = recorded or start(scheduler)
    return recorded.events


@pytest.fixture(scope="module")
def all_events() -> list[ev.Event]:
    return [event for trace in TRACES for event in events_of(trace)]


def test_every_event_of_all_recorded_runs_has_a_whole_sentence(all_events) -> None:
    kinds = Counter(type(event).__name__ for event in all_events)
    assert len(kinds) >= 18 and kinds.total() > 50_000
    for event in all_events:
        said = sentence_text(event)
        assert said and "None" not in said and not re.search(r"[{}`]|\*\*|  ", said), said
        assert said.endswith((".", *"0123456789")), said


def of(kind: str, **values) -> ev.Event:
    """An event of which only the values that a sentence needs are given."""
    blank = {"int": 0, "int | None": None, "str": "", "bool": False, "tuple[int, ...]": (), "SourceLine | None": None}
    return ev.EVENT_TYPES[kind](**{f.name: values.get(f.name, blank[f.type]) for f in fields(ev.EVENT_TYPES[kind])})


EVERY = [
    ev.RequestAdded(seq_id=0, token_ids=(1, 2), max_tokens=3, waiting_prev=None),
    ev.RequestRefused(seq_id=1, num_tokens=9, reason="the prompt is too long."),
    ev.RequestScheduled(seq_id=1, num_scheduled_tokens_before=0, num_scheduled_tokens_after=1, is_prefill_before=True,
                        is_prefill_after=False, admitted=False),
    of("RequestPreempted", seq_id=1, for_seq_id=0, num_preemptions_after=1),
    *(ev.RequestFinished(seq_id=1, reason=reason, status_before="RUNNING", num_scheduled_tokens_before=0,
                         queue_prev=None) for reason in ("eos", "stop", "length", "aborted", "kv_exhausted", "bored")),
    *(of("RequestRestored", seq_id=1, removed_token_ids=removed) for removed in ((), (5,))),
    ev.QueuesRestored(waiting=(0, 1)), ev.QueuesRestored(waiting=()),
    *(ev.PrefixLookup(seq_id=1, logical=2, token_ids=(1, 2), parent_hash=-1, hash=HASH, outcome=outcome, block_id=3)
      for outcome in ("hit_used", "hit_free", "collision")),
    ev.PrefixLookup(seq_id=1, logical=2, token_ids=(1, 2), parent_hash=-1, hash=HASH, outcome="miss", block_id=None),
    ev.PrefixLookup(seq_id=1, logical=2, token_ids=(1,), parent_hash=HASH, hash=-1, outcome="last_block",
                    block_id=None),
    ev.AllocationDenied(seq_id=1, num_needed_blocks=1, num_free_blocks=0),
    ev.PrefixReused(seq_id=1, num_cached_tokens_before=0, num_cached_tokens_after=8),
    *(ev.EntryEvicted(block_id=3, hash=HASH, block_id_after=after) for after in (None, 4)),
    *(ev.BlockTaken(seq_id=1, logical=0, block_id=3, ref_count_before=0, ref_count_after=1, hash_before=before,
                    token_ids_before=()) for before in (-1, HASH)),
    ev.BlockShared(seq_id=1, logical=0, block_id=3, ref_count_before=1, ref_count_after=2),
    *(ev.BlockRevived(seq_id=1, logical=1, block_id=3, ref_count_before=0, ref_count_after=1, queue_prev=before,
                      queue_next=after) for before in (None, 7) for after in (None, 13)),
    *(ev.BlockRegistered(seq_id=1, logical=0, block_id=3, parent_hash=parent, hash_before=-1, hash=HASH,
                         token_ids_before=(), token_ids=(1, 2), block_id_before=old)
      for parent in (-1, HASH) for old in (None, 4)),
    *(ev.BlockReleased(seq_id=1, logical=0, block_id=3, ref_count_before=after + 1, ref_count_after=after)
      for after in (0, 1)),
    *(ev.BlockReturned(block_id=3, queue_prev=before) for before in (None, 4)),
    ev.TableCleared(seq_id=1, block_table_before=tuple(range(20)), num_cached_tokens_before=8),
    ev.BlockForgotten(block_id=3, hash_before=HASH, token_ids_before=(1, 2)),
    ev.LedgerReset(num_blocks=8, block_size=4),
    of("StepBegan", step_after=1),
    *(ev.BatchScheduled(step=1, phase=phase, seq_ids=(0, 1), num_tokens=5) for phase in ("prefill", "decode", "mixed")),
    ev.BatchScheduled(step=1, phase="decode", seq_ids=(), num_tokens=0),
    ev.TokensComputed(seq_id=1, num_cached_tokens_before=4, num_cached_tokens_after=5, num_scheduled_tokens_before=1),
    ev.TokenAppended(seq_id=1, token_id=7, num_tokens_before=4, num_tokens_after=5),
    *(of("StepEnded", step=1, failed=failed) for failed in (False, True)),
]


def test_every_kind_and_every_variant_is_told() -> None:
    assert {type(event).__name__ for event in EVERY} == set(ev.EVENT_TYPES)
    told = set()
    for event in EVERY:
        assert "None" not in sentence_text(event)
        told.add(sentence_text(event))
    assert len(told) == len(EVERY)


def test_every_sentence_of_the_catalogue_is_used_by_some_event(monkeypatch) -> None:
    used = set()
    real = parts.say
    monkeypatch.setattr("nanovllm_edu.render.sentences.say",
                        lambda key, *args, **values: used.add(key) or real(key, *args, **values))
    first = ev.RequestAdded(seq_id=1, token_ids=(1,), max_tokens=3, waiting_prev=0)
    prefill = {"seq_id": 1, "num_scheduled_tokens_before": 0, "num_scheduled_tokens_after": 4,
               "is_prefill_before": True, "is_prefill_after": True}
    own = of("RequestPreempted", seq_id=1, for_seq_id=1, num_preemptions_after=1)
    for event in [None, *EVERY, first, own, ev.RequestScheduled(**prefill, admitted=True),
                  ev.RequestScheduled(**prefill, admitted=False)]:
        sentence(event)
    events = {key for key in strings.ENGLISH if key.split(".")[0] in ev.EVENT_TYPES}
    assert events <= used and len(events) > 40


HIT = of("PrefixLookup", seq_id=1, logical=2, hash=HASH, outcome="hit_free", block_id=3)


@pytest.mark.parametrize(("event", "said"), [
    (HIT, "B looks up its logical block 2: hash 0878… is in the map and its whole prefix matches: block #3, "
                "free but still cached."),
    (ev.BlockRevived(seq_id=1, logical=1, block_id=3, ref_count_before=0, ref_count_after=1, queue_prev=7,
                     queue_next=13),
     "B lifts block #3 out of the middle of the free queue (between #7 and #13) as its logical block 1. "
     "ref_count 0 → 1"),
    (ev.AllocationDenied(seq_id=27, num_needed_blocks=2, num_free_blocks=1),
     "AB needs 2 free blocks and the free queue holds 1: it keeps waiting, and so do all behind it."),
])
def test_sentences_word_for_word(event, said: str) -> None:
    assert sentence_text(event) == said


def test_parts_carry_what_a_view_lights_up() -> None:
    found = sentence(HIT)
    assert {"seq": 1, "text": "B"} in found
    assert {"block": 3, "text": "#3"} in found
    assert {"hash": "0878abcd12345678", "text": "0878…"} in found
    assert {"b": "free but still cached"} in found
    shared = sentence(ev.BlockShared(seq_id=1, logical=0, block_id=3, ref_count_before=1, ref_count_after=2))
    assert {"code": "ref_count 1 → 2"} in shared


def test_a_token_can_not_become_a_part_of_its_own() -> None:
    evil = "**b** `c` {seq} <img src=x onerror=alert(1)>\n"
    appended = ev.TokenAppended(seq_id=1, token_id=7, num_tokens_before=4, num_tokens_after=5)
    found = sentence(appended, {7: evil})
    assert [part for part in found if isinstance(part, dict) and set(part) == {"b"}] == []
    assert {"code": f"{evil!r} (id 7)"} in found
    refused = sentence(ev.RequestRefused(seq_id=1, num_tokens=9, reason=evil))
    assert evil in refused
    assert plain(refused).count("<img") == 1


def test_an_event_without_a_sentence_says_where_to_write_one() -> None:
    with pytest.raises(TypeError, match="no sentence for Event: add one in"):
        sentence(ev.Event())


def test_names_of_requests_count_like_columns() -> None:
    names = [seq_name(i) for i in range(800)]
    assert names[:26] == list(ascii_uppercase) and names[26:28] == ["AA", "AB"]
    assert (names[701], names[702]) == ("ZZ", "AAA")
    assert all((len(a), a) < (len(b), b) for a, b in pairwise(names))
    with pytest.raises(ValueError, match="counted from 0"):
        seq_name(-1)


def test_a_recording_starts_with_a_sentence_too() -> None:
    for scheduler, *_ in golden.replay(TRACES[0]):
        with record(scheduler) as trace:
            pass
        break
    assert trace.initial == snapshot(scheduler)
    assert sentence_text(trace.frames[0].event) == "The start: nothing has happened yet."
