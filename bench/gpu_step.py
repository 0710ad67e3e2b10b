"""What the checks and figures on a GPU have in common: sizes, a pool with a step over it, a stopwatch."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from baton.core.batch import SharedPrefix
from baton.kernels.attention import AttentionParams, AttentionPlan, KvLayer, RowSpan, make_plan
from baton.kernels.attention.kv_layer import CODE_MAX, quantize_kv

BLOCK_SIZE = 16


@dataclass(frozen=True, slots=True)
class Sizes:
    """heads: query heads, KV heads, head_dim. context, batch: of decoding; prefill: tokens; prefix, sharers,
    suffix: of a cascade; product: inputs and outputs; gemm: of a square matrix; copy_bytes: to measure the
    memory with; rounds: how often a figure is measured, of which the best counts."""

    heads: tuple[int, int, int]
    context: int
    batch: int
    prefill: int
    prefix: int
    sharers: int
    suffix: int
    product: tuple[int, int]
    gemm: int
    copy_bytes: int
    rounds: int
    tokens: int
    vocab: int


REAL = Sizes(
    heads=(32, 8, 128),
    context=8_192,
    batch=64,
    prefill=16_384,
    prefix=32_768,
    sharers=256,
    suffix=128,
    product=(8_192, 28_672),
    gemm=8_192,
    copy_bytes=2 << 30,
    rounds=5,
    tokens=300,
    vocab=128_256,
)
TINY = Sizes(
    heads=(4, 2, 16),
    context=40,
    batch=2,
    prefill=32,
    prefix=32,
    sharers=3,
    suffix=4,
    product=(96, 40),
    gemm=16,
    copy_bytes=1 << 10,
    rounds=1,
    tokens=11,
    vocab=300,
)


@dataclass(frozen=True, slots=True)
class Step:
    """exact: the pool as it reads back, in fp32."""

    q: torch.Tensor
    layer: KvLayer
    exact: KvLayer
    plan: AttentionPlan
    params: AttentionParams


class Noise:
    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._generator = torch.Generator(device).manual_seed(0)

    def __call__(self, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.randn(shape, generator=self._generator, device=self.device).to(dtype)


def step(
    noise: Noise,
    heads: tuple[int, int, int],
    rows: Sequence[tuple[int, int]],
    *,
    dtypes: tuple[torch.dtype, torch.dtype] = (torch.bfloat16, torch.bfloat16),
    prefix: int = 0,
    shared: bool = True,
) -> Step:
    """rows: (start, length). dtypes: of queries and of the pool. prefix: tokens, in whole blocks, that all
    rows have in common; shared: whether the plan is told."""
    query_heads, kv_heads, head_dim = heads
    dtype, kv_dtype = dtypes
    common = prefix // BLOCK_SIZE
    spans, blocks = [], 1 + common
    for start, length in rows:
        own = -(-(start + length) // BLOCK_SIZE) - common
        spans.append(RowSpan(start, length, [*range(1, 1 + common), *range(blocks, blocks + own)]))
        blocks += own
    groups = [SharedPrefix(tuple(range(len(rows))), 0, common)] if shared and common else []
    plan = make_plan(spans, BLOCK_SIZE, dtype, groups)
    layer, exact = _pool(noise, (blocks, 2, BLOCK_SIZE, kv_heads, head_dim), kv_dtype)
    q = noise(plan.tokens, query_heads, head_dim, dtype=dtype)
    return Step(q, layer, exact, plan, AttentionParams(head_dim**-0.5))


def _pool(noise: Noise, shape: tuple[int, ...], dtype: torch.dtype) -> tuple[KvLayer, KvLayer]:
    values = noise(*shape)
    if dtype not in CODE_MAX:
        return KvLayer(values.to(dtype)), KvLayer(values.to(dtype).float())
    codes, scales = quantize_kv(values, dtype)
    return KvLayer(codes, scales), KvLayer(codes.float() * scales.float().unsqueeze(-1))


def seconds(call: Callable[[], object], device: torch.device, rounds: int) -> float:
    """Of one call; the best of `rounds`. On a GPU calls are recorded and replayed together, so that only the
    device's time counts."""
    call()  # compiles, plans, uploads
    if device.type != "cuda":
        return min(_wall(call) for _ in range(rounds))
    torch.cuda.synchronize(device)
    once = _replayed(call, 1, device)
    repeats = max(1, min(50, int(0.02 / max(once, 1e-6))))
    return min(_replayed(call, repeats, device) for _ in range(rounds))


def _wall(call: Callable[[], object]) -> float:
    begun = time.perf_counter()
    call()
    return time.perf_counter() - begun


def _replayed(call: Callable[[], object], repeats: int, device: torch.device) -> float:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(repeats):
            call()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    graph.replay()
    begin.record()
    graph.replay()
    end.record()
    torch.cuda.synchronize(device)
    return begin.elapsed_time(end) / 1e3 / repeats
