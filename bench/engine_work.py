"""Batches for the demo model, and what they take: the work that `engine` measures."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import torch

from baton.core.batch import Batch, Row, StepOutput
from baton.core.request import SamplingParams
from baton.engine.config import EngineConfig
from baton.engine.loader import load
from baton.engine.models.llama import LlamaModel
from baton.engine.models.recorded import RecordedModel
from baton.kernels import native
from baton.kernels.native.program import Program

GREEDY = SamplingParams(temperature=0.0)
SAMPLED = SamplingParams(temperature=0.8, top_p=0.95, seed=1)
CONTEXT = 128
NEW_TOKENS = 64
CHUNK = 512
_BLOCK = 16
_BLOCKS = 32 * (CONTEXT + NEW_TOKENS) // _BLOCK + 1


class Engine:
    """The demo model, quantised in one way or another. weights_bytes: that a decode step reads."""

    def __init__(self, quantization: str) -> None:
        self.quantization = quantization
        loaded = load(EngineConfig("demo", quantization=quantization, threads=1))
        assert isinstance(loaded.model, LlamaModel | RecordedModel)
        self.model = loaded.model
        self.runner = loaded.runner(_BLOCKS)
        self.weights_bytes = loaded.weights_bytes

    def threads(self, count: int) -> None:
        """How many compute from now on."""
        if isinstance(self.model, RecordedModel):
            native.configure(count)
        else:
            torch.set_num_threads(count)

    def prefill(self, tokens: int) -> None:
        """A prompt to its first token."""
        ids = [100 + 37 * i % 40_000 for i in range(tokens)]
        for at in range(0, tokens, CHUNK):
            self.runner.run(Batch((_row(0, at, ids[at : at + CHUNK], ids, GREEDY),)))

    def decode(self, rows: int, at: int = CONTEXT, sampling: SamplingParams = GREEDY) -> StepOutput:
        """One step of so many sequences that have `at` tokens before it."""
        history = [5] * (at + 1)
        return self.runner.run(Batch(tuple(_row(i, at, [1000 + i], history, sampling) for i in range(rows))))

    def prefill_rate(self, tokens: int) -> float:
        """Tokens per second, the best of three."""
        return tokens / min(_seconds(lambda: self.prefill(tokens)) for _ in range(3))

    def decode_rate(self, rows: int) -> float:
        """Tokens per second of so many sequences, from 128 tokens of context on: by the median of steps that
        are spread over their next 64."""
        ends = range(CONTEXT, CONTEXT + NEW_TOKENS, 4)
        return rows / statistics.median(_seconds(partial(self.decode, rows, at)) for at in ends)

    @property
    def prefill_flops(self) -> Callable[[int], float]:
        """Of a prompt of so many tokens: multiplications and additions of the products that it really needs:
        the last layer's MLP and the head see its last token only."""
        config, decoder = self.model.config, self.model.decoder
        first = decoder.layers[0]
        qkv = config.hidden_size * first.qkv.out_features
        after = config.hidden_size * (first.out.in_features + 3 * config.intermediate_size)
        head = config.hidden_size * config.vocab_size

        def flops(tokens: int) -> float:
            steps = -(-tokens // CHUNK)
            products = config.layers * qkv * tokens + (config.layers - 1) * after * tokens
            pairs = tokens * (tokens + 1) / 2
            attention = config.layers * 4 * pairs * config.heads * config.head_dim
            return 2 * (products + after * steps + head) + attention

        return flops


def alternate(
    one: Callable[[], object], other: Callable[[], object], rounds: int, clock: Callable[[], float]
) -> tuple[float, float]:
    """Median seconds of each, run in turn: neighbours on the machine hit both alike."""
    ones, others = [], []
    for _ in range(rounds + 1):
        ones.append(_seconds(one, clock))
        others.append(_seconds(other, clock))
    return statistics.median(ones[1:]), statistics.median(others[1:])  # the first ones warm up


@contextmanager
def kernel_seconds() -> Iterator[list[float]]:
    """What each recorded program takes while this lasts."""
    spent: list[float] = []
    run = Program.__call__

    def timed(self: Program) -> None:
        begun = time.perf_counter()
        run(self)
        spent.append(time.perf_counter() - begun)

    Program.__call__ = timed  # type: ignore[method-assign]
    try:
        yield spent
    finally:
        Program.__call__ = run  # type: ignore[method-assign]


def _seconds(call: Callable[[], object], clock: Callable[[], float] = time.perf_counter) -> float:
    begun = clock()
    call()
    return clock() - begun


def _row(index: int, start: int, tokens: list[int], history: list[int], sampling: SamplingParams) -> Row:
    end = start + len(tokens)
    per_row = (CONTEXT + NEW_TOKENS) // _BLOCK
    table = range(1 + index * per_row, 1 + (index + 1) * per_row) if index else range(1, _BLOCKS)
    return Row((str(index), 0), tokens, start, table, end == len(history), sampling, history[:end], end)
