"""Requests that measure: of exact lengths, never from a cache, with targets that hold nothing back."""

from __future__ import annotations

import asyncio
import itertools
import time
from dataclasses import dataclass, field

from baton.core.errors import FailedPrecondition
from baton.runtime.client.aio import AsyncClient
from baton.runtime.client.types import Timings
from baton.sim.workload.arrival import Arrival, prompt_ids

LOOSE = {"ttft_slo_s": 1e6, "tpot_slo_s": 1e6}
"""Targets that nothing misses, in place of the deployment's: for those it might hold requests back or refuse
them."""


@dataclass(frozen=True, slots=True)
class Shape:
    """chunk_tokens: the most of a prompt that one step computes. max_rows: batches beyond are not
    measured."""

    vocab_size: int
    max_model_len: int
    chunk_tokens: int
    max_rows: int


@dataclass(slots=True)
class Answer:
    """What has come so far. stamps: (time, tokens by then) of every piece. begun: set with the first one."""

    begun_s: float
    stamps: list[tuple[float, int]] = field(default_factory=list)
    begun: asyncio.Event = field(default_factory=asyncio.Event)
    timings: Timings | None = None

    @property
    def ttft_s(self) -> float:
        return self.stamps[0][0] - self.begun_s

    @property
    def node_s(self) -> float:
        """The prefill node's seconds; of one that does both, and hands nothing off, the router's."""
        assert self.timings is not None
        return self.timings.prefill_node_s or self.timings.prefill_s

    @property
    def node(self) -> str:
        """That computed its prompt."""
        return "" if self.timings is None else self.timings.prefill_node

    def made(self, from_s: float, until_s: float) -> int:
        """Tokens within (from_s, until_s]."""
        before = [made for at_s, made in self.stamps if at_s <= from_s]
        within = [made for at_s, made in self.stamps if at_s <= until_s]
        return (within[-1] if within else 0) - (before[-1] if before else 0)


class Asker:
    def __init__(self, client: AsyncClient, shape: Shape) -> None:
        self.shape = shape
        self._client = client
        self._numbers = itertools.count(time.time_ns())  # prompts that no cache knows

    async def ask(self, prompt_tokens: int, output: int, answer: Answer | None = None) -> Answer:
        """The whole answer; `answer` is filled as it comes. FailedPrecondition: there are no timings."""
        answer = answer or Answer(0.0)
        answer.begun_s = time.perf_counter()
        made = 0
        options = {"max_tokens": output, "temperature": 0.0, "ignore_eos": True, **LOOSE}
        prompt = prompt_ids(Arrival(0.0, prompt_tokens, 1), self.shape.vocab_size, next(self._numbers))
        async for delta in self._client.stream(prompt, **options):
            if delta.token_ids:
                made += len(delta.token_ids)
                answer.stamps.append((time.perf_counter(), made))
                answer.begun.set()
            answer.timings = delta.timings or answer.timings
        if answer.timings is None or not answer.stamps:
            raise FailedPrecondition("the deployment does not tell its timings")
        return answer
