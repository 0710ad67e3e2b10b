"""Measures a live pair of nodes through their router: prefill by length, decode steps by batch and context,
transfers. The deployment should be idle; each measurement has it to itself."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from baton.bench.profile.fit import DecodeSample, PrefillSample, TransferSample
from baton.core.errors import FailedPrecondition
from baton.runtime.client.aio import AsyncClient
from baton.runtime.client.types import Timings
from baton.sim.workload.arrival import Arrival, prompt_ids

LENGTHS = (16, 64, 128, 256, 512, 1024, 2048)
ROWS = (1, 2, 4, 8, 16, 32)
CONTEXTS = (512, 1536)  # of one row
SHORT = 16  # tokens of a prompt where only the batch matters
STEPS = 48
ROUNDS = 3
LOOSE = {"ttft_slo_s": 1e6, "tpot_slo_s": 1e6}
"""Targets that nothing misses, in place of the deployment's: for those it might hold requests back or refuse
them."""

Progress = Callable[[str, float], None]
"""What is measured, and the share that is done."""


@dataclass(slots=True)
class Samples:
    prefill: list[PrefillSample] = field(default_factory=list)
    decode: list[DecodeSample] = field(default_factory=list)
    transfer: list[TransferSample] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Shape:
    """chunk_tokens: the most of a prompt that one step computes. max_rows: batches beyond are not
    measured."""

    vocab_size: int
    max_model_len: int
    chunk_tokens: int
    max_rows: int


class Profiler:
    def __init__(self, client: AsyncClient, shape: Shape, progress: Progress) -> None:
        self._client = client
        self._shape = shape
        self._progress = progress
        self._numbers = itertools.count(time.time_ns())  # prompts that no cache knows
        self.samples = Samples()

    async def measure(self, rounds: int = ROUNDS) -> Samples:
        """Rounds over everything, so that a machine's drift meets all of it alike."""
        lengths = [n for n in LENGTHS if n + STEPS <= self._shape.max_model_len]
        rows = [n for n in ROWS if n <= self._shape.max_rows]
        contexts = [n for n in CONTEXTS if n + 2 * STEPS <= self._shape.max_model_len]
        total = rounds * (len(lengths) + len(rows) + len(contexts))
        done = itertools.count(1)
        await self._prefill(SHORT, keep=False)  # the first request of all opens connections
        for _ in range(rounds):
            for tokens in lengths:
                await self._prefill(tokens)
                self._progress(f"prefill of {tokens:,}", next(done) / total)
            for count in rows:
                await self._decode(count, SHORT)
                self._progress(f"decode of {count} rows", next(done) / total)
            for context in contexts:
                await self._decode(1, context)
                self._progress(f"decode over {context:,} tokens", next(done) / total)
        return self.samples

    async def _prefill(self, tokens: int, *, keep: bool = True) -> None:
        """Two tokens, so that it is handed off."""
        begun_s, stamps, timings = await self._ask(tokens, 2)
        if not keep:
            return
        steps = -(-tokens // self._shape.chunk_tokens)
        node_s = timings.prefill_node_s or timings.prefill_s  # a node that does both hands nothing off
        self.samples.prefill.append(PrefillSample(tokens, steps, node_s, stamps[0][0] - begun_s))
        if timings.transfer_bytes:
            self.samples.transfer.append(TransferSample(timings.transfer_bytes, timings.transfer_node_s))

    async def _decode(self, rows: int, prompt_tokens: int) -> None:
        """What counts is the time in which all sequences run."""
        output = STEPS + 2 * rows  # those that begin first wait for the others
        answers = await asyncio.gather(*(self._ask(prompt_tokens, output) for _ in range(rows)))
        from_s = max(stamps[0][0] for _, stamps, _ in answers)
        until_s = min(stamps[-1][0] for _, stamps, _ in answers)
        made = [_made(stamps, from_s, until_s) for _, stamps, _ in answers]
        if until_s <= from_s or min(made) < STEPS // 4:
            return  # they hardly met
        step_s = sum((until_s - from_s) / count for count in made) / rows
        middle = prompt_tokens + output / 2
        self.samples.decode.append(DecodeSample(rows, rows * middle, step_s))

    async def _ask(self, prompt_tokens: int, output: int) -> tuple[float, list[tuple[float, int]], Timings]:
        """When it was sent, (time, tokens by then) of every piece, the timings."""
        stamps: list[tuple[float, int]] = []
        timings, made, begun_s = None, 0, time.perf_counter()
        options = {"max_tokens": output, "temperature": 0.0, "ignore_eos": True, **LOOSE}
        prompt = prompt_ids(Arrival(0.0, prompt_tokens, 1), self._shape.vocab_size, next(self._numbers))
        async for delta in self._client.stream(prompt, **options):
            if delta.token_ids:
                made += len(delta.token_ids)
                stamps.append((time.perf_counter(), made))
            timings = delta.timings or timings
        if timings is None or not stamps:
            raise FailedPrecondition("the deployment does not tell its timings")
        return begun_s, stamps, timings


def _made(stamps: list[tuple[float, int]], from_s: float, until_s: float) -> int:
    """Tokens within (from_s, until_s]."""
    before = [made for at_s, made in stamps if at_s <= from_s]
    within = [made for at_s, made in stamps if at_s <= until_s]
    return (within[-1] if within else 0) - (before[-1] if before else 0)
