"""Linear layers of integer weights. One row: beside a read of as many bytes; INT4 beside INT8. Many: beside
torch's fp32 product of squares, and beside fbgemm's dynamic INT8 layer of the same shapes.

One thread, by its own clock; limit and measurement take turns, and the best of the rounds counts.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from baton.bench.kernels_linear import SHAPES
from baton.bench.report import Figure
from baton.kernels import native
from baton.kernels.linear.native import NativeLinear, prepare
from baton.kernels.native import memory
from baton.kernels.native.program import Call, Program
from baton.kernels.quantize import quantize, scheme

ROWS = {16: 0.8, 128: 1.0, 512: 1.0}  # and how much of the gain: few rows wait for memory, too
ROUNDS = 30
_SET_BYTES = 80 << 20
_GEMM_SIZE = 1024
_WEIGHTS = sum(out * inputs for out, inputs in SHAPES)
_ROUNDED = ("int8-w8a8", "int4-w4a8")
_STORED = ("int8", "int4", "mxfp4", "nvfp4")
# Over fp32. Without VNNI a product takes four instructions where fp32 takes one for as many.
_GAIN = {"amx": 3.0, "avx512": 2.5, "avx2": 1.2}


def run() -> list[Figure]:
    isa = native.isa()
    if isa is None:
        return []
    before = native.threads(), torch.get_num_threads()
    native.configure(1)
    torch.set_num_threads(1)
    try:
        with torch.inference_mode():
            return [
                *_one_row(),
                *(figure for rows in ROWS for figure in _many_rows(rows, _GAIN[isa] * ROWS[rows])),
            ]
    finally:
        native.configure(before[0])
        torch.set_num_threads(before[1])


def _one_row() -> list[Figure]:
    layers = {name: _layers(name, _SET_BYTES) for name in (*_ROUNDED, *_STORED)}
    programs = {name: _program(some, 1) for name, some in layers.items()}
    read = memory.empty((_SET_BYTES // 4,), torch.float32).fill_(1)
    read_s, *all_s = _best(read.sum, *programs.values())
    seconds = dict(zip(programs, all_s, strict=True))
    speed = {name: len(layers[name]) / len(SHAPES) * _WEIGHTS / seconds[name] / 1e9 for name in layers}
    reads = [
        Figure(
            name=f"linear, {name}, 1 row, weights read",
            value=sum(layer.nbytes for layer in layers[name]) / seconds[name] / 1e9,
            unit="GB/s",
            limit=read.nbytes / read_s / 1e9,
            limit_name="memory read",
            target=0.85,
        )
        for name in ("int8-w8a8", "int8")
    ]
    return reads + [
        Figure(f"linear, {name}, 1 row", speed[name], "G weights/s", speed["int8"], "int8", 1.3)
        for name in ("int4-w4a8", "int4", "mxfp4", "nvfp4")
    ]


def _many_rows(rows: int, gain: float) -> list[Figure]:
    names = (*_ROUNDED, "int8", "int4")
    square = torch.randn(2, _GEMM_SIZE, _GEMM_SIZE)
    programs = [_program(_layers(name, 0), rows) for name in names]
    gemm_s, fbgemm_s, *all_s = _best(lambda: torch.mm(*square), _fbgemm(rows), *programs)
    seconds = dict(zip(names, all_s, strict=True))
    gops = {name: 2 * rows * _WEIGHTS / taken / 1e9 for name, taken in seconds.items()}
    gemm = 2 * _GEMM_SIZE**3 / gemm_s / 1e9
    fbgemm = 2 * rows * _WEIGHTS / fbgemm_s / 1e9
    targets = {"int8-w8a8": gain, "int4-w4a8": gain * 0.7, "int8": gain * 0.6, "int4": gain * 0.5}
    return [
        *(
            Figure(f"linear, {name}, {rows} rows", gops[name], "GOPS", gemm, "torch's fp32 GEMM", target)
            for name, target in targets.items()
        ),
        Figure(f"linear, int8-w8a8, {rows} rows", gops["int8-w8a8"], "GOPS", fbgemm, "fbgemm, dynamic", 0.9),
    ]


def _layers(name: str, least_bytes: int) -> list[NativeLinear]:
    """One of each shape, as often as it takes."""
    layers: list[NativeLinear] = []
    while not layers or sum(layer.nbytes for layer in layers) < least_bytes:
        layers += [prepare(quantize(torch.randn(shape), scheme(name))) for shape in SHAPES]
    return layers


def _program(layers: list[NativeLinear], rows: int) -> Program:
    counter = native.Counter(rows)

    def call(layer: NativeLinear) -> Call:
        x, out = torch.randn(rows, layer.in_features), torch.empty(rows, layer.out_features)
        return layer.call(x, out, counter)

    return Program(map(call, layers))


def _fbgemm(rows: int) -> Callable[[], None]:
    """Symmetric per output; one scale for all of x, which is why it serves for comparison only."""
    layers = []
    for out, inputs in SHAPES:
        scale = torch.full((out,), 0.03, dtype=torch.float64)
        zero = torch.zeros(out, dtype=torch.int64)
        weight = torch.quantize_per_channel(torch.randn(out, inputs), scale, zero, 0, torch.qint8)
        packed = torch.ops.quantized.linear_prepack(weight, None)
        layers.append((torch.randn(rows, inputs), packed))

    def once() -> None:
        for x, packed in layers:
            torch.ops.quantized.linear_dynamic(x, packed)

    return once


def _best(*calls: Callable[[], object]) -> list[float]:
    """The least seconds of each, run in turn."""
    best = [float("inf")] * len(calls)
    for _ in range(ROUNDS):
        for index, call in enumerate(calls):
            begun = time.thread_time()
            call()
            best[index] = min(best[index], time.thread_time() - begun)
    return best
