"""Whole calls: what `generate`, `chat` and `stream` give back, and when a request ends."""

from __future__ import annotations

import pytest

from nanovllm_edu import LLM, RequestError, SamplingParams, record
from tests.engine.helpers import GREEDY, assert_empty
from tests.engine.tiny import some_tokens


def test_generate_keeps_order_and_takes_one_or_many(tiny_llm):
    llm = tiny_llm()
    params = [SamplingParams(temperature=0, max_tokens=n, ignore_eos=True) for n in (9, 2, 5)]
    outputs = llm.generate(["a", [1, 2], "ccc"], params, use_tqdm=False)
    assert [len(output.token_ids) for output in outputs] == [9, 2, 5]
    assert [output.prompt_token_ids for output in outputs] == [
        llm.tokenizer.encode("a"), [1, 2], llm.tokenizer.encode("ccc")]
    assert [output.seq_id for output in outputs] == [0, 1, 2]
    assert [output.finish_reason for output in outputs] == ["length"] * 3
    assert llm.generate([1, 2], params[1:2], use_tqdm=False)[0].token_ids == outputs[1].token_ids
    assert llm.generate([]) == []
    assert_empty(llm)


def test_output_fields_and_metrics(tiny_llm):
    llm = tiny_llm()
    [output] = llm.generate("abc", GREEDY, use_tqdm=True)
    assert output["text"] == output.text == llm.tokenizer.decode(output.token_ids)
    assert output["token_ids"] == output.token_ids
    with pytest.raises(KeyError, match="token_ids"):
        output["tokens"]
    m = output.metrics
    assert m.arrival_time <= m.first_token_time <= m.finished_time and m.num_preemptions == 0
    assert m.time_to_first_token == m.first_token_time - m.arrival_time


def test_chat_one_or_several(tiny_llm):
    llm = tiny_llm()
    talk = [{"role": "user", "content": "Hi"}]
    one = llm.chat(talk, GREEDY)
    assert llm.tokenizer.decode(one.prompt_token_ids, skip_special_tokens=False) == (
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")
    two = llm.chat([talk, [*talk, {"role": "assistant", "content": "Yes?"}, *talk]], GREEDY)
    assert two[0].token_ids == one.token_ids and len(two) == 2
    for bad, words in (([], "empty"), ("Hi", "list of messages"), ([{"role": "user"}], "message 0"),
                       ([talk, []], "conversation 1")):
        with pytest.raises(RequestError, match=words):
            llm.chat(bad)
    assert_empty(llm)


def test_eos_ends_unless_ignored(tiny_llm):
    llm = tiny_llm()
    plain = llm.generate("x", GREEDY, use_tqdm=False)[0]
    llm.scheduler.eos_token_ids = frozenset([plain.token_ids[4]])
    first = plain.token_ids.index(plain.token_ids[4])
    ended = llm.generate("x", SamplingParams(temperature=0, max_tokens=12), use_tqdm=False)[0]
    assert ended.token_ids == plain.token_ids[:first + 1] and ended.finish_reason == "eos"
    assert llm.generate("x", GREEDY, use_tqdm=False)[0].token_ids == plain.token_ids


def test_stop_token_ids(tiny_llm):
    llm = tiny_llm()
    plain = llm.generate("x", GREEDY, use_tqdm=False)[0].token_ids
    first = plain.index(plain[5])
    params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True, stop_token_ids=[plain[5]])
    output = llm.generate("x", params, use_tqdm=False)[0]
    assert output.token_ids == plain[:first + 1] and output.finish_reason == "stop"


def answer_with(llm: LLM, text: bytes) -> None:
    """Let the sampler say these bytes (a byte is a token), whatever the logits are."""
    import dataclasses

    run = llm.engine.runner.run
    said = [llm.tokenizer._fast.token_to_id(char) for char in byte_chars(text)]

    def saying(seqs, params, uniforms):
        sampled = run(seqs, params, uniforms)
        live = [seq for seq in seqs if seq.num_cached_tokens + seq.num_scheduled_tokens == seq.num_tokens]
        return dataclasses.replace(sampled, token_ids=[said[seq.num_completion_tokens] for seq in live])

    llm.engine.runner.run = saying


def byte_chars(text: bytes) -> str:
    """The letters by which a byte-level vocabulary writes bytes."""
    from tokenizers import pre_tokenizers

    [(chars, _)] = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False).pre_tokenize_str(text.decode())
    return chars


STORY = "The end, né 🦙 STOP and more".encode()


@pytest.mark.parametrize("stop,text", [
    ("STOP", "The end, né 🦙 "), (["zzz", "né"], "The end, "), ("🦙", "The end, né "), ("STOP and more!", None),
    (["d, n", "end"], "The "), ("T", ""), (["more"], "The end, né 🦙 STOP and "),
])
def test_stop_strings_across_tokens(tiny_llm, stop, text):
    llm = tiny_llm()
    answer_with(llm, STORY)
    params = SamplingParams(temperature=0, max_tokens=len(STORY), stop=stop)
    output = llm.generate("x", params, use_tqdm=False)[0]
    streamed = list(llm.stream("x", params))
    assert output.text == (STORY.decode() if text is None else text)
    assert output.finish_reason == ("length" if text is None else "stop")
    assert "".join(streamed) == output.text, "nothing that a stop string takes back may have been shown"
    assert_empty(llm)


