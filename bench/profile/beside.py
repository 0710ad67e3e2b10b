"""What the steps of two nodes on one host do to each other: each kind alone, and while the other runs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from statistics import fmean

from baton.bench.profile.ask import Answer, Asker
from baton.bench.profile.samples import (
    Crowd,
    DecodeBeside,
    DecodeSample,
    PrefillSample,
    PromptBeside,
    Samples,
)

ROWS = (1, 2, 4)
PAIRED_ROWS = (1, 4)  # of decode beside decode
SHORT = 16
PROMPTS = 8
ALONE_S = 1.2
PAIRED_S = 1.5
SETTLE_S = 0.1

Gate = Callable[[Sequence[str]], None]
"""From now on only these nodes take requests; those at hand go on."""


@dataclass(frozen=True, slots=True)
class Nodes:
    """Of one host, by what they are used for; one that does both is in both."""

    prefill: tuple[str, ...]
    decode: tuple[str, ...]

    @property
    def first(self) -> tuple[str, str]:
        return self.prefill[0], self.decode[0]

    @property
    def all(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((*self.prefill, *self.decode)))

    @property
    def apart(self) -> bool:
        """Prompts and decode can be had on two nodes."""
        return self.prefill[0] != self.decode[0]


class Pairs:
    """Measures into `samples`."""

    def __init__(self, asker: Asker, nodes: Nodes, gate: Gate, samples: Samples) -> None:
        self._asker = asker
        self._nodes = nodes
        self._gate = gate
        self._samples = samples
        shape = asker.shape
        self._prompt = min(256, shape.chunk_tokens, shape.max_model_len // 2)
        self.rows = [rows for rows in ROWS if rows <= shape.max_rows] if nodes.apart else []
        self.paired_rows = [rows for rows in PAIRED_ROWS if rows <= shape.max_rows]

    def __len__(self) -> int:
        """What `measure` says."""
        nodes = self._nodes
        pairs = (len(nodes.prefill) > 1) + (len(nodes.decode) > 1) * len(self.paired_rows)
        return 1 + len(self.rows) + pairs + self._crowded

    async def measure(self) -> AsyncIterator[str]:
        """All of it once; says what is done."""
        alone_s = await self.prompts()
        yield "prompts"
        for rows in self.rows:
            await self.prompts_and_decode(rows, alone_s)
            yield f"prompts beside decode of {rows} rows"
        if len(self._nodes.prefill) > 1:
            await self.prompts_and_prompts(alone_s)
            yield "prompts beside prompts"
        if len(self._nodes.decode) > 1:
            for rows in self.paired_rows:
                await self.decode_and_decode(rows)
                yield f"decode beside decode of {rows} rows"
        if self._crowded:
            await self.crowd(alone_s)
            yield "all nodes"

    @property
    def _crowded(self) -> bool:
        return self._nodes.apart and len(self._nodes.all) > 2

    async def prompts(self) -> float:
        """A prompt's mean seconds, alone."""
        answers, _ = await self._one_after_another()
        for answer in answers:
            self._samples.prefill.append(PrefillSample(self._prompt, 1, answer.node_s, answer.ttft_s))
        return fmean(answer.node_s for answer in answers)

    async def prompts_and_decode(self, rows: int, alone_s: float) -> None:
        """alone_s: of a prompt."""
        async with self._decoding(rows) as streams:
            alone = await self._decoded(streams, ALONE_S)
            from_s = time.perf_counter()
            answers, until_s = await self._one_after_another()
            beside = _window(streams, from_s, until_s)
        busy_s = sum(answer.node_s for answer in answers)
        self._samples.prompt_beside.append(PromptBeside(rows, alone_s, busy_s / len(answers)))
        if alone is not None and beside is not None:
            self._samples.decode.append(alone)
            share = min(1.0, busy_s / (until_s - from_s))
            self._samples.decode_beside.append(DecodeBeside(True, alone, beside, share))

    async def prompts_and_prompts(self, alone_s: float) -> None:
        """Two at a time, each time anew: where their threads begin decides how they share the cores."""
        (one, two), decode = self._nodes.prefill[:2], self._nodes.decode[0]
        self._gate((one, two, decode))
        beside: list[float] = []
        for _ in range(PROMPTS):
            await asyncio.sleep(SETTLE_S)
            pair = await asyncio.gather(*(self._asker.ask(self._prompt, 2) for _ in range(2)))
            if pair[0].node != pair[1].node:
                beside += [answer.node_s for answer in pair]
        self._gate((one, decode))
        if beside:
            self._samples.prompt_beside.append(PromptBeside(0, alone_s, fmean(beside)))

    async def decode_and_decode(self, rows: int) -> None:
        prefill, (one, two) = self._nodes.prefill[0], self._nodes.decode[:2]
        async with self._decoding(rows) as first:
            alone = await self._decoded(first, ALONE_S)
            self._gate((prefill, two))
            async with self._decoding(rows):
                beside = await self._decoded(first, PAIRED_S)
        self._gate((prefill, one))
        if alone is not None and beside is not None:
            self._samples.decode_beside.append(DecodeBeside(False, alone, beside, 1.0))

    async def crowd(self, alone_s: float) -> None:
        """One sequence on every decode node, and prompts on every prefill node."""
        nodes = self._nodes
        async with AsyncExitStack() as stack:
            first: list[Answer] = []
            alone: DecodeSample | None = None
            for name in nodes.decode:
                self._gate((nodes.prefill[0], name))
                streams = await stack.enter_async_context(self._decoding(1))
                first = first or streams
                alone = alone or await self._decoded(first, ALONE_S)
            self._gate(nodes.all)
            from_s = time.perf_counter()
            ended = await asyncio.gather(*(self._one_after_another() for _ in nodes.prefill))
            beside = _window(first, from_s, min(until_s for _, until_s in ended))
        self._gate(nodes.first)
        kept = _apart([answer for answers, _ in ended for answer in answers])
        if kept and alone is not None and beside is not None:
            prompts = PromptBeside(len(nodes.decode), alone_s, fmean(answer.node_s for answer in kept))
            decode = DecodeBeside(True, alone, beside, 1.0)
            self._samples.crowds.append(Crowd(len(nodes.all), prompts, decode))

    async def _one_after_another(self) -> tuple[list[Answer], float]:
        """PROMPTS prompts, the next with the first token of the one before; and the time of the last such."""
        answers, asking = [], []
        for _ in range(PROMPTS):
            answers.append(Answer(0.0))
            asking.append(asyncio.create_task(self._asker.ask(self._prompt, 2, answers[-1])))
            begun = asyncio.create_task(answers[-1].begun.wait())
            await asyncio.wait([asking[-1], begun], return_when=asyncio.FIRST_COMPLETED)
            begun.cancel()
        until_s = time.perf_counter()
        await asyncio.gather(*asking)
        return answers, until_s

    @asynccontextmanager
    async def _decoding(self, rows: int) -> AsyncIterator[list[Answer]]:
        """So many sequences at work, all of them begun."""
        answers = [Answer(0.0) for _ in range(rows)]
        output = self._asker.shape.max_model_len - SHORT
        asking = [asyncio.create_task(self._asker.ask(SHORT, output, answer)) for answer in answers]
        try:
            await asyncio.wait(
                [asyncio.create_task(self._all_begun(answers)), *asking], return_when=asyncio.FIRST_COMPLETED
            )
            await asyncio.sleep(SETTLE_S)
            yield answers
        finally:
            for task in asking:
                task.cancel()
            await asyncio.gather(*asking, return_exceptions=True)
            await asyncio.sleep(SETTLE_S)

    async def _all_begun(self, answers: list[Answer]) -> None:
        for answer in answers:
            await answer.begun.wait()

    async def _decoded(self, streams: list[Answer], seconds: float) -> DecodeSample | None:
        from_s = time.perf_counter()
        await asyncio.sleep(seconds)
        return _window(streams, from_s, time.perf_counter())


def _apart(answers: list[Answer]) -> list[Answer]:
    """Those that had their prefill node to themselves."""

    def alone(one: Answer) -> bool:
        return not any(
            other is not one
            and other.node == one.node
            and other.begun_s < one.stamps[0][0]
            and one.begun_s < other.stamps[0][0]
            for other in answers
        )

    return [answer for answer in answers if alone(answer)]


def _window(streams: list[Answer], from_s: float, until_s: float) -> DecodeSample | None:
    """None: some stream made next to nothing in it, or ended."""
    made = [stream.made(from_s, until_s) for stream in streams]
    if min(made) < 2 or any(stream.timings for stream in streams):
        return None
    step_s = fmean((until_s - from_s) / count for count in made)
    context = sum(SHORT + stream.made(0.0, (from_s + until_s) / 2) for stream in streams)
    return DecodeSample(len(streams), context, step_s)
