"""Linear layers beside their limits: few rows beside a read of as many bytes, many beside a square product.

The matrices of the demo model's layers, more of them than any cache holds. Limit and measurement take turns
and the best of the rounds counts: with one thread by the thread's own clock, with all cores by the wall's.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from baton.bench.report import Figure
from baton.kernels import native
from baton.kernels.linear import Weight
from baton.kernels.linear.native import NativeLinear, prepare
from baton.kernels.native import memory
from baton.kernels.native.program import Call, Program
from baton.kernels.quantize import Codes, WeightScheme, quantize
from baton.runtime.cpus import usable_cpus

SHAPES = ((960, 576), (576, 576), (3072, 576), (576, 1536))  # outputs, inputs: qkv, out, gate and up, down
ROUNDS = 15
_SET_BYTES = 100 << 20
_GEMM_SIZE = 1024


@dataclass(frozen=True)
class _Format:
    """read_targets: what part of a plain read to reach, by rows. e4m3 takes longer to widen than to read."""

    name: str
    bytes: int
    read_targets: dict[int, float]
    store: Callable[[torch.Tensor], Weight]


_FORMATS = (
    _Format("fp32", 4, {1: 0.85, 2: 0.85, 4: 0.8}, lambda weight: weight),
    _Format("bf16", 2, {1: 0.75, 2: 0.75}, lambda weight: weight.bfloat16()),
    _Format("e4m3", 1, {1: 0.4}, lambda weight: quantize(weight, WeightScheme(Codes.FP8))),
)


def run() -> list[Figure]:
    if not native.available():
        return []
    before = native.threads(), torch.get_num_threads()
    try:
        return [figure for threads in sorted({1, usable_cpus()}) for figure in _with(threads)]
    finally:
        native.configure(before[0])
        torch.set_num_threads(before[1])


def _with(threads: int) -> list[Figure]:
    native.configure(threads)
    torch.set_num_threads(threads)
    clock = time.thread_time if threads == 1 else time.perf_counter
    suffix = f"{threads} thread{'s'[: threads != 1]}"
    read = memory.empty((_SET_BYTES // 4,), torch.float32).fill_(1)
    square = torch.randn(2, _GEMM_SIZE, _GEMM_SIZE)
    figures = []
    for form in _FORMATS:
        layers = [prepare(form.store(torch.randn(shape))) for shape in _set(form)]
        for rows, target in form.read_targets.items():
            seconds = _best(read.sum, _program(layers, rows), clock)
            name = f"linear, {form.name}, {rows} row{'s'[: rows != 1]}, {suffix}"
            figures.append(_few(name, target, layers, (read.nbytes, *seconds)))
        for rows in (32, 128, 512):
            seconds = _best(lambda: torch.mm(*square), _program(layers[: len(SHAPES)], rows), clock)
            figures.append(_many(f"linear, {form.name}, {rows} rows, {suffix}", rows, seconds))
    return figures


def _few(name: str, target: float, layers: list[NativeLinear], measured: tuple[int, float, float]) -> Figure:
    """measured: bytes of the plain read, its seconds, ours."""
    read_bytes, limit_s, best_s = measured
    return Figure(
        name=f"{name}, weights read",
        value=sum(layer.nbytes for layer in layers) / best_s / 1e9,
        unit="GB/s",
        limit=read_bytes / limit_s / 1e9,
        limit_name="memory read",
        target=target,
    )


def _many(name: str, rows: int, seconds: tuple[float, float]) -> Figure:
    return Figure(
        name=name,
        value=2 * rows * sum(out * inputs for out, inputs in SHAPES) / seconds[1] / 1e9,
        unit="GFLOP/s",
        limit=2 * _GEMM_SIZE**3 / seconds[0] / 1e9,
        limit_name="torch's fp32 GEMM",
        target=0.9,
    )


def _set(form: _Format) -> list[tuple[int, int]]:
    one = sum(out * inputs for out, inputs in SHAPES) * form.bytes
    return list(SHAPES) * (_SET_BYTES // one)


def _program(layers: list[NativeLinear], rows: int) -> Program:
    counter = native.Counter(rows)

    def call(layer: NativeLinear) -> Call:
        x, out = torch.randn(rows, layer.in_features), torch.empty(rows, layer.out_features)
        return layer.call(x, out, counter)

    return Program(map(call, layers))


def _best(
    limit: Callable[[], object], measured: Callable[[], object], clock: Callable[[], float]
) -> tuple[float, float]:
    """The least seconds of each, run in turn."""
    limits: list[float] = []
    figures: list[float] = []
    for _ in range(ROUNDS):
        for call, seconds in ((limit, limits), (measured, figures)):
            begun = clock()
            call()
            seconds.append(clock() - begun)
    return min(limits), min(figures)
