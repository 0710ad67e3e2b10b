"""Digests of what the small native operations give for fixed inputs: the same on every instruction set.

Run as a program (with BATON_CPU_ISA set, say) it prints them as JSON.
"""

from __future__ import annotations

import hashlib
import json

import torch

from baton.kernels import native
from baton.kernels.attention.kv_layer import CODE_MAX, KvLayer, record_bytes, split_records
from baton.kernels.embedding import native as embedding
from baton.kernels.linear import native as linear
from baton.kernels.moe import ExpertMlp
from baton.kernels.moe import native as moe
from baton.kernels.rms_norm import native as rms_norm
from baton.kernels.rope import QkNorm, Slots, tables
from baton.kernels.rope import native as rope
from baton.kernels.sample import Choice
from baton.kernels.sample import native as sample
from baton.kernels.silu_mul import native as silu_mul

KV_DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.int8, torch.float8_e4m3fn)


def noise(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def kv_layer(dtype: torch.dtype, blocks: int, vectors: tuple[int, int, int]) -> KvLayer:
    """The second layer of a pool of three, zeroed. vectors: (block_size, kv_heads, head_dim)."""
    if dtype not in CODE_MAX:
        return KvLayer(torch.zeros(blocks, 3, 2, *vectors, dtype=dtype)[:, 1])
    records = torch.zeros(blocks, 3, record_bytes(*vectors, dtype), dtype=torch.uint8)
    codes, scales = split_records(records, vectors, dtype)
    return KvLayer(codes[:, 1], scales[:, 1])


def as_bits(x: torch.Tensor) -> torch.Tensor:
    return x.contiguous().view({1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[x.itemsize])


def digests() -> dict[str, str]:
    found: dict[str, str] = {}

    def add(name: str, *results: torch.Tensor) -> None:
        data = b"".join(as_bits(result).numpy().tobytes() for result in results)
        found[name] = hashlib.sha256(data).hexdigest()

    for width in (1, 24, 576):
        x, update = noise(5, width) * 3, noise(5, width, seed=1)
        add(f"rms_norm {width}", x, rms_norm.add_rms_norm(x, update, noise(width, seed=2), 1e-5))
        add(f"silu_mul {width}", silu_mul.silu_mul(noise(5, 2 * width, seed=3) * 20))
    add("embedding", embedding.embedding(torch.arange(9), noise(9, 33).half()))
    for dtype in KV_DTYPES:
        layer, qkv = kv_layer(dtype, 3, (4, 2, 24)), noise(9, 7, 24, seed=4)
        rotation = tables(noise(9, 12, seed=5), 1.0, torch.float32)
        slots = Slots(torch.arange(9) // 4, torch.arange(9) % 4)
        norm = QkNorm(noise(24, seed=6), noise(24, seed=7), 1e-6)
        rope.rotate_and_store(qkv, rotation, layer, slots, norm)
        add(f"rope {dtype}", qkv, *(part for part in layer if part is not None))
    mlps = [
        ExpertMlp(linear.prepare(noise(80, 33, seed=8 + e)), linear.prepare(noise(33, 40, seed=20 + e)))
        for e in range(5)
    ]
    routing = moe.route(noise(6, 5, seed=9), 2, True)
    add("moe", *routing, moe.experts(noise(6, 33, seed=10), routing, mlps))
    logits = noise(6, 5003, seed=11) * 4
    filters = ((0, 0.9, 0.0), (40, 1.0, 0.1))
    choices = [Choice(t, k, p, m, 0.1 + t / 9) for t in (0.0, 0.3, 5.0) for k, p, m in filters]
    add("sample", torch.tensor(sample.sample(logits, choices)), *sample.survey(logits, 7))
    return found


if __name__ == "__main__":
    print(json.dumps({"isa": native.isa(), "digests": digests()}))
