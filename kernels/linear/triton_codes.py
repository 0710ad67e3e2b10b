"""How Triton kernels read stored weights.

FORMAT, a compile-time constant:

    "dense"      as it is
    "int8"       int8 codes, or words of them as unsigned numbers 128 greater
    "fp8"        e4m3 codes as uint8, converted by the instruction that sm_89 and later have
    "fp8-bits"   the same, converted by moving bits: that is 2**-8 of the value
    "int4"       words of unsigned codes, see `triton_weights`
    "fp4"        words of e2m1 codes, converted by moving bits: that is 2**-14 of the value

All codes are exact in fp16 and bf16. What a conversion leaves out, `factor` brings back with the scale.
"""

# What a kernel takes is types of the compiler's own, as many as its launch has.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
# ruff: noqa: SIM300

from __future__ import annotations

import triton
import triton.language as tl

from baton.kernels.attention.triton_codes import decode_codes
from baton.kernels.triton_support.device import Gpu

_FACTORS = {"fp8-bits": 2.0**8, "fp4": 2.0**14}


def format_on(form: str, gpu: Gpu) -> str:
    return "fp8-bits" if form == "fp8" and not gpu.fp8_units else form


def factor(form: str) -> float:
    return _FACTORS.get(form, 1.0)


@triton.jit
def decode8(codes, FORMAT: tl.constexpr, DTYPE: tl.constexpr):
    """Codes of 8 bits. As float8e4nv, they stay what they are."""
    if DTYPE == tl.float8e4nv:
        values = codes.to(tl.float8e4nv, bitcast=True)
    else:
        values = decode_codes(codes, FORMAT, DTYPE)
    return values


@triton.jit
def decode_words(words, SLICE: tl.constexpr, FORMAT: tl.constexpr, ZERO: tl.constexpr, DTYPE: tl.constexpr):
    """A slice of words [outs, n] as [outs, 2 * n] of DTYPE (int8 for products of bytes)."""
    if FORMAT == "fp4":
        pairs = words >> (4 * SLICE)
        bits = ((pairs & 0x00070007) << 9) | ((pairs & 0x00080008) << 12)
        values = _halves(bits, tl.float16).to(DTYPE)
    elif FORMAT == "int8":
        pairs = (words >> (8 * SLICE)) & 0x00FF00FF
        if DTYPE == tl.bfloat16:
            # 8 bits and an exponent are one too many for bfloat16. 0x4B000000: 2**23
            exact = (_halves(pairs, tl.int16).to(tl.int32) | 0x4B000000).to(tl.float32, bitcast=True)
            values = (exact - (8388736.0 + ZERO)).to(tl.bfloat16)
        else:
            values = (_halves(pairs | 0x64006400, tl.float16) - (1152.0 + ZERO)).to(DTYPE)  # 0x6400: 1024
    elif DTYPE == tl.bfloat16:
        pairs = (words >> (4 * SLICE)) & 0x000F000F
        values = _halves(pairs | 0x43004300, tl.bfloat16) - (128.0 + ZERO)  # 0x4300: 128
    else:
        pairs = (words >> (4 * SLICE)) & 0x000F000F
        values = (_halves(pairs | 0x64006400, tl.float16) - (1024.0 + ZERO)).to(DTYPE)
    return values


@triton.jit
def _halves(pairs, DTYPE: tl.constexpr):
    low = (pairs & 0xFFFF).to(tl.int16).to(DTYPE, bitcast=True)
    high = (pairs >> 16).to(tl.int16).to(DTYPE, bitcast=True)
    both = tl.join(low, high)
    return tl.reshape(both, (pairs.shape[0], 2 * pairs.shape[1]))
