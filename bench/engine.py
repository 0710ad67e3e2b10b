"""How close the model runs to what the machine can do: prefill to its matrix products, decode to its memory.
What quantised weights gain, and what a step takes besides its kernels.

The demo model. What is compared takes turns, and each figure is the median of its rounds: with one thread by
the thread's own clock, so that neighbours on the machine count as little as they can, with all cores by the
wall's.
"""

from __future__ import annotations

import statistics
import time
from functools import partial

import torch

from baton.bench.engine_work import GREEDY, SAMPLED, Engine, alternate, kernel_seconds
from baton.bench.report import Figure
from baton.core.request import SamplingParams
from baton.kernels import native
from baton.runtime.cpus import usable_cpus

ROUNDS = 11
_READ_BYTES = 256 * 2**20
_GEMM_SIZE = 1024
_SHOWN = {"none": "fp32", "int8-w8a8": "INT8 W8A8", "int4": "INT4", "auto": "GGUF as stored"}


def run() -> list[Figure]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        engines = {quantization: Engine(quantization) for quantization in _SHOWN}
        plain, int8 = engines["none"], engines["int8-w8a8"]
        return [
            *_prefill(plain),
            _read(plain),
            _batching(plain),
            *_gains(engines),
            *_on_all_cores(engines),
            *(_besides(engine, GREEDY) for engine in (plain, int8, engines["auto"])),
            _besides(int8, SAMPLED),
            *_absolute(engines),
        ]
    finally:
        native.configure(1)
        torch.set_num_threads(threads)


def _prefill(plain: Engine) -> list[Figure]:
    square = torch.randn(_GEMM_SIZE, _GEMM_SIZE)
    figures = []
    for tokens, target in ((512, 0.80), (2048, 0.70)):
        rounds = ROUNDS if tokens == 512 else 3
        gemm_s, prefill_s = alternate(
            lambda: square @ square, partial(plain.prefill, tokens), rounds, time.thread_time
        )
        figures.append(
            Figure(
                name=f"fp32, prefill of {tokens} tokens, 1 thread",
                value=plain.prefill_flops(tokens) / prefill_s / 1e9,
                unit="GFLOP/s",
                limit=2 * _GEMM_SIZE**3 / gemm_s / 1e9,
                limit_name="fp32 GEMM",
                target=target,
            )
        )
    return figures


def _read(plain: Engine) -> Figure:
    """How fast a decode step of one row reads the weights, against a plain read."""
    memory = torch.ones(_READ_BYTES // 4)
    read_s, decode_s = alternate(memory.sum, lambda: plain.decode(1), ROUNDS, time.thread_time)
    return Figure(
        name="fp32, decode, batch 1, 1 thread, weights read",
        value=plain.weights_bytes / decode_s / 1e9,
        unit="GB/s",
        limit=_READ_BYTES / read_s / 1e9,
        limit_name="memory read",
        target=0.80,
    )


def _batching(plain: Engine) -> Figure:
    few_s, many_s = alternate(lambda: plain.decode(4), lambda: plain.decode(32), ROUNDS, time.thread_time)
    return Figure("fp32, decode, batch 32", 32 / many_s, "tokens/s", 4 / few_s, "batch 4", 2.5)


def _gains(engines: dict[str, Engine]) -> list[Figure]:
    """Quantised weights against others, one thread each."""
    figures = []
    for faster, slower, rows, target in (
        ("int8-w8a8", "none", 1, 3.0),
        ("int8-w8a8", "none", 16, 2.5),
        ("int4", "int8-w8a8", 1, 1.2),
        ("auto", "int8-w8a8", 1, 1.2),
    ):
        one, other = engines[faster], engines[slower]
        fast_s, slow_s = alternate(
            partial(one.decode, rows),
            partial(other.decode, rows),
            ROUNDS,
            time.thread_time,
        )
        name = f"{_SHOWN[faster]}, decode, batch {rows}"
        figures.append(Figure(name, rows / fast_s, "tokens/s", rows / slow_s, _SHOWN[slower], target))
    int8, plain = engines["int8-w8a8"], engines["none"]
    fast_s, slow_s = alternate(lambda: int8.prefill(512), lambda: plain.prefill(512), 5, time.thread_time)
    figures.append(
        Figure("INT8 W8A8, prefill of 512 tokens", 512 / fast_s, "tokens/s", 512 / slow_s, "fp32", 1.5)
    )
    return figures


def _on_all_cores(engines: dict[str, Engine]) -> list[Figure]:
    """Where cores share the memory's bandwidth, what reads less, or less often, gains more."""
    cores, figures = usable_cpus(), []
    for faster, slower, rows, other_rows, target in (
        ("none", "none", 32, 4, 2.5),
        ("int4", "int8-w8a8", 1, 1, 1.2),
        ("auto", "int8-w8a8", 1, 1, 1.2),
    ):
        one, other = engines[faster], engines[slower]
        one.threads(cores)
        other.threads(cores)
        fast_s, slow_s = alternate(
            partial(one.decode, rows), partial(other.decode, other_rows), ROUNDS, time.perf_counter
        )
        one.threads(1)
        other.threads(1)
        name = f"{_SHOWN[faster]}, decode, batch {rows}, all {cores} cores"
        limit_name = f"batch {other_rows}" if rows != other_rows else _SHOWN[slower]
        figures.append(Figure(name, rows / fast_s, "tokens/s", other_rows / slow_s, limit_name, target))
    return figures


def _besides(engine: Engine, sampling: SamplingParams) -> Figure:
    """What a step of one row takes besides its kernels, on all cores: planning, filling, choosing."""
    engine.threads(usable_cpus())
    steps, besides = [], []
    for _ in range(2 * ROUNDS):
        with kernel_seconds() as spent:
            steps.append(engine.decode(1, sampling=sampling).duration_s)
        besides.append(steps[-1] - sum(spent))
    engine.threads(1)
    how = "greedy" if sampling.greedy else "sampled"
    return Figure(
        name=f"{_SHOWN[engine.quantization]}, decode, batch 1, {how}, besides the kernels",
        value=statistics.median(besides) * 1e3,
        unit="ms",
        limit=statistics.median(steps) * 1e3,
        limit_name="step",
        target=0.10,
        higher_is_better=False,
    )


def _absolute(engines: dict[str, Engine]) -> list[Figure]:
    """Tokens per second on all cores, beside fp32's. Prompts of decoding sequences have 128 tokens."""
    cores = usable_cpus()
    figures: list[Figure] = []
    plain: dict[str, float] = {}
    for quantization in ("none", "int8-w8a8", "auto"):
        engine = engines[quantization]
        engine.threads(cores)
        rates = {f"prefill of {tokens} tokens": engine.prefill_rate(tokens) for tokens in (128, 512, 2048)}
        rates |= {f"decode, batch {rows}": engine.decode_rate(rows) for rows in (1, 8, 32)}
        engine.threads(1)
        plain = plain or rates
        for what, rate in rates.items():
            name = f"{_SHOWN[quantization]}, {what}, all {cores} cores"
            figures.append(Figure(name, rate, "tokens/s", plain[what], "fp32", None))
    return figures
