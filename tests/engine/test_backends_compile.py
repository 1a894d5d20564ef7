"""The Triton kernels compile for real GPUs, and fit into them. No GPU is needed for that: ptxas comes with Triton.

In a Python of its own, since kernels that are interpreted cannot be compiled.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

pytest.importorskip("triton", reason="triton is published for Linux only")

SHARED_MEMORY = {75: 64 << 10, 80: 163 << 10, 86: 99 << 10, 90: 227 << 10}  # bytes a program may have
SCRIPT = """
import json, sys, triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from nanovllm_edu.layers.attention import triton_kernels as kernels
from nanovllm_edu.layers.attention.triton_backend import power_of_two, tile_sizes

def case(capability, dtype, heads, kv_heads, dim, block_size):
    data, rows_keys = "*" + dtype, tile_sizes(dim, 4 if dtype == "fp32" else 2)
    rows, keys = rows_keys
    pad = max(16, power_of_two(dim))
    def build(kernel, types, constants):
        signature = {name: types.get(name, "constexpr") for name in kernel.arg_names}
        places = {(kernel.arg_names.index(name),): value for name, value in constants.items()}
        made = triton.compile(ASTSource(kernel, signature, constexprs=places), target=GPUTarget("cuda", capability, 32))
        return {"code": len(made.asm["cubin"]), "shared": made.metadata.shared,
                "tensor_cores": "mma" in made.asm["ptx"]}
    store = dict.fromkeys(["k_ptr", "v_ptr", "k_cache_ptr", "v_cache_ptr"], data)
    store |= dict(slots_ptr="*i64", k_row="i32", k_head="i32", v_row="i32", v_head="i32")
    decode = dict.fromkeys(["q_ptr", "out_ptr", "k_cache_ptr", "v_cache_ptr"], data)
    decode |= dict(tables_ptr="*i32", context_lens_ptr="*i32", q_row="i32", q_head="i32", table_width="i32",
                   scale="fp32")
    prefill = decode | dict(cu_seqlens_q_ptr="*i32", tile_seq_ptr="*i32", tile_row_ptr="*i32")
    sizes = dict(BLOCK_SIZE=block_size, HEADS=heads, KV_HEADS=kv_heads, DIM=dim, KEYS=keys, DIM_PAD=pad, UPCAST=False)
    return [
        build(kernels.store_kernel, store,
              dict(KV_HEADS=kv_heads, DIM=dim, HEADS_PAD=power_of_two(kv_heads), DIM_PAD=pad)),
        build(kernels.decode_kernel, decode, dict(sizes, ROWS=max(16, power_of_two(heads // kv_heads)))),
        build(kernels.prefill_kernel, prefill, dict(sizes, ROWS=rows))]

print(json.dumps([case(*each) for each in json.loads(sys.argv[1])]))
"""


CASES = [  # compute capability, dtype, heads, kv_heads, head_dim, block_size
    (90, "bf16", 9, 3, 64, 256), (90, "bf16", 16, 8, 128, 16), (80, "fp16", 8, 1, 80, 3), (86, "bf16", 8, 1, 256, 16),
    (86, "fp32", 9, 3, 64, 2), (75, "fp16", 9, 3, 64, 256)]


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    """What each case compiled to, for store, decode and prefill; in one Python, whose start takes longest."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    run = subprocess.run([sys.executable, "-c", SCRIPT, json.dumps(CASES)], capture_output=True, text=True, timeout=300,
                         env={**environment, "TRITON_CACHE_DIR": str(tmp_path_factory.mktemp("triton"))})
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout.splitlines()[-1])


@pytest.mark.parametrize("number", range(len(CASES)), ids=map(str, CASES))
def test_compiles_and_fits(compiled, number):
    capability, dtype = CASES[number][:2]
    store, decode, prefill = compiled[number]
    for kernel in (store, decode, prefill):
        assert kernel["code"] > 0
        assert kernel["shared"] <= SHARED_MEMORY[capability]
    if capability >= 80 and dtype != "fp32":
        assert decode["tensor_cores"] and prefill["tensor_cores"]
