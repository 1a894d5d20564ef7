"""Which backend a machine gets: machines made by hand, packages that are missing or broken."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import pytest
import torch

from nanovllm_edu.engine.devices import cuda_dtype
from nanovllm_edu.errors import ConfigError
from nanovllm_edu.layers.attention.choose import Machine, choose, why_missing
from tests.engine.scenes import spec_of
from tests.engine.tiny import some_tokens

CUDA = torch.device("cuda", 0)
A100, T4, V100, PASCAL = (Machine(capability) for capability in ((8, 0), (7, 5), (7, 0), (6, 1)))
BARE = {"triton": "not installed", "flash_attn": "its build is broken: undefined symbol: _ZN3c105"}


def cuda_spec(block_size=256, dim=64, dtype=torch.bfloat16):
    return spec_of(9, 3, dim, block_size, dtype, CUDA)


@pytest.mark.parametrize("machine,spec,name,words", [
    (A100, cuda_spec(), "flash", "the fastest that works here"),
    (A100, cuda_spec(512), "flash", "the fastest that works here"),
    (A100, cuda_spec(16), "triton", "multiple of 256 tokens, and kvcache_block_size is 16"),
    (A100, cuda_spec(dim=20), "triton", "the model's is 20"),
    (A100, cuda_spec(dim=512), "triton", "the model's is 512"),
    (A100, cuda_spec(dtype=torch.float32), "triton", "not in float32"),
    (T4, cuda_spec(dtype=torch.float16), "triton", "needs an Ampere GPU"),
    (V100, cuda_spec(dtype=torch.float16), "triton", "this one has 7.0"),
    (PASCAL, cuda_spec(dtype=torch.float16), "torch", "this GPU has 6.1"),
    (Machine((9, 0), BARE), cuda_spec(), "torch", "undefined symbol"),
    (Machine((9, 0), {"flash_attn": "not installed"}), cuda_spec(), "triton", "flash_attn cannot be used"),
    (Machine(), spec_of(9, 3, 64, 256), "torch", "the one that runs on cpu"),
    (Machine(triton_interpreted=True), spec_of(9, 3, 64, 256), "torch", "the one that runs on cpu"),
    (Machine(), spec_of(9, 3, 64, 16, device=torch.device("mps")), "torch", "the one that runs on mps"),
])
def test_auto_says_what_it_took_and_why(machine, spec, name, words):
    choice = choose("auto", spec, machine)
    assert choice.name == name and words in choice.reason


def test_a_faster_backend_that_was_passed_over_is_named():
    assert choose("auto", cuda_spec(16), A100).passed_over == ("flash",)
    assert choose("auto", cuda_spec(), Machine((9, 0), BARE)).passed_over == ("flash", "triton")
    assert choose("auto", cuda_spec(), A100).passed_over == ()
    assert choose("auto", spec_of(9, 3, 64, 4), Machine()).passed_over == ()


@pytest.mark.parametrize("asked,machine,spec,words", [
    ("flash", A100, cuda_spec(16), ["multiple of 256", "kvcache_block_size is 16", "'torch' or 'triton'"]),
    ("flash", T4, cuda_spec(dtype=torch.float16), ["Ampere", "7.5", "'torch' or 'triton'"]),
    ("flash", Machine((9, 0), BARE), cuda_spec(), ["undefined symbol", "What works here: 'torch', or 'auto'"]),
    ("flash", Machine(), spec_of(9, 3, 64, 256), ["flash-attn runs on CUDA devices, and this one is cpu", "'torch'"]),
    ("flash", A100, cuda_spec(dtype=torch.float32), ["float16 and bfloat16, not in float32"]),
    ("triton", Machine(), spec_of(9, 3, 64, 16), ["TRITON_INTERPRET=1", "What works here: 'torch', or 'auto'"]),
    ("triton", Machine(missing=BARE), spec_of(9, 3, 64, 16), ["the package triton cannot be used (not installed)"]),
    ("triton", Machine(), spec_of(9, 3, 64, 16, device=torch.device("mps")), ["this one is mps", "'torch'"]),
    ("triton", PASCAL, cuda_spec(dtype=torch.float16), ["7.0", "6.1"]),
    ("triton", T4, cuda_spec(), ["bfloat16", "use float16"]),
])
def test_what_cannot_work_is_refused_with_what_would(asked, machine, spec, words):
    with pytest.raises(ConfigError) as caught:
        choose(asked, spec, machine)
    for word in [f"attention_backend={asked!r}", *words]:
        assert word in str(caught.value)


def test_what_can_work_is_taken_when_asked_for():
    for asked in ("torch", "triton", "flash"):
        assert choose(asked, cuda_spec(), A100).name == asked
    assert choose("triton", spec_of(9, 3, 64, 16), Machine(triton_interpreted=True)).name == "triton"


@pytest.mark.parametrize("name,capability,dtype", [
    ("auto", (9, 0), torch.bfloat16), ("auto", (8, 0), torch.bfloat16), ("auto", (7, 5), torch.float16),
    ("auto", (7, 0), torch.float16), ("float32", (7, 5), torch.float32), ("bfloat16", (8, 6), torch.bfloat16)])
def test_dtype_by_capability(name, capability, dtype):
    assert cuda_dtype(name, capability) == dtype


def test_bfloat16_before_ampere_is_refused():
    with pytest.raises(ConfigError, match="7.5.*use dtype='float16'"):
        cuda_dtype("bfloat16", (7, 5))


@pytest.mark.parametrize("body,words", [
    ("raise ImportError('undefined symbol: _ZN3c10')", "its build is broken: undefined symbol: _ZN3c10"),
    ("raise OSError('libcudart.so.12: cannot open shared object file')", "its build is broken: libcudart.so.12"),
    ("import some_package_that_is_not_here", "it needs some_package_that_is_not_here, which is not installed"),
    ("raise RuntimeError", "its build is broken: RuntimeError"),
])
def test_a_broken_build_counts_as_missing(tmp_path, monkeypatch, body, words):
    (tmp_path / "broken_package.py").write_text(body)
    monkeypatch.syspath_prepend(tmp_path)
    assert why_missing("broken_package").startswith(words)


def test_a_package_that_is_not_there():
    assert why_missing("no_such_package") == "not installed; pip install no-such-package"
    assert why_missing("json") is None


@pytest.mark.parametrize("body", ["raise ImportError('undefined symbol')", "raise OSError('no libcuda')", None])
def test_everything_else_works_without_the_optional_packages(tiny, tmp_path, body):
    """In a Python of its own, where both are broken (or, with None, cannot be found)."""
    for package in ("triton", "flash_attn"):
        if body is not None:
            (tmp_path / f"{package}.py").write_text(body)
    script = f"""
        import sys
        if {body is None}:
            sys.modules["triton"] = sys.modules["flash_attn"] = None
        from nanovllm_edu import LLM, ConfigError, SamplingParams
        options = dict(dtype="float32", kvcache_block_size=4, num_kvcache_blocks=20, max_model_len=64, device="cpu")
        with LLM({str(tiny("llama"))!r}, **options) as llm:
            assert llm.model_info["attention_backend"] == "torch"
            out = llm.generate([{some_tokens(5)}], SamplingParams(temperature=0, max_tokens=3), use_tqdm=False)
            assert len(out[0]["token_ids"]) == 3 or out[0].finish_reason == "eos"
        for asked in ("triton", "flash"):
            try:
                LLM({str(tiny("llama"))!r}, attention_backend=asked, **options)
            except ConfigError as error:
                assert "What works here: 'torch'" in str(error), error
                print(error)
            else:
                raise SystemExit(f"{{asked}} was not refused")
    """
    run = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, timeout=120,
        env={**os.environ, "PYTHONPATH": str(tmp_path), "TRITON_INTERPRET": "1"})
    assert run.returncode == 0, run.stderr
    assert "the package triton cannot be used" in run.stdout
