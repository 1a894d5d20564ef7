"""Convert a GGUF file of the Llama family into the Hugging Face layout.

GGUF holds quantised tensors, the model's sizes and its tokenizer in one file. Three things need care: tensors have
other names; rows of the query and key projections are stored in the order of the interleaved rope (llama.cpp's
`convert_hf_to_gguf.py` permutes them) and are put back; the tokenizer is rebuilt from its vocabulary and merges.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from ..errors import ModelLoadError

_SHARD_BYTES = 128 << 20  # a small shard is unmapped as soon as it is read, which keeps the peak of a start low
_BLOCK_NAMES = {
    "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_TOP_NAMES = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_CONTROL_TOKEN = 3  # gguf's TokenType.CONTROL


def convert_gguf(source: Path, folder: Path) -> None:
    """Write config.json, safetensors shards (fp32, dequantised exactly) and the tokenizer's files into `folder`.

    Raises ModelLoadError for a damaged file, and for an architecture or tokenizer that is not known here.
    """
    from gguf import GGUFReader

    try:
        reader = GGUFReader(source)
        meta = {name: value.contents() for name, value in reader.fields.items()}
    except Exception as error:  # the reader raises whatever its parsing runs into
        raise ModelLoadError(f"{source} is not a whole GGUF file ({error}); fetch it again") from error
    if meta.get("general.architecture") != "llama":
        raise ModelLoadError(f"{source} holds the architecture {meta.get('general.architecture')!r}; "
                             "GGUF files are read for 'llama' only: use a safetensors checkpoint instead")
    config = _config(meta, {tensor.name for tensor in reader.tensors})
    _write_weights(reader.tensors, config, folder)
    _write_json(folder / "config.json", config)
    _write_json(folder / "generation_config.json",
                {key: config[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id")})
    _write_tokenizer(meta, folder)


def hf_name(name: str) -> str:
    """'blk.3.attn_q.weight' → 'model.layers.3.self_attn.q_proj.weight'. Raises ModelLoadError for a stranger."""
    parts = name.split(".")
    if parts[0] == "blk" and len(parts) == 4 and parts[2] in _BLOCK_NAMES:
        return f"model.layers.{parts[1]}.{_BLOCK_NAMES[parts[2]]}.{parts[3]}"
    if len(parts) == 2 and parts[0] in _TOP_NAMES:
        return f"{_TOP_NAMES[parts[0]]}.{parts[1]}"
    raise ModelLoadError(f"the GGUF file holds a tensor {name!r} that a Llama model does not have")


def unpermute(rows: np.ndarray, num_heads: int) -> np.ndarray:
    """Put the rows of a query or key projection back from interleaved to half-split rope order.

    rows: (num_heads * head_dim, hidden). In the file, rows 2i and 2i+1 of a head are rotated together; in the Hugging
    Face layout, rows i and i + head_dim/2 are.
    """
    head_dim = rows.shape[0] // num_heads
    pairs = rows.reshape(num_heads, head_dim // 2, 2, *rows.shape[1:])
    return np.ascontiguousarray(pairs.swapaxes(1, 2).reshape(rows.shape))


def _config(meta: dict[str, Any], names: set[str]) -> dict[str, Any]:
    def size(key: str) -> Any:
        try:
            return meta[f"llama.{key}"]
        except KeyError:
            raise ModelLoadError(f"the GGUF file lacks the field 'llama.{key}'") from None

    heads, hidden = size("attention.head_count"), size("embedding_length")
    # stored as fp32; printed shortest, so that 1e-5 stays 1e-5
    epsilon = float(str(np.float32(size("attention.layer_norm_rms_epsilon"))))
    return {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "dtype": "float32",
        "hidden_size": hidden, "intermediate_size": size("feed_forward_length"),
        "num_hidden_layers": size("block_count"),
        "num_attention_heads": heads, "num_key_value_heads": size("attention.head_count_kv"),
        "head_dim": meta.get("llama.attention.key_length", hidden // heads), "rms_norm_eps": epsilon,
        "vocab_size": len(meta["tokenizer.ggml.tokens"]), "max_position_embeddings": size("context_length"),
        "rope_parameters": {"rope_type": "default", "rope_theta": float(size("rope.freq_base"))},
        "attention_bias": False, "mlp_bias": False, "tie_word_embeddings": "output.weight" not in names,
        "bos_token_id": meta.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": meta.get("tokenizer.ggml.eos_token_id"),
        "pad_token_id": meta.get("tokenizer.ggml.padding_token_id"),
    }


def _write_weights(tensors: Any, config: dict[str, Any], folder: Path) -> None:
    from gguf import dequantize
    from safetensors.numpy import save_file

    index: dict[str, int] = {}
    shard: dict[str, np.ndarray] = {}
    shards = total = 0

    def flush() -> None:
        nonlocal shards
        shards += 1
        save_file(shard, folder / f"part-{shards:02d}", metadata={"format": "pt"})
        index.update(dict.fromkeys(shard, shards))
        shard.clear()

    for tensor in tqdm(tensors, desc="nanovllm_edu: converting the model (once)", unit="tensor"):
        name = hf_name(tensor.name)
        try:
            values = dequantize(tensor.data, tensor.tensor_type).astype(np.float32, copy=False)
        except Exception as error:
            raise ModelLoadError(f"tensor {tensor.name!r} is damaged ({error}); fetch the file again") from error
        if name.endswith(("q_proj.weight", "k_proj.weight")):
            values = unpermute(values, config["num_attention_heads" if "q_proj" in name else "num_key_value_heads"])
        if shard and sum(v.nbytes for v in shard.values()) + values.nbytes > _SHARD_BYTES:
            flush()
        shard[name] = np.ascontiguousarray(values)
        total += values.nbytes
    flush()
    final = {i: f"model-{i:05d}-of-{shards:05d}.safetensors" for i in range(1, shards + 1)}
    for i, file in final.items():
        (folder / f"part-{i:02d}").rename(folder / file)
    _write_json(folder / "model.safetensors.index.json",
                {"metadata": {"total_size": total}, "weight_map": {name: final[i] for name, i in index.items()}})


def _write_tokenizer(meta: dict[str, Any], folder: Path) -> None:
    from tokenizers import AddedToken, decoders, models, pre_tokenizers
    from tokenizers import Tokenizer as FastTokenizer

    kind = (meta.get("tokenizer.ggml.model"), meta.get("tokenizer.ggml.pre"))
    if kind != ("gpt2", "smollm"):
        raise ModelLoadError(f"the GGUF file's tokenizer {kind} is not known here; use one with tokenizer.json")
    tokens: list[str] = meta["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ", 1)) for merge in meta["tokenizer.ggml.merges"]]
    tokenizer = FastTokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)])
    tokenizer.decoder = decoders.ByteLevel()
    types = meta["tokenizer.ggml.token_type"]
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False)
                                  for token, kind in zip(tokens, types, strict=True) if kind == _CONTROL_TOKEN])
    tokenizer.save(str(folder / "tokenizer.json"))
    named = {key: tokens[meta[f"tokenizer.ggml.{field}_token_id"]] for key, field in
             (("bos_token", "bos"), ("eos_token", "eos"), ("unk_token", "unknown"), ("pad_token", "padding"))}
    _write_json(folder / "tokenizer_config.json", {
        **named, "tokenizer_class": "PreTrainedTokenizerFast", "add_prefix_space": False,
        "clean_up_tokenization_spaces": False, "model_max_length": meta["llama.context_length"],
        "chat_template": meta["tokenizer.chat_template"]})


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=1, ensure_ascii=False), "utf-8")
