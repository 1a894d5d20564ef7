"""Tiny random checkpoints in the Hugging Face layout, written by transformers itself, and its answers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

VOCAB_SIZE = 320
CHAT_TEMPLATE = ("{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + "
                 "'<|im_end|>\\n' }}{% endfor %}"
                 "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}")
SIZES: dict[str, Any] = dict(
    vocab_size=VOCAB_SIZE, hidden_size=48, intermediate_size=96, num_hidden_layers=3, num_attention_heads=6,
    num_key_value_heads=2, head_dim=8, max_position_embeddings=1024, tie_word_embeddings=True, bos_token_id=256,
    eos_token_id=257, pad_token_id=256)
LLAMA3_ROPE = {"rope_type": "llama3", "rope_theta": 10000.0, "factor": 4.0, "low_freq_factor": 1.0,
               "high_freq_factor": 4.0, "original_max_position_embeddings": 64}
FAMILIES = {
    "llama": ("Llama", {}),
    "llama-untied-biased": ("Llama", dict(tie_word_embeddings=False, attention_bias=True, mlp_bias=True)),
    "llama3-rope": ("Llama", dict(rope_parameters=LLAMA3_ROPE)),
    "llama-linear-rope": ("Llama", dict(rope_parameters={"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0})),
    "qwen2": ("Qwen2", dict(use_sliding_window=False)),
    "qwen2-one-key-head": ("Qwen2", dict(use_sliding_window=False, num_key_value_heads=1, tie_word_embeddings=False)),
    "qwen3": ("Qwen3", dict(head_dim=16)),
}


def make_checkpoint(folder: Path, family: str = "llama", shards: bool = False) -> Path:
    """Write a checkpoint of a family, with random weights large enough that its greedy text wanders."""
    import transformers

    kind, changes = FAMILIES[family]
    config = getattr(transformers, f"{kind}Config")(**{**SIZES, **changes})
    torch.manual_seed(20)
    model = getattr(transformers, f"{kind}ForCausalLM")(config).float()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith("bias"):
                weight.normal_(0, 0.1)
            elif weight.dim() > 1:
                weight.normal_(0, 0.3 if "embed" in name or "lm_head" in name else 0.4)
            else:
                weight.uniform_(0.8, 1.2)
    model.save_pretrained(folder, max_shard_size="40KB" if shards else "1GB")
    write_tokenizer(folder)
    return folder


def write_tokenizer(folder: Path) -> None:
    """A tokenizer of bytes: ids 0 to 255 are bytes, then three special tokens."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({char: i for i, char in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(t, special=True) for t in ("<|im_start|>", "<|im_end|>", "<|pad|>")])
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({
        "tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>", "chat_template": CHAT_TEMPLATE}))


class Reference:
    """transformers' own model of a checkpoint, in fp32."""

    def __init__(self, folder: Path) -> None:
        import transformers

        self.model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()

    @torch.inference_mode()
    def logits(self, token_ids: list[int]) -> torch.Tensor:
        """(tokens, vocab_size)"""
        return self.model(torch.tensor([token_ids])).logits[0]

    def exact_logits(self, token_ids: list[int]) -> torch.Tensor:
        """(tokens, vocab_size), computed in fp64: what fp32 results scatter around, transformers' own included."""
        self.model.double()
        try:
            return self.logits(token_ids)
        finally:
            self.model.float()  # exact: the weights came from fp32

    @torch.inference_mode()
    def greedy(self, token_ids: list[int], count: int) -> list[int]:
        """`count` tokens after the prompt, an end-of-sequence token being one as any other."""
        out = self.model.generate(torch.tensor([token_ids]), attention_mask=torch.ones(1, len(token_ids)),
                                  do_sample=False, max_new_tokens=count, eos_token_id=None, pad_token_id=0)
        return out[0, len(token_ids):].tolist()


def some_tokens(count: int, seed: int = 0, vocab_size: int = VOCAB_SIZE) -> list[int]:
    """Random token ids."""
    return torch.randint(0, vocab_size, (count,), generator=torch.Generator().manual_seed(seed)).tolist()
