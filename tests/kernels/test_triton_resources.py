"""Kernels compiled for GPUs that are not here: nothing spills, and multiprocessors have room for them.

A part of the tuning table; `python -m baton.bench.kernel_resources` shows all of it.
"""

from __future__ import annotations

import re

import pytest
import torch

from baton.bench.kernel_resources import Case
from baton.kernels.merge_states.triton import merge_states_launch
from baton.kernels.triton_support.launch import Launch
from baton.kernels.triton_support.resources import Resources, compile_for

REGISTERS = 64 * 1024
SHARED_BYTES = {80: 163 * 1024, 90: 227 * 1024}
PER_BLOCK_BYTES = 1024  # which the driver keeps for itself

CASES = [
    Case(90, 64, "decode"),
    Case(90, 64, "prefill", query="float16", kv="float8_e4m3fn"),
    Case(90, 128, "decode", kv="float8_e4m3fn"),
    Case(90, 128, "prefill"),
    Case(90, 256, "decode", window=4_096, softcap=50.0),
    Case(80, 128, "verify", query="float16", kv="int8"),
    Case(80, 256, "decode", kv="float8_e4m3fn"),
]


def check(launch: Launch, arch: int, programs: int) -> Resources:
    """programs: how many of them a multiprocessor must have room for."""
    used = compile_for(launch, arch)
    print(f"{launch.kernel.__name__}: {used}")
    assert used.stack_bytes == 0, used
    registers = -(-used.registers // 8) * 8 * launch.warps * 32
    assert programs * registers <= REGISTERS, used
    assert programs * (used.shared_bytes + PER_BLOCK_BYTES) <= SHARED_BYTES[arch] + PER_BLOCK_BYTES, used
    return used


@pytest.mark.parametrize("case", CASES, ids=str)
def test_attention(case: Case) -> None:
    used = check(case.attention()[0], case.arch, programs=2 if case.step == "decode" else 1)
    # Keys and values go past the registers, 16 bytes at a time, and more than one tile is on its way.
    assert re.search(r"cp\.async\.cg\.shared\.global[^;]*, 0x10", used.ptx)
    tall = case.step != "decode"
    assert ("wgmma.mma_async" in used.ptx) == (case.arch == 90 and tall)
    assert tall or "mma.sync" in used.ptx


def test_fp8_is_converted_by_an_instruction_where_there_is_one() -> None:
    assert "cvt.rn.f16x2.e4m3x2" in compile_for(CASES[2].attention()[0], 90).ptx


@pytest.mark.parametrize("arch", [80, 90])
def test_writing_and_merging(arch: int) -> None:
    check(Case(arch, 128, "decode", kv="float8_e4m3fn").write(), arch, programs=8)
    merge = Case(arch, 128, "decode").attention()[1]
    check(merge, arch, programs=16)
    state = torch.empty(7, 32, 128, device="meta"), torch.empty(7, 32, device="meta")
    check(merge_states_launch(state, state, state), arch, programs=16)
