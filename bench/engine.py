"""How close the model runs to what the machine can do: prefill to its matrix products, decode to its memory.

The demo model in fp32. Limits and measurements take turns, and each figure is the median of its rounds: with
one thread by the thread's own clock, so that neighbours on the machine count as little as they can, with all
cores (decode only: one thread cannot keep a memory bus busy and compute besides) by the wall's.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch

from baton.bench.report import Figure
from baton.core.batch import Batch, Row
from baton.core.request import SamplingParams
from baton.engine.config import EngineConfig
from baton.engine.loader import load
from baton.engine.models.llama import LlamaModel
from baton.engine.torch_runner import TorchRunner
from baton.runtime.cpus import usable_cpus

PROMPT_TOKENS = 512
DECODE_CONTEXT = 128
BATCH = 16
ROUNDS = 15
BLOCKS = 256
_GREEDY = SamplingParams(temperature=0.0)
_SAMPLED = SamplingParams(temperature=0.8, top_p=0.95, seed=1)
_READ_BYTES = 256 * 2**20
_GEMM_SIZE = 1024


def run() -> list[Figure]:
    threads = torch.get_num_threads()
    try:
        return _measure()
    finally:
        torch.set_num_threads(threads)


def _measure() -> list[Figure]:
    loaded = load(EngineConfig("demo", threads=1))
    assert isinstance(loaded.model, LlamaModel)
    runner = loaded.runner(BLOCKS)
    square, memory = torch.randn(_GEMM_SIZE, _GEMM_SIZE), torch.ones(_READ_BYTES // 4)
    prefill, decode = _prefill(), _decode(1, _GREEDY)

    gemm_s, prefill_s = _alternate(lambda: square @ square, lambda: runner.run(prefill))
    figures = [_read(runner, loaded.model, decode, memory, 1), _overhead(runner, "greedy", _GREEDY)]
    figures.append(_overhead(runner, "sampled", _SAMPLED))
    if (cores := usable_cpus()) > 1:
        figures.append(_read(runner, loaded.model, decode, memory, cores))
    return [
        Figure(
            name=f"prefill of {PROMPT_TOKENS} tokens",
            value=_prefill_flops(loaded.model) / prefill_s / 1e9,
            unit="GFLOP/s",
            limit=2 * _GEMM_SIZE**3 / gemm_s / 1e9,
            limit_name="fp32 GEMM",
            target=0.65,
        ),
        *figures,
    ]


def _read(
    runner: TorchRunner, model: LlamaModel, decode: Batch, memory: torch.Tensor, threads: int
) -> Figure:
    """How fast a decode step of one row reads the weights, against a plain read of as many threads."""
    torch.set_num_threads(threads)
    clock = time.thread_time if threads == 1 else time.perf_counter
    read_s, decode_s = _alternate(memory.sum, lambda: runner.run(decode), clock)
    return Figure(
        name=f"decode, batch 1, {threads} thread{'s'[: threads != 1]}, weights read",
        value=_weight_bytes(model) / decode_s / 1e9,
        unit="GB/s",
        limit=_READ_BYTES / read_s / 1e9,
        limit_name="memory read",
        target=0.55,
    )


def _overhead(runner: TorchRunner, name: str, sampling: SamplingParams) -> Figure:
    """What a step takes besides the model's forward: planning, choosing tokens, making results."""
    batch = _decode(BATCH, sampling)
    outputs = [runner.run(batch) for _ in range(ROUNDS)]
    return Figure(
        name=f"decode, batch {BATCH}, {name}, besides the forward",
        value=statistics.median(out.duration_s - out.forward_s for out in outputs) * 1e3,
        unit="ms",
        limit=statistics.median(out.duration_s for out in outputs) * 1e3,
        limit_name="step",
        target=0.10,
        higher_is_better=False,
    )


def _alternate(
    limit: Callable[[], object],
    measured: Callable[[], object],
    clock: Callable[[], float] = time.thread_time,
) -> tuple[float, float]:
    """Median seconds of each, run in turn."""
    limits, figures = [], []
    for _ in range(ROUNDS + 1):
        limits.append(_seconds(limit, clock))
        figures.append(_seconds(measured, clock))
    return statistics.median(limits[1:]), statistics.median(figures[1:])  # the first ones warm up


def _seconds(call: Callable[[], object], clock: Callable[[], float]) -> float:
    begun = clock()
    call()
    return clock() - begun


def _row(index: int, start: int, tokens: list[int], sampling: SamplingParams) -> Row:
    end = start + len(tokens)
    per_row = -(-end // 16)
    table = range(1 + index * per_row, 1 + (index + 1) * per_row)
    return Row((str(index), 0), tokens, start, table, True, sampling, [5] * end, end)


def _prefill() -> Batch:
    tokens = [100 + 37 * i % 40_000 for i in range(PROMPT_TOKENS)]
    return Batch((_row(0, 0, tokens, _GREEDY),), clear=tuple(range(1, 1 + PROMPT_TOKENS // 16)))


def _decode(rows: int, sampling: SamplingParams) -> Batch:
    return Batch(tuple(_row(i, DECODE_CONTEXT - 1, [1000 + i], sampling) for i in range(rows)))


def _prefill_flops(model: LlamaModel) -> float:
    """Multiplications and additions of the products that a prompt's forward really does: the last layer's MLP
    and the head see its last token only."""
    config, tokens = model.config, PROMPT_TOKENS
    first = model.weights.layers[0]
    after = first.out.numel() + first.gate_up.numel() + first.down.numel()
    products = config.layers * first.qkv.numel() * tokens
    products += (config.layers - 1) * after * tokens + after + model.weights.head.numel()
    pairs = tokens * (tokens + 1) / 2
    return 2 * products + config.layers * 4 * pairs * config.heads * config.head_dim


def _weight_bytes(model: LlamaModel) -> int:
    """What one decode step reads of the matrices; of a tied embedding, its use as the head."""
    layers = sum(
        weight.nbytes
        for layer in model.weights.layers
        for weight in (layer.qkv, layer.out, layer.gate_up, layer.down)
    )
    return layers + model.weights.head.nbytes
