"""Paged attention beside its limits: decode beside a read of as many bytes, prefill beside products of
squares, shared prefixes beside rows by themselves.

The demo model's heads; every layer of a pool takes its turn, so that no cache holds what is read. Limit and
measurement take turns and the best of the rounds counts: with one thread by the thread's own clock, with all
cores by the wall's.

What decode reads of a block lies together; the longer it is, the less the memory waits between two of them.

How much sharing gains is bound by the arithmetic of a query and a key beside the time to read the key: it
grows as fewer query heads share a KV head, hence a second figure with one each.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from baton.bench.report import Figure
from baton.kernels import native
from baton.kernels.attention import AttentionParams, KvLayer, RowSpan, SharedPrefix, make_plan
from baton.kernels.attention.kv_layer import CODE_MAX, record_bytes, split_records
from baton.kernels.attention.native import NativePlan, call
from baton.kernels.native import memory
from baton.kernels.native.program import Program
from baton.runtime.cpus import usable_cpus

HEADS, KV_HEADS, HEAD_DIM, BLOCK = 9, 3, 64, 16
LONG_BLOCK = 64
CONTEXT, BATCH = 4096, 8
PROMPTS = (512, 2048)
SHARERS, PREFIX, SUFFIX = 32, 2048, 64
ROUNDS = 9
_READ_BYTES = 200 << 20
_GEMM_SIZE = 1024
_DTYPES = (torch.float32, torch.bfloat16, torch.int8, torch.float8_e4m3fn)


def run() -> list[Figure]:
    if not native.available():
        return []
    before = native.threads(), torch.get_num_threads()
    try:
        return [_plan(), *(figure for threads in sorted({1, usable_cpus()}) for figure in _with(threads))]
    finally:
        native.configure(before[0])
        torch.set_num_threads(before[1])


@dataclass(frozen=True)
class _Turn:
    """How things are measured: suffix says it in a figure's name."""

    clock: Callable[[], float]
    suffix: str

    def best(self, *calls: Callable[[], object]) -> list[float]:
        """The least seconds of each, run in turn."""
        least = [float("inf")] * len(calls)
        for _ in range(ROUNDS):
            for i, one in enumerate(calls):
                begun = self.clock()
                one()
                least[i] = min(least[i], self.clock() - begun)
        return least


def _with(threads: int) -> list[Figure]:
    native.configure(threads)
    torch.set_num_threads(threads)
    clock = time.thread_time if threads == 1 else time.perf_counter
    turn = _Turn(clock, f"{threads} thread{'s'[: threads != 1]}")
    return [
        *_decode(turn),
        *(figure for tokens in PROMPTS for figure in _prefill(turn, tokens)),
        *(
            _cascade(turn, heads, dtype, target)
            for heads, target in ((HEADS, 1.5), (KV_HEADS, 4.0))
            for dtype in (torch.float32, torch.int8)
        ),
    ]


