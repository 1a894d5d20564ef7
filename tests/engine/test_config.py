"""Options of the engine: each has its rule, and the error names the value and a way out."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from nanovllm_edu import LLM, ConfigError
from nanovllm_edu.config import EngineConfig
from nanovllm_edu.engine import devices


@pytest.mark.parametrize("options,words", [
    (dict(max_num_seqz=3), "'max_num_seqz': did you mean max_num_seqs=3"),
    (dict(kvcache_blocksize=16), "kvcache_block_size"),
    (dict(q=1), "options are: device"),
    (dict(device="tpu"), "device='tpu'"), (dict(device="cuda:x"), "device='cuda:x'"),
    (dict(dtype="int8"), "dtype='int8'"),
    (dict(attention_backend="sdpa"), "attention_backend='sdpa'"),
    (dict(scheduling_policy="fair"), "scheduling_policy='fair'.*'prefill_first', 'mixed'"),
    (dict(prefix_cache_duplicates="none"), "'last', 'all'"),
    (dict(pack_weights=1), "pack_weights=1"),
    (dict(kvcache_block_size=1), "kvcache_block_size=1.*at least 2"), (dict(kvcache_block_size=True), "True"),
    (dict(num_kvcache_blocks=0), "num_kvcache_blocks=0"), (dict(num_kvcache_blocks=1.5), "1.5"),
    (dict(max_num_seqs=0), "max_num_seqs=0"), (dict(max_num_batched_tokens=0), "max_num_batched_tokens=0"),
    (dict(max_model_len=1), "max_model_len=1"),
    (dict(gpu_memory_utilization=0), "gpu_memory_utilization=0"), (dict(gpu_memory_utilization=1.1), "1.1"),
    (dict(gpu_memory_utilization=float("nan")), "nan"),
    (dict(tensor_parallel_size=0), "tensor_parallel_size=0"),
    (dict(enforce_eager=1), "enforce_eager=1"), (dict(enable_prefix_caching="no"), "'no'"),
    (dict(seed=-1), "seed=-1"), (dict(block_manager_class=5), "block_manager_class=5"),
    (dict(observer=object()), "on_event"),
])
def test_bad_options(options, words):
    for kind in (ConfigError, ValueError, TypeError):
        with pytest.raises(kind, match=words):
            LLM("no/such-model", **options)  # refused before any model is looked for


def test_a_model_that_is_no_name():
    with pytest.raises(ConfigError, match="model=5"):
        LLM(5)


def test_torch_objects_are_taken():
    config = EngineConfig(dtype=torch.bfloat16, device=torch.device("cpu"))
    assert (config.dtype, config.device) == ("bfloat16", "cpu")


def test_devices_that_are_not_there():
    if not torch.cuda.is_available():
        with pytest.raises(ConfigError, match="device='cuda'.*use device='cpu'"):
            devices.resolve_device("cuda")
    with pytest.raises(ConfigError, match="device='cuda:99'"):
        devices.resolve_device("cuda:99")


@pytest.mark.parametrize("option,dtype,want", [
    ("auto", torch.bfloat16, True), ("auto", torch.float32, False), (True, torch.float32, True),
    (False, torch.bfloat16, False)])
def test_when_weights_are_packed(option, dtype, want):
    assert devices.should_pack(option, dtype, torch.device("cpu")) is want
    if option is True:
        with pytest.raises(ConfigError, match="pack_weights=True needs a CPU"):
            devices.should_pack(option, dtype, torch.device("cuda"))


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="reads Linux's list of mapped files")
def test_weights_stay_in_the_file_only_when_asked(tiny, tmp_path):
    """Mapped pages are shared by all who read the file; a copy lets go of it."""
    folder = shutil.copytree(tiny(), tmp_path / "mapped")
    for option, mapped in (("auto", False), (False, True)):
        with LLM(folder, dtype="float32", pack_weights=option):
            assert (str(folder) in Path("/proc/self/maps").read_text()) is mapped


def test_pool_size_on_a_cpu(tiny, monkeypatch):
    with LLM(tiny(), dtype="float32") as llm:
        per_block = 2 * 3 * 2 * 8 * 256 * 4  # key and value, layers, kv heads, head_dim, block_size, bytes
        assert llm.model_info["bytes_per_block"] == per_block
        assert llm.config.num_kvcache_blocks == devices.CPU_POOL_BYTES // per_block
    monkeypatch.setattr(devices, "usable_memory", lambda: 80 * per_block)
    with LLM(tiny(), dtype="float32") as llm:
        assert llm.config.num_kvcache_blocks == 10, "an eighth of what the process may use"
    monkeypatch.setattr(devices, "usable_memory", lambda: per_block)
    with pytest.raises(ConfigError, match="no room for one KV block.*kvcache_block_size"):
        LLM(tiny(), dtype="float32")


def test_model_info(tiny_llm, tiny):
    info = tiny_llm().model_info
    assert info["name"] == str(tiny()) and info["device"] == "cpu" and info["dtype"] == "float32"
    assert (info["num_layers"], info["num_kv_heads"], info["head_dim"]) == (3, 2, 8)
    assert info["attention_backend"] == "torch" and info["bytes_per_block"] == 2 * 3 * 2 * 8 * 4 * 4


def test_observers_see_the_run(tiny_llm):
    seen = []

    class Watcher:
        def on_event(self, event):
            seen.append(type(event).__name__)

    tiny_llm(observer=[Watcher(), Watcher()]).generate("ab", use_tqdm=False)
    assert seen.count("RequestAdded") == seen.count("RequestFinished") == 2
