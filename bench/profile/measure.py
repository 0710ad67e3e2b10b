"""Measures a live pair of nodes through their router: prefill by length, decode steps by batch and context,
transfers, and what nodes of one host do to each other. The deployment should be idle; each measurement has it
to itself."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable

from baton.bench.profile.ask import Asker, Shape
from baton.bench.profile.beside import Gate, Nodes, Pairs
from baton.bench.profile.samples import DecodeSample, PrefillSample, Samples, TransferSample
from baton.runtime.client.aio import AsyncClient

LENGTHS = (16, 64, 128, 256, 512, 1024, 2048)
OFTEN = 256  # up to so many tokens a prompt is measured thrice in a round: it takes next to nothing
ROWS = (1, 2, 4, 8, 16, 32)
CONTEXTS = (512, 1536)  # of one row
SHORT = 16  # tokens of a prompt where only the batch matters
STEPS = 48
ROUNDS = 3

Progress = Callable[[str, float], None]
"""What is measured, and the share that is done."""


class Profiler:
    def __init__(self, client: AsyncClient, shape: Shape, progress: Progress) -> None:
        self._asker = Asker(client, shape)
        self._shape = shape
        self._progress = progress
        self.samples = Samples()

    async def measure(
        self, rounds: int = ROUNDS, nodes: Nodes | None = None, gate: Gate = lambda names: None
    ) -> Samples:
        """Rounds over everything, so that a machine's drift meets all of it alike. nodes: those of one host,
        measured beside each other, too; None: they have a host each. gate: is told which of them are to
        take what follows."""
        lengths = [n for n in LENGTHS if n + STEPS <= self._shape.max_model_len]
        rows = [n for n in ROWS if n <= self._shape.max_rows]
        contexts = [n for n in CONTEXTS if n + 2 * STEPS <= self._shape.max_model_len]
        pairs = None if nodes is None else Pairs(self._asker, nodes, gate, self.samples)
        total = rounds * (len(lengths) + len(rows) + len(contexts) + (0 if pairs is None else len(pairs)))
        done = itertools.count(1)
        if nodes is not None:
            gate(nodes.first)
        await self._prefill(SHORT, keep=False)  # the first request of all opens connections
        for _ in range(rounds):
            for tokens in lengths:
                for _ in range(3 if tokens <= OFTEN else 1):
                    await self._prefill(tokens)
                self._progress(f"prefill of {tokens:,}", next(done) / total)
            for count in rows:
                await self._decode(count, SHORT)
                self._progress(f"decode of {count} rows", next(done) / total)
            for context in contexts:
                await self._decode(1, context)
                self._progress(f"decode over {context:,} tokens", next(done) / total)
            if pairs is not None:
                async for what in pairs.measure():
                    self._progress(what, next(done) / total)
        return self.samples

    async def _prefill(self, tokens: int, *, keep: bool = True) -> None:
        """Two tokens, so that it is handed off."""
        answer = await self._asker.ask(tokens, 2)
        timings = answer.timings
        if not keep or timings is None:
            return
        steps = -(-tokens // self._shape.chunk_tokens)
        self.samples.prefill.append(PrefillSample(tokens, steps, answer.node_s, answer.ttft_s))
        if timings.transfer_bytes:
            self.samples.transfer.append(TransferSample(timings.transfer_bytes, timings.transfer_node_s))

    async def _decode(self, rows: int, prompt_tokens: int) -> None:
        """What counts is the time in which all sequences run."""
        output = STEPS + 2 * rows  # those that begin first wait for the others
        answers = await asyncio.gather(*(self._asker.ask(prompt_tokens, output) for _ in range(rows)))
        from_s = max(answer.stamps[0][0] for answer in answers)
        until_s = min(answer.stamps[-1][0] for answer in answers)
        made = [answer.made(from_s, until_s) for answer in answers]
        if until_s <= from_s or min(made) < STEPS // 4:
            return  # they hardly met
        step_s = sum((until_s - from_s) / count for count in made) / rows
        middle = prompt_tokens + output / 2
        self.samples.decode.append(DecodeSample(rows, rows * middle, step_s))
