from __future__ import annotations

from baton.kernels.attention.kv_layer import dequantize_kv, quantize_kv
from baton.kernels.blocks.types import KvVectors


def convert(to: KvVectors, source: KvVectors) -> None:
    vectors = source.values if source.scales is None else dequantize_kv(source.values, source.scales)
    if to.scales is None:
        to.values.copy_(vectors)
        return
    codes, scales = quantize_kv(vectors, to.values.dtype)
    to.values.copy_(codes)
    to.scales.copy_(scales)
