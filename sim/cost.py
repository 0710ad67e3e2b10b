"""How long an engine step takes: by measured figures, or by a machine's peak rates."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from typing import NamedTuple, Protocol


class StepWork(NamedTuple):
    """What one step computes. Prompt chunks: their tokens, how many chunks, and pairs, the sum over their
    tokens of the tokens before each. Decode: rows and the KV tokens that they attend to."""

    prompt_tokens: int
    prompt_pairs: float
    chunks: int
    rows: int
    context: int


Line = tuple[float, float]


class StepCost(Protocol):
    def step_s(self, work: StepWork) -> float:
        """Seconds for one step of a machine at its usual pace."""

    def decode_lines(self, rows: int) -> tuple[Line, ...]:
        """`step_s` of so many rows alone: the most of (seconds, seconds per token of context)."""

    def mostly(self, work: StepWork) -> str:
        """What takes the largest part of the step, for people."""


@dataclass(frozen=True, slots=True)
class MeasuredCost:
    """Figures taken on a real machine.

    prefill: seconds per step, per new token, per (new token x token before it). decode: (rows, seconds of a
    step) in ascending order, with next to no context; linear between them and beyond the last. context_s:
    seconds per KV token attended to. In a step that does both, weights are read once.
    """

    prefill: tuple[float, float, float]
    decode: tuple[tuple[int, float], ...]
    context_s: float

    def step_s(self, work: StepWork) -> float:
        fixed, per_token, per_pair = self.prefill
        decode_s = self._rows_s(work.rows) + self.context_s * work.context if work.rows else 0.0
        if not work.prompt_tokens:
            return decode_s
        prefill_s = per_token * work.prompt_tokens + per_pair * work.prompt_pairs
        if not work.rows:
            return fixed + prefill_s
        return max(fixed + decode_s - self.decode[0][1], decode_s) + prefill_s

    def decode_lines(self, rows: int) -> tuple[Line, ...]:
        return ((self._rows_s(rows), self.context_s),)

    def mostly(self, work: StepWork) -> str:
        if work.prompt_tokens:
            return "computing prompts"
        context_s = self.context_s * work.context
        return "attention over KV" if context_s > self._rows_s(work.rows) else "computing rows"

    def _rows_s(self, rows: int) -> float:
        points = self.decode
        right = min(max(1, bisect_left(points, (rows, 0.0))), len(points) - 1)
        if len(points) == 1:
            return points[0][1]
        (low, low_s), (high, high_s) = points[right - 1], points[right]
        return low_s + (high_s - low_s) * (rows - low) / (high - low)


@dataclass(frozen=True, slots=True)
class AllReduces:
    """The sums over a node's devices that a step of a model split by tensor parallelism waits for.

    One shot: each device sends all it has to every other one, (n - 1) x bytes, after one latency. Two shots:
    each sums up its part and sends it to all, 2 (n - 1) / n x bytes, after two latencies. The faster counts.
    """

    count: int  # in a step
    devices: int
    token_bytes: float
    bandwidth: float  # attainable bytes/s of a device, one direction
    latency_s: float

    def step_s(self, tokens: int) -> float:
        others, sent_s = self.devices - 1, self.token_bytes * tokens / self.bandwidth
        one_s = self.latency_s + others * sent_s
        two_s = 2 * self.latency_s + 2 * others / self.devices * sent_s
        return self.count * min(one_s, two_s)


@dataclass(frozen=True, slots=True)
class RooflineCost:
    """The roofline model (Williams et al., CACM 52(4), 2009): a step takes as long as the slower of its
    arithmetic and its memory traffic, plus a fixed overhead.

    Arithmetic: 2 FLOP per parameter and token, and 4 per (query head dimension, pair of tokens) and layer.
    Traffic: the weights once, the KV of every row and, once per chunk, of what is before it.
    """

    flops: float  # attainable FLOP/s of matrix products
    bandwidth: float  # attainable bytes/s of memory
    overhead_s: float  # launches, sampling, host work of a step
    parameters: float  # that every token meets
    weight_bytes: float
    pair_flops: float  # 4 x layers x query heads x head dimension
    kv_bytes: float  # per token
    reduces: AllReduces | None = None  # None: one device

    def step_s(self, work: StepWork) -> float:
        tokens = work.prompt_tokens + work.rows
        compute_s, weights_s, kv_s = self._parts(work)
        return max(compute_s, weights_s + kv_s) + self._reduced_s(tokens) + self.overhead_s

    def decode_lines(self, rows: int) -> tuple[Line, ...]:
        fixed_s = self._reduced_s(rows) + self.overhead_s
        return (
            (2.0 * self.parameters * rows / self.flops + fixed_s, self.pair_flops / self.flops),
            (self.weight_bytes / self.bandwidth + fixed_s, self.kv_bytes / self.bandwidth),
        )

    def mostly(self, work: StepWork) -> str:
        compute_s, weights_s, kv_s = self._parts(work)
        if compute_s > weights_s + kv_s:
            longest = (compute_s, "arithmetic")
        else:
            longest = max((weights_s, "reading weights"), (kv_s, "reading KV"))
        reduced_s = self._reduced_s(work.prompt_tokens + work.rows)
        return max(longest, (reduced_s, "all-reduces"), (self.overhead_s, "overhead of steps"))[1]

    def _parts(self, work: StepWork) -> tuple[float, float, float]:
        """Seconds of arithmetic, of reading weights, of reading KV."""
        pairs = work.prompt_pairs + work.context
        products = 2.0 * self.parameters * (work.prompt_tokens + work.rows)
        before = work.prompt_pairs / work.prompt_tokens * work.chunks if work.prompt_tokens else 0.0
        return (
            (products + self.pair_flops * pairs) / self.flops,
            self.weight_bytes / self.bandwidth,
            self.kv_bytes * (work.context + before) / self.bandwidth,
        )

    def _reduced_s(self, tokens: int) -> float:
        return self.reduces.step_s(tokens) if self.reduces is not None else 0.0
