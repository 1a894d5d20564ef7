"""The model that a newcomer gets, end to end: its answers are transformers' own on the same weights."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from nanovllm_edu import LLM, SamplingParams
from nanovllm_edu.engine import Sequence
from nanovllm_edu.engine.model_runner import prepare
from tests.engine.tiny import Reference, some_tokens

QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
STORY = [{"role": "user", "content": "Tell me a long story about a lighthouse keeper and a whale."}]


@pytest.fixture(scope="module")
def hf(packaged):
    return Reference(packaged)


@pytest.fixture(scope="module")
def llm32():
    with LLM(dtype="float32", kvcache_block_size=16, num_kvcache_blocks=64) as llm:
        yield llm


def run_logits(llm: LLM, token_ids: list[int]) -> torch.Tensor:
    runner = llm.engine.runner
    seq = Sequence(token_ids, block_size=16)
    seq.block_table, seq.num_scheduled_tokens = list(range(seq.num_blocks)), seq.num_tokens
    with torch.inference_mode():
        return runner.model.compute_logits(runner.forward(prepare([seq], 16, runner.device)))


def test_logits_equal_transformers(llm32, hf):
    """Logits reach 37 here, so fp32 alone moves them by 1e-4: transformers' own differ that much between 1 and 2
    threads. Its fp64 logits have no such noise; ours must be within 1e-4 of those."""
    llm32.reset_prefix_cache()
    token_ids = llm32.tokenizer.apply_chat_template(STORY) + some_tokens(80, seed=1, vocab_size=49152)
    assert (run_logits(llm32, token_ids) - hf.exact_logits(token_ids)).abs().max() < 1e-4


@pytest.mark.slow
def test_greedy_tokens_equal_transformers(llm32, hf):
    """200 tokens alone; then the same on a prefix hit, beside another request, with a preemption on the way."""
    prompt = llm32.tokenizer.apply_chat_template(STORY)
    want = hf.greedy(prompt, 200)
    assert len(set(want)) >= 20
    greedy = SamplingParams(temperature=0, max_tokens=200, ignore_eos=True)
    alone = llm32.generate(prompt, greedy, use_tqdm=False)[0]
    assert alone.token_ids == want
    long = SamplingParams(temperature=0, max_tokens=120, ignore_eos=True)
    other = some_tokens(780, seed=5, vocab_size=49152)  # with it the pool overflows, and the newest gives way
    beside = llm32.generate([other, prompt], [long, greedy], use_tqdm=False)[1]
    assert beside.token_ids == want
    assert beside.num_cached_tokens == 32
    assert beside.metrics.num_preemptions > 0


def test_it_says_paris():
    """On the defaults, dtype included."""
    with LLM(num_kvcache_blocks=2) as llm:
        output = llm.chat(QUESTION, SamplingParams(temperature=0))
        assert "Paris" in output.text
        assert (output.finish_reason, output["text"]) == ("eos", output.text)
        assert output.token_ids[-1] in llm.config.eos_token_ids and "<|im_end|>" not in output.text


def test_a_second_turn_hits_the_first_ones_blocks(llm32):
    llm32.reset_prefix_cache()
    first = llm32.chat(QUESTION, SamplingParams(temperature=0))
    more = [*QUESTION, {"role": "assistant", "content": first.text}, {"role": "user", "content": "And of Italy?"}]
    second = llm32.chat(more, SamplingParams(temperature=0))
    assert second.num_cached_tokens == 32 and "Rome" in second.text


def test_bf16_is_no_worse_than_transformers_in_bf16(hf, packaged):
    """Teacher-forced logits: our distance from fp32 is at most 1.25 times that of transformers' own bf16 run."""
    import transformers

    with LLM(dtype="bfloat16", kvcache_block_size=16, num_kvcache_blocks=16) as llm:
        token_ids = llm.tokenizer.apply_chat_template(STORY) + some_tokens(80, seed=1, vocab_size=49152)
        got = run_logits(llm, token_ids)
    want = hf.logits(token_ids)
    peer_model = transformers.AutoModelForCausalLM.from_pretrained(packaged, dtype=torch.bfloat16)
    with torch.inference_mode():
        peer = peer_model(torch.tensor([token_ids])).logits[0].float()
    assert (got - want).abs().mean() < 1.25 * (peer - want).abs().mean()
    assert (got.argmax(-1) == want.argmax(-1)).float().mean() > 0.9


def test_the_tokenizer_is_transformers_own(packaged):
    """Ids, text and chat template, on words, digits, spaces, emoji and code; and no transformers is imported for it."""
    import transformers

    from nanovllm_edu.loading import Tokenizer

    ours, theirs = Tokenizer(packaged), transformers.AutoTokenizer.from_pretrained(packaged)
    texts = ("Hello, world", "  two  spaces", "1234567 0x1F", "héllo 🦙🇫🇷 日本語", "def f(x):\n\treturn x+1\n",
             "<|im_end|>")
    for text in texts:
        assert ours.encode(text) == theirs.encode(text)
        assert ours.decode(ours.encode(text), skip_special_tokens=False) == text
    answer = {"role": "assistant", "content": "Paris."}
    talk = [{"role": "system", "content": "Be short."}, *QUESTION, answer, *QUESTION]
    assert ours.apply_chat_template(talk) == theirs.apply_chat_template(talk, add_generation_prompt=True)["input_ids"]


def test_a_start_imports_no_transformers(packaged):
    code = ("import sys; from nanovllm_edu import LLM; llm = LLM(num_kvcache_blocks=1); "
            "llm.tokenizer.apply_chat_template([{'role': 'user', 'content': 'Hi'}]); llm.close(); "
            "print([name for name in ('transformers', 'gguf', 'huggingface_hub') if name in sys.modules])")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