def _decode(turn: _Turn) -> list[Figure]:
    """One step's attention of a batch: KV read a second, and how many times as fast as in fp32."""
    read = memory.empty((_READ_BYTES // 4,), torch.float32).fill_(1)
    figures, fp32_s = [], 0.0
    for dtype, block in ((torch.float32, LONG_BLOCK), *((dtype, BLOCK) for dtype in _DTYPES)):
        per_row = CONTEXT // block
        ids = torch.randperm(BATCH * per_row).tolist()
        spans = [RowSpan(CONTEXT - 1, 1, ids[i * per_row : (i + 1) * per_row]) for i in range(BATCH)]
        layers = _layers(dtype, BATCH * per_row, 2, block)
        read_s, decode_s = turn.best(read.sum, _program(layers, spans, block=block))
        kv_bytes = len(layers) * BATCH * CONTEXT * record_bytes(1, KV_HEADS, HEAD_DIM, dtype)
        name = f"attention, decode, batch {BATCH} at {CONTEXT}, {str(dtype).removeprefix('torch.')} KV"
        if dtype == torch.float32:
            fp32_s = decode_s
            name += f" in blocks of {block}"
            value, limit = kv_bytes / decode_s / 1e9, read.nbytes / read_s / 1e9
            figures.append(Figure(f"{name}, {turn.suffix}", value, "GB/s", limit, "memory read", 0.7))
        else:
            rates = len(layers) * BATCH / decode_s, len(layers) * BATCH / fp32_s
            figures.append(Figure(f"{name}, {turn.suffix}", rates[0], "rows/s", rates[1], "fp32 KV", 1.0))
    return figures


def _prefill(turn: _Turn, tokens: int) -> list[Figure]:
    """A prompt's attention beside products of squares; over INT8 KV, beside that over fp32 KV."""
    square = torch.randn(2, _GEMM_SIZE, _GEMM_SIZE)
    spans = [RowSpan(0, tokens, range(tokens // BLOCK))]
    steps = [_program(_layers(dtype, tokens // BLOCK, 1), spans) for dtype in (torch.float32, torch.int8)]
    gemm_s, *prefill_s = turn.best(lambda: torch.mm(*square), *steps)
    plain, int8 = (2 * tokens * (tokens + 1) * HEADS * HEAD_DIM / each / 1e9 for each in prefill_s)
    name, unit = f"attention, prefill of {tokens}", "GFLOP/s"
    gemm = 2 * _GEMM_SIZE**3 / gemm_s / 1e9
    return [
        Figure(f"{name}, {turn.suffix}", plain, unit, gemm, "torch's fp32 GEMM", 0.6),
        Figure(f"{name}, int8 KV, {turn.suffix}", int8, unit, plain, "fp32 KV", 1.5),
    ]


def _cascade(turn: _Turn, heads: int, dtype: torch.dtype, target: float) -> Figure:
    common, own = PREFIX // BLOCK, SUFFIX // BLOCK
    layers = _layers(dtype, common + SHARERS * own, 8)
    spans = [
        RowSpan(PREFIX + SUFFIX - 1, 1, [*range(common), *range(common + i * own, common + (i + 1) * own)])
        for i in range(SHARERS)
    ]
    prefix = SharedPrefix(tuple(range(SHARERS)), 0, common)
    plain_s, cascade_s = turn.best(
        _program(layers, spans, heads), _program(layers, spans, heads, shared=[prefix])
    )
    rows = len(layers) * SHARERS
    name = f"attention, {SHARERS} rows sharing {PREFIX} of {PREFIX + SUFFIX}, {heads}/{KV_HEADS} heads"
    kind = f"{str(dtype).removeprefix('torch.')} KV"
    return Figure(
        f"{name}, {kind}, {turn.suffix}", rows / cascade_s, "rows/s", rows / plain_s, "unshared", target
    )


def _plan() -> Figure:
    blocks = CONTEXT // BLOCK
    spans = [RowSpan(CONTEXT - 1, 1, array("q", range(i, i + blocks))) for i in range(SHARERS)]
    turn = _Turn(time.thread_time, "")
    seconds = min(turn.best(lambda: make_plan(spans, BLOCK))[0] for _ in range(20))
    name = f"attention, plan of {SHARERS} rows at {CONTEXT}"
    return Figure(name, seconds * 1e6, "us", 100.0, "goal", 1.0, higher_is_better=False)


def _program(
    layers: Sequence[KvLayer],
    spans: Sequence[RowSpan],
    heads: int = HEADS,
    *,
    shared: Sequence[SharedPrefix] = (),
    block: int = BLOCK,
) -> Program:
    plan = make_plan(spans, block, shared=shared)
    q = torch.randn(plan.tokens, heads, HEAD_DIM)
    out, rows, params = torch.empty(q.shape), NativePlan(plan), AttentionParams(HEAD_DIM**-0.5)
    return Program(call(q, layer, rows, params, out) for layer in layers)


def _layers(dtype: torch.dtype, blocks: int, count: int, block: int = BLOCK) -> list[KvLayer]:
    """A pool of `count` layers, block-major as the engine's, of some noise."""
    vectors = (block, KV_HEADS, HEAD_DIM)
    records = memory.empty((blocks, count, record_bytes(*vectors, dtype)), torch.uint8)
    if dtype in CODE_MAX:
        codes, scales = split_records(records, vectors, dtype)
        codes.view(torch.uint8).random_(0, 100)
        scales.fill_(0.01)
        return [KvLayer(codes[:, i], scales[:, i]) for i in range(count)]
    codes = records.view(dtype).unflatten(-1, (2, *vectors))
    codes.normal_()
    return [KvLayer(codes[:, i]) for i in range(count)]
