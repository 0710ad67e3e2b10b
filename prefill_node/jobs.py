"""The prompts of a prefill scheduler, by stage."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain

from baton.core.batch import TokenLogprobs
from baton.core.node_effects import Key
from baton.core.sequence import Sequence
from baton.prefill_node.fetch import Fetch


@dataclass(slots=True, eq=False)
class Job:
    """A prompt and what this node promised about it.

    number: order of arrival. pinned: a hand-off may read its blocks, so they stay until `release`. exposed:
    it was told which blocks (KvReady), so they cannot be taken back. bypassed: later prompts that started
    while this one waited for blocks. fetch: what another node is to lend, while that may come; lent_tokens:
    how much that is, or was.
    """

    seq: Sequence
    number: int
    pinned: bool
    exposed: bool = False
    bypassed: int = 0
    fetch: Fetch | None = None
    lent_tokens: int = 0
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)

    @property
    def to_compute(self) -> int:
        """Tokens that are likely to be computed here yet."""
        left = self.seq.remaining
        return left if self.seq.computed or not self.lent_tokens else max(1, left - self.lent_tokens)

    @property
    def wants_prompt_logprobs(self) -> bool:
        """An earlier attempt that emitted a token has delivered them already."""
        request = self.seq.request
        return request.sampling.prompt_logprobs is not None and not request.output_ids


class Stages:
    """waiting ──▶ running ──▶ exporting ──▶ gone, and `held`: ended, blocks kept for a hand-off.

    A job is in one of them. deadlines: of those not ended that have one. fetching: those that wait and are
    promised KV of another node."""

    def __init__(self) -> None:
        self.waiting: dict[Key, Job] = {}
        self.running: dict[Key, Job] = {}
        self.exporting: dict[Key, Job] = {}
        self.held: dict[Key, Job] = {}
        self.deadlines: dict[Key, float] = {}
        self.fetching: dict[Key, Job] = {}
        self.unwanted: list[Key] = []  # fetches that nobody waits for any more

    def add(self, job: Job) -> None:
        self.waiting[job.seq.key] = job
        if job.fetch is not None:
            self.fetching[job.seq.key] = job
        if job.seq.deadline_s is not None:
            self.deadlines[job.seq.key] = job.seq.deadline_s

    def alive(self) -> Iterator[Job]:
        return chain(self.waiting.values(), self.running.values(), self.exporting.values())

    def unfinished(self) -> Iterator[Job]:
        return chain(self.running.values(), self.waiting.values())

    def get(self, key: Key) -> Job | None:
        """The job of a request that has not ended."""
        return self.waiting.get(key) or self.running.get(key) or self.exporting.get(key)

    def known(self, key: Key) -> bool:
        return key in self.held or self.get(key) is not None

    def move(self, job: Job, stage: dict[Key, Job] | None) -> None:
        """Take the job out of its stage and, unless it is gone, put it into another."""
        key = job.seq.key
        for other in (self.waiting, self.running, self.exporting, self.held):
            other.pop(key, None)
        if stage is not None:
            stage[key] = job
        if stage is not self.waiting and self.fetching.pop(key, None) is not None:
            job.fetch = None
            self.unwanted.append(key)
        if stage is None or stage is self.held:
            self.deadlines.pop(key, None)

    @property
    def kept(self) -> int:
        """Jobs that are done here and whose blocks wait for a hand-off."""
        return len(self.exporting) + len(self.held)

    @property
    def kept_blocks(self) -> int:
        return sum(len(job.seq.blocks) for job in chain(self.exporting.values(), self.held.values()))
