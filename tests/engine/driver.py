"""The least that can drive a runner: continuous batching with chunked prompts over one KvCache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from baton.core.batch import Batch, Row, TokenLogprobs
from baton.core.kvcache import KvCache
from baton.core.request import SamplingParams
from baton.engine.runner import ModelRunner

GREEDY = SamplingParams(temperature=0.0, logprobs=0)


@dataclass(slots=True)
class Live:
    """A prompt on its way. prompt_logprobs: in order, as its chunks gave them."""

    name: str
    history: list[int]
    prompt_len: int
    wanted: int
    computed: int = 0
    blocks: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)

    @property
    def output(self) -> list[int]:
        return self.history[self.prompt_len :]


class Driver:
    """chunk: most prompt tokens of a step. pad: what block tables are filled up with beyond their blocks."""

    def __init__(
        self,
        runner: ModelRunner,
        kv: KvCache,
        chunk: int,
        *,
        pad: int = -1,
        sampling: SamplingParams = GREEDY,
    ) -> None:
        self.runner = runner
        self.kv = kv
        self.chunk = chunk
        self.pad = pad
        self.sampling = sampling

    def generate(self, prompts: Sequence[Sequence[int]], new_tokens: int) -> list[Live]:
        """All prompts at once; each runs to `new_tokens`. Blocks are given back at the end."""
        every = [Live(str(i), list(p), len(p), new_tokens) for i, p in enumerate(prompts)]
        live = list(every)
        while live:
            self._step(live)
            live = [one for one in live if len(one.output) < one.wanted]
        for one in every:
            self.kv.release(one.blocks)
        self.kv.check()
        return every

    def _step(self, live: list[Live]) -> None:
        rows: list[Row] = []
        members: list[Live] = []
        budget = self.chunk
        # Decoding ones first, then prompts while the budget lasts.
        for one in sorted(live, key=lambda one: len(one.history) - one.computed > 1):
            todo = len(one.history) - one.computed
            take = 1 if todo == 1 and one.output else min(todo, budget)
            if not take:
                continue
            budget -= take if take > 1 or not one.output else 0
            rows.append(self._row(one, take))
            members.append(one)
        out = self.runner.run(Batch(tuple(rows), tuple(self.kv.take_dirty())))
        for one, row, result in zip(members, rows, out.rows, strict=True):
            assert result.seq == row.seq
            one.computed = row.context
            one.prompt_logprobs += result.prompt_logprobs
            assert (result.token_id is not None) == row.sample, "no token, or one too many"
            if result.token_id is not None:
                one.history.append(result.token_id)
                if result.logprobs is not None:
                    one.logprobs.append(result.logprobs.logprob)

    def _row(self, one: Live, take: int) -> Row:
        end = one.computed + take
        one.blocks += self.kv.allocate(self.kv.blocks_for(end) - len(one.blocks))
        return Row(
            seq=(one.name, 0),
            token_ids=one.history[one.computed : end],
            start=one.computed,
            block_table=[*one.blocks, *[self.pad] * 3],
            sample=end == len(one.history),
            sampling=self.sampling,
            history=one.history[: max(end, one.prompt_len)],
            prompt_len=one.prompt_len,
        )
