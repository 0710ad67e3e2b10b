"""How Triton kernels read and write the KV formats of `kv_layer`.

FORMAT, a compile-time constant:

    "plain"     vectors as they are, fp32, fp16 or bf16
    "int8"      int8 codes and scales
    "fp8"       e4m3 codes as uint8, converted by the instruction that sm_89 and later have
    "fp8-bits"  the same codes, converted by moving their bits into an fp16: denormals included, that is 2**-8
                of the value, which the scale puts right

Codes of 8 bits are exact in fp16 and in bf16, so only the scales, applied to scores and to weights, round.
"""

# What a kernel takes is types of the compiler's own, as many as its launch has.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from __future__ import annotations

import torch
import triton
import triton.language as tl

from baton.kernels.attention.kv_layer import KvLayer
from baton.kernels.triton_support.device import Gpu


def kv_format(layer: KvLayer, gpu: Gpu) -> tuple[str, torch.Tensor]:
    """The FORMAT of a layer, and its codes as kernels take them."""
    codes = layer.codes
    if layer.scales is None:
        return "plain", codes
    if codes.dtype == torch.int8:
        return "int8", codes
    return ("fp8" if gpu.fp8_units else "fp8-bits"), codes.view(torch.uint8)


@triton.jit
def decode_codes(codes, FORMAT: tl.constexpr, DTYPE: tl.constexpr):
    """Loaded codes as DTYPE: what is to be multiplied by `code_scales`, if the format has scales."""
    if FORMAT == "fp8":
        values = codes.to(tl.float8e4nv, bitcast=True).to(tl.float16).to(DTYPE)
    elif FORMAT == "fp8-bits":
        wide = codes.to(tl.uint16)
        bits = ((wide & 0x80) << 8) | ((wide & 0x7F) << 7)
        values = bits.to(tl.float16, bitcast=True).to(DTYPE)
    else:
        values = codes.to(DTYPE)
    return values


@triton.jit
def code_scales(scales, FORMAT: tl.constexpr):
    """Loaded scales as fp32."""
    wide = scales.to(tl.float32)
    if FORMAT == "fp8-bits":
        wide = wide * 256.0
    return wide


@triton.jit
def scales_of(exact, LARGEST: tl.constexpr):
    """[rows, dims] fp32 to [rows] fp32 scales that bf16 holds; see `kv_layer` for the rule."""
    absmax = tl.max(tl.abs(exact), 1)
    broken = tl.max(tl.where(tl.abs(exact) < float("inf"), 0, 1), 1) > 0
    quotient = tl.div_rn(
        tl.minimum(absmax, 1.7014118346046923e38), tl.full(absmax.shape, LARGEST, tl.float32)
    )
    bits = (quotient.to(tl.int32, bitcast=True) + 0xFFFF) & -0x10000
    up = bits.to(tl.float32, bitcast=True)
    up = tl.where(quotient < 1.1754943508222875e-38, 0.0, up)
    return tl.where(broken, float("nan"), up)


@triton.jit
def as_bfloat16(scales):
    """fp32 that bf16 holds: cut, not rounded, so that a NaN keeps its bits."""
    return (scales.to(tl.int32, bitcast=True) >> 16).to(tl.int16).to(tl.bfloat16, bitcast=True)


@triton.jit
def codes_of(exact, scales, FORMAT: tl.constexpr):
    """[rows, dims] fp32 and their scales [rows] to codes: int8, or e4m3 as uint8."""
    usable = scales > 0
    divided = tl.div_rn(exact, tl.where(usable, scales, 1.0)[:, None])
    divided = tl.where(usable[:, None], divided, 0.0)
    if FORMAT == "int8":
        # Adding 1.5 * 2**23 leaves no bits for a fraction: rounds to the nearest, ties to even.
        rounded = (divided + 12582912.0) - 12582912.0
        codes = tl.clamp(rounded, -127.0, 127.0).to(tl.int8)
    else:
        codes = _e4m3_of(tl.clamp(divided, -448.0, 448.0))
    return codes


@triton.jit
def _e4m3_of(values):
    """fp32 within +-448 to the nearest e4m3, ties to even, as uint8."""
    bits = values.to(tl.int32, bitcast=True)
    magnitude = bits & 0x7FFFFFFF
    # 20 bits of mantissa go, rounded; the exponent's bias becomes 7 from 127.
    normal = ((magnitude + 0x7FFFF + ((magnitude >> 20) & 1)) >> 20) - (120 << 3)
    # 2**14 + x is a multiple of 2**-9, the step of e4m3's denormals.
    shifted = tl.abs(values) + 16384.0
    denormal = shifted.to(tl.int32, bitcast=True) - 0x46800000
    code = tl.where(magnitude < 0x3C800000, denormal, normal)
    return (code | ((bits >> 24) & 0x80)).to(tl.uint8)
