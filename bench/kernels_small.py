"""The small operations, each beside a copy of the bytes that it reads and writes; sampling beside a softmax.

One thread, the least of some rounds, limit and measurement in turn. A prompt of 512 tokens of the demo
model's sizes; 16 rows of its vocabulary.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from baton.bench.report import Figure
from baton.kernels import native
from baton.kernels.attention.kv_layer import CODE_MAX, KvLayer, record_bytes, split_records
from baton.kernels.blocks import KvVectors
from baton.kernels.blocks import native as blocks
from baton.kernels.embedding import native as embedding
from baton.kernels.rms_norm import native as rms_norm
from baton.kernels.rope import Slots, tables
from baton.kernels.rope import native as rope
from baton.kernels.sample import Choice
from baton.kernels.sample import native as sample
from baton.kernels.silu_mul import native as silu_mul

TOKENS, HIDDEN, INNER, VOCAB = 512, 576, 1536, 49_152
HEADS, KV_HEADS, HEAD_DIM, BLOCK = 9, 3, 64, 16
ROWS = 16
ROUNDS = 30


def run() -> list[Figure]:
    if not native.available():
        return []
    before, threads = native.threads(), torch.get_num_threads()
    torch.set_num_threads(1)
    native.configure(1)
    try:
        with torch.inference_mode():
            return [*_copies(), *_conversions(), *_sampling()]
    finally:
        native.configure(before)
        torch.set_num_threads(threads)


def _copies() -> list[Figure]:
    x, weight = torch.randn(TOKENS, HIDDEN), torch.randn(HIDDEN)
    gate_up = torch.randn(TOKENS, 2 * INNER)
    ids, table = torch.randint(0, VOCAB, (TOKENS,)), torch.randn(VOCAB, HIDDEN)
    return [
        _beside_copy("rms_norm", lambda: rms_norm.rms_norm(x, weight, 1e-5), x.nbytes, 3.0),
        _beside_copy("silu_mul", lambda: silu_mul.silu_mul(gate_up), gate_up.nbytes * 3 // 4, 6.0),
        _beside_copy("embedding", lambda: embedding.embedding(ids, table), x.nbytes, 4.0),
        *(_rope(dtype) for dtype in (torch.float32, torch.bfloat16, torch.int8, torch.float8_e4m3fn)),
    ]


def _rope(dtype: torch.dtype) -> Figure:
    qkv = torch.randn(TOKENS, HEADS + 2 * KV_HEADS, HEAD_DIM)
    places = torch.arange(TOKENS)
    rotation = tables(torch.randn(TOKENS, HEAD_DIM // 2), 1.0, torch.float32)
    codes, scales = _vectors(dtype, 1)
    layer = KvLayer(codes[:, 0], None if scales is None else scales[:, 0])
    slots = Slots(places // BLOCK, places % BLOCK)
    name = f"rope and KV write, {str(dtype).removeprefix('torch.')}"
    return _beside_copy(name, lambda: rope.rotate_and_store(qkv, rotation, layer, slots), qkv.nbytes, 6.0)


def _conversions() -> list[Figure]:
    return [
        figure for dtype in (torch.int8, torch.float8_e4m3fn) for figure in _to_and_from(dtype, layers=30)
    ]


def _to_and_from(dtype: torch.dtype, layers: int) -> list[Figure]:
    wide, narrow = _vectors(torch.float32, layers), _vectors(dtype, layers)
    wide.values.normal_()
    name, moved = str(dtype).removeprefix("torch."), wide.values.nbytes
    return [
        _beside_copy(f"KV to {name}", lambda: blocks.convert(narrow, wide), moved, 12.0),
        _beside_copy(f"KV from {name}", lambda: blocks.convert(wide, narrow), moved, 8.0),
    ]


def _sampling() -> list[Figure]:
    noise = torch.Generator().manual_seed(0)
    flat = torch.randn(ROWS, VOCAB, generator=noise)
    peaked = flat * 3
    peaked[:, :20] += torch.linspace(18, 8, 20)
    return [
        _sample("greedy", flat, Choice(0.0, 0, 1.0, 0.0, 0.5), 0.6),
        _sample("temperature", flat, Choice(0.8, 0, 1.0, 0.0, 0.5), 3.0),
        _sample("top_k 50, top_p 0.95", peaked, Choice(0.8, 50, 0.95, 0.0, 0.5), 1.0),
        _sample("top_p 0.95", peaked, Choice(0.8, 0, 0.95, 0.0, 0.5), 4.0),
        _sample("top_p 0.95 of a flat distribution", flat, Choice(0.8, 0, 0.95, 0.0, 0.5), 7.0),
        _beside_softmax("log probabilities, 20 best,", peaked, lambda: sample.survey(peaked, 20), 3.0),
    ]


def _sample(name: str, logits: torch.Tensor, one: Choice, target: float) -> Figure:
    choices = [one] * ROWS
    return _beside_softmax(f"sample, {name},", logits, lambda: sample.sample(logits, choices), target)


def _beside_softmax(name: str, logits: torch.Tensor, measured: Callable[[], object], target: float) -> Figure:
    limit_s, took_s = _in_turn(lambda: logits.softmax(-1), measured)
    return _figure(f"{name} {ROWS} rows", took_s, limit_s, "softmax", target)


def _vectors(dtype: torch.dtype, layers: int) -> KvVectors:
    """Of TOKENS tokens."""
    shape = (BLOCK, KV_HEADS, HEAD_DIM)
    if dtype not in CODE_MAX:
        return KvVectors(torch.zeros(TOKENS // BLOCK, layers, 2, *shape, dtype=dtype))
    records = torch.zeros(TOKENS // BLOCK, layers, record_bytes(*shape, dtype), dtype=torch.uint8)
    return KvVectors(*split_records(records, shape, dtype))


def _beside_copy(name: str, measured: Callable[[], object], moved_bytes: int, target: float) -> Figure:
    """moved_bytes: read, and as many written."""
    source, to = torch.ones(moved_bytes, dtype=torch.uint8), torch.ones(moved_bytes, dtype=torch.uint8)
    limit_s, took_s = _in_turn(lambda: to.copy_(source), measured)
    return _figure(name, took_s, limit_s, "copy", target)


def _figure(name: str, took_s: float, limit_s: float, limit_name: str, target: float) -> Figure:
    return Figure(
        name=name,
        value=took_s * 1e3,
        unit="ms",
        limit=limit_s * 1e3,
        limit_name=limit_name,
        target=target,
        higher_is_better=False,
    )


def _in_turn(limit: Callable[[], object], measured: Callable[[], object]) -> tuple[float, float]:
    """The least seconds of each."""
    limits, figures = [], []
    for _ in range(ROUNDS):
        limits.append(_seconds(limit))
        figures.append(_seconds(measured))
    return min(limits), min(figures)


def _seconds(call: Callable[[], object]) -> float:
    begun = time.perf_counter()
    call()
    return time.perf_counter() - begun
