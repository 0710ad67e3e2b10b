"""How fast the Triton kernels are, beside what the same GPU does in a copy and in a product of torch's."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from baton.bench.gpu_step import Noise, Sizes, Step, seconds, step
from baton.bench.report import Figure
from baton.kernels.attention import triton as paged
from baton.kernels.linear import triton as linear
from baton.kernels.quantize import QuantizedWeight, quantize, scheme

_PIECE = 4_096  # outputs that are quantised at once


def figures(device: torch.device, sizes: Sizes) -> Iterator[Figure]:
    noise = Noise(device)
    bandwidth = _bandwidth(device, sizes)
    for kv_dtype in (torch.bfloat16, torch.float8_e4m3fn):
        yield _decode(noise, sizes, kv_dtype, bandwidth)
    for name, dtype in (
        ("int8", torch.bfloat16),
        ("int8", torch.float16),
        ("fp8", torch.bfloat16),
        ("int4", torch.bfloat16),
    ):
        yield _gemv(noise, sizes, name, dtype, bandwidth)
    yield _prefill(noise, sizes)
    yield _cascade(noise, sizes)


def _bandwidth(device: torch.device, sizes: Sizes) -> float:
    """Bytes a second, read and written, of a copy."""
    source = torch.ones(sizes.copy_bytes, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * sizes.copy_bytes / seconds(lambda: target.copy_(source), device, sizes.rounds)


def _attend(one: Step, sizes: Sizes) -> float:
    def call() -> None:
        paged.attention(one.q, one.layer, one.plan, one.params)

    return seconds(call, one.q.device, sizes.rounds)


def _decode(noise: Noise, sizes: Sizes, kv_dtype: torch.dtype, bandwidth: float) -> Figure:
    one = step(noise, sizes.heads, [(sizes.context - 1, 1)] * sizes.batch, dtypes=(torch.bfloat16, kv_dtype))
    _, kv_heads, head_dim = sizes.heads
    vector = head_dim * kv_dtype.itemsize + (0 if one.layer.scales is None else 2)
    read = sizes.batch * sizes.context * 2 * kv_heads * vector
    return Figure(
        name=f"decode attention, batch {sizes.batch}, context {sizes.context}, {str(kv_dtype)[6:]} KV",
        value=read / _attend(one, sizes) / 1e9,
        unit="GB/s",
        limit=bandwidth / 1e9,
        limit_name="copy",
        target=0.8,
    )


def _gemv(noise: Noise, sizes: Sizes, name: str, dtype: torch.dtype, bandwidth: float) -> Figure:
    layer = linear.prepare(_quantized(noise, sizes, name))
    x = noise(1, sizes.product[0], dtype=dtype)
    return Figure(
        name=f"{name} weights, one {str(dtype)[6:]} row",
        value=layer.nbytes / seconds(lambda: layer(x), x.device, sizes.rounds) / 1e9,
        unit="GB/s",
        limit=bandwidth / 1e9,
        limit_name="copy",
        target=0.8,
    )


def _quantized(noise: Noise, sizes: Sizes, name: str) -> QuantizedWeight:
    inputs, outputs = sizes.product
    return quantize(noise(outputs, inputs, dtype=torch.bfloat16), scheme(name))


def _prefill(noise: Noise, sizes: Sizes) -> Figure:
    square = noise(sizes.gemm, sizes.gemm, dtype=torch.bfloat16)
    gemm_s = seconds(lambda: square @ square, square.device, sizes.rounds)
    one = step(noise, sizes.heads, [(0, sizes.prefill)])
    heads, _, head_dim = sizes.heads
    pairs = sizes.prefill * (sizes.prefill + 1) / 2
    return Figure(
        name=f"prefill attention, {sizes.prefill} tokens",
        value=4 * heads * head_dim * pairs / _attend(one, sizes) / 1e12,
        unit="TFLOP/s",
        limit=2 * sizes.gemm**3 / gemm_s / 1e12,
        limit_name="bf16 GEMM",
        target=0.6,
    )


def _cascade(noise: Noise, sizes: Sizes) -> Figure:
    rows = [(sizes.prefix + sizes.suffix - 1, 1)] * sizes.sharers
    times = [
        _attend(step(noise, sizes.heads, rows, prefix=sizes.prefix, shared=shared), sizes)
        for shared in (True, False)
    ]
    return Figure(
        name=f"batch {sizes.sharers}, {sizes.prefix} tokens shared: without cascade",
        value=times[1] * 1e3,
        unit="ms",
        limit=times[0] * 1e3,
        limit_name="with",
        target=10.0,
    )