def test_a_stop_string_in_the_last_token_changes_the_answer_and_not_the_ledger(tiny_llm):
    """The ledger ended the request at its token limit and said so: the trace and the sequence must go on agreeing."""
    llm = tiny_llm()
    answer_with(llm, STORY)
    seq_id = llm.add_request("x", SamplingParams(temperature=0, max_tokens=len(STORY), stop="more"))
    [seq] = llm.scheduler.sequences
    with record(llm) as trace:
        while not llm.is_finished():
            llm.step()
    assert llm.outputs.pop(seq_id).finish_reason == "stop"
    assert trace.frames[-1].state["seqs"][str(seq_id)]["finish_reason"] == seq.finish_reason == "length"


def test_stream_never_splits_a_character(tiny_llm):
    llm = tiny_llm()
    answer_with(llm, STORY)
    pieces = list(llm.stream("x", SamplingParams(temperature=0, max_tokens=len(STORY))))
    assert "".join(pieces) == STORY.decode() and len(pieces) == len(STORY.decode())
    cut = list(llm.stream("x", SamplingParams(temperature=0, max_tokens=STORY.index("🦙".encode()) + 2)))
    assert "".join(cut) == "The end, né \ufffd", "half a character at the very end is shown as what it is"


def test_stream_is_generate(tiny_llm):
    llm = tiny_llm()
    params = SamplingParams(temperature=0.8, max_tokens=60, seed=3)
    assert "".join(llm.stream("hello", params)) == llm.generate("hello", params, use_tqdm=False)[0].text
    talk = [{"role": "user", "content": "Hi"}]
    assert "".join(llm.stream(talk, params)) == llm.chat(talk, params).text


def test_a_stream_closed_early_or_never_begun_leaves_nothing(tiny_llm):
    llm = tiny_llm()
    llm.stream("never begun")
    stream = llm.stream("hello", SamplingParams(temperature=0, max_tokens=300, ignore_eos=True))
    next(stream)
    assert not llm.is_finished()
    stream.close()
    assert_empty(llm)
    with pytest.raises(RequestError, match="empty"):
        llm.stream("")


def test_seeds(tiny_llm):
    """The same seed draws the same tokens, alone or in a batch, whatever ran before, and also after a preemption."""
    params = SamplingParams(temperature=1.0, max_tokens=40, ignore_eos=True, seed=7)
    other = SamplingParams(temperature=1.0, max_tokens=40, ignore_eos=True)
    llm = tiny_llm(seed=1)
    alone = llm.generate("abcdefgh", params, use_tqdm=False)[0].token_ids
    batch = llm.generate(["q", "abcdefgh", "z"], [other, params, other], use_tqdm=False)
    assert batch[1].token_ids == alone and batch[0].token_ids != batch[2].token_ids
    tight = tiny_llm(num_kvcache_blocks=18)
    crowd = tight.generate(["q" * 8, "abcdefgh"], [other, params], use_tqdm=False)
    assert crowd[1].metrics.num_preemptions > 0 and crowd[1].token_ids == alone
    free = [tiny_llm(seed=s).generate("abc", other, use_tqdm=False)[0].token_ids for s in (5, 5, 6)]
    assert free[0] == free[1] != free[2], "an engine's own seed makes its runs repeatable"


def test_logprobs_come_with_every_token(tiny_llm):
    output = tiny_llm().generate("abc", SamplingParams(max_tokens=6, ignore_eos=True, logprobs=3), use_tqdm=False)[0]
    assert len(output.logprobs) == 6
    for token, logprobs in zip(output.token_ids, output.logprobs, strict=True):
        assert token in logprobs and 3 <= len(logprobs) <= 4 and max(logprobs.values()) <= 0
    assert tiny_llm().generate("abc", GREEDY, use_tqdm=False)[0].logprobs is None


def test_cache_salt_keeps_prefixes_apart(tiny_llm):
    llm = tiny_llm()
    prompt = some_tokens(13)
    hits = [llm.generate([prompt], GREEDY, use_tqdm=False, cache_salt=salt)[0].num_cached_tokens
            for salt in (None, None, "a", "b", "a", None)]
    assert hits == [0, 12, 0, 0, 12, 12]
    with pytest.raises(RequestError, match="cache_salt"):
        llm.generate([prompt], GREEDY, cache_salt=3)


def test_length_is_never_passed(tiny_llm):
    llm = tiny_llm(max_model_len=20)
    long = SamplingParams(temperature=0, max_tokens=100, ignore_eos=True)
    outputs = llm.generate([some_tokens(19), some_tokens(5)], long, use_tqdm=False)
    assert [(len(o.token_ids), o.finish_reason) for o in outputs] == [(1, "length"), (15, "length")]
    with pytest.raises(RequestError, match="max_model_len=20"):
        llm.add_request(some_tokens(20))


def test_a_request_that_outgrows_the_pool_ends_with_a_reason(tiny_llm):
    llm = tiny_llm(num_kvcache_blocks=3)
    long = SamplingParams(temperature=0, max_tokens=50, ignore_eos=True)
    output = llm.generate([some_tokens(8)], long, use_tqdm=False)[0]
    assert (output.finish_reason, len(output.token_ids)) == ("kv_exhausted", 5)
    assert_empty(llm)
