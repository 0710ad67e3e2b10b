"""Which prompts a node computes, and in which pieces. Pure; runs in the engine thread.

    add ──▶ waiting ──start──▶ running ──last chunk──▶ exporting ──release / take──▶ gone
               ▲                  │
               └────reclaim───────┘ (decode on the same pool needs the blocks)

A job that ends while a hand-off may read its blocks is held until `release`.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import chain, count

from baton.core.batch import Row, RowOutput
from baton.core.errors import (
    BatonError,
    DeadlineExceeded,
    IllegalTransition,
    InternalError,
    NotFound,
    ResourceExhausted,
    Unavailable,
)
from baton.core.flight import Ending, Flight, row_for
from baton.core.kvcache import KvCache
from baton.core.node_effects import Ended, Key, KvReady, NodeEffect, Prefilled, Started, TokensOut
from baton.core.phase import Move, Phase
from baton.core.request import FinishReason, Request
from baton.core.sequence import Sequence, finish_of
from baton.kv_transfer.handoff import Loan
from baton.prefill_node.admission import Admission, check_fits
from baton.prefill_node.fetch import Fetch
from baton.prefill_node.jobs import Job, Stages
from baton.prefill_node.limits import PrefillLimits, PrefillStats
from baton.prefill_node.order import Queue


class PrefillScheduler:
    """Step: `schedule` -> run the rows -> `complete`. Between the two only add, abort, fail, release and
    expire are called.

    revision: the model's identity in prefix keys (see core.prefix.root_key).
    """

    def __init__(self, kv: KvCache, limits: PrefillLimits, revision: str) -> None:
        self._kv = kv
        self._limits = limits
        self._revision = revision
        self._stages = Stages()
        self._queue = Queue(limits)
        self._admission = Admission(kv, limits, revision, self._stages)
        self._flight = Flight()
        self._numbers = count()
        self._pending: list[NodeEffect] = []  # said at the next complete
        self._queries = self._hits = self._preemptions = 0

    # ---- requests come and go ----------------------------------------------------------------------------

    def add(
        self,
        now: float,
        request: Request,
        deadline_s: float | None,
        *,
        remote: bool,
        fetch: Fetch | None = None,
    ) -> None:
        """Queue a request.

        remote: its KV goes to another node, and a hand-off is started for it right after this returns;
        its blocks then stay until `release`. Not remote: `take` follows its Prefilled. fetch: KV that another
        node was asked for, until `fetch_over`. Raises InvalidArgument (can never fit), ResourceExhausted (the
        queue is full), Unavailable (the key is here already).
        """
        check_fits(request, self._limits, self._kv)
        if self._stages.known((request.id, request.attempt)):
            raise Unavailable(f"request {request.id!r} attempt {request.attempt} is here already")
        if len(self._stages.waiting) >= self._limits.max_waiting:
            tokens = sum(job.seq.remaining for job in self._stages.waiting.values())
            wait_s = tokens * self._queue.token_s
            raise ResourceExhausted(f"{self._limits.max_waiting} prompts are waiting", retry_after_s=wait_s)
        seq = Sequence(request, Phase.QUEUED, arrived_s=now, deadline_s=deadline_s)
        job = Job(seq, next(self._numbers), pinned=remote)
        if fetch is not None and self._kv.prefix_caching and not job.wants_prompt_logprobs:
            job.fetch, job.lent_tokens = fetch, fetch.tokens
        self._stages.add(job)

    def abort(self, key: Key, *, silent: bool = False) -> list[NodeEffect]:
        """End a request in whatever phase it is. Unknown or ended: nothing happens. A request in the batch
        that runs right now gets its Ended from `complete`."""
        return self._end(key, Ending(FinishReason.CANCELLED, silent=silent))

    def fail(self, key: Key, error: BatonError) -> list[NodeEffect]:
        """As `abort`, with an error (its hand-off failed, the runner did)."""
        return self._end(key, Ending(FinishReason.ERROR, error))

    def expire(self, now: float) -> list[NodeEffect]:
        """End what is past its deadline."""
        if not self._stages.deadlines:
            return []
        late = [job for job in self._stages.alive() if (d := job.seq.deadline_s) is not None and d <= now]
        return [
            effect
            for job in late
            for effect in self.fail(job.seq.key, DeadlineExceeded("the deadline passed during prefill"))
        ]

    def release(self, key: Key) -> None:
        """No hand-off reads the request's blocks any more: it is gone, without a word. Unknown: no-op."""
        if job := self._stages.held.get(key):
            self._stages.move(job, None)
            job.seq.drop_kv(self._kv)
        elif job := self._stages.get(key):
            job.pinned = False
            self._end(key, Ending(FinishReason.CANCELLED, silent=True))

    def take(self, key: Key) -> Sequence:
        """Decode goes on in place: the sequence and its blocks change owner. NotFound: no such export;
        IllegalTransition: it belongs to a hand-off."""
        job = self._stages.exporting.get(key)
        if job is None:
            raise NotFound(f"no prefilled sequence {key}")
        if job.pinned:
            raise IllegalTransition(f"sequence {key} is being handed off")
        job.seq.move(Move.LOCALISE)
        self._stages.move(job, None)
        return job.seq

    # ---- KV of other nodes -------------------------------------------------------------------------------

    def asked_for(self, link: str, loan: Loan) -> tuple[Request, tuple[bytes, ...]]:
        """What a loan that is offered is for: the beginning of a request that waits, and its prefix keys.
        NotFound: for nothing (any more)."""
        job = self._stages.fetching.get(loan.key)
        if job is None or job.fetch is None:
            raise NotFound("no prompt waits for it")
        seq, size = job.seq, self._kv.block_size
        seq.extend_keys(size, min(job.fetch.tokens, len(seq.token_ids)), self._revision)
        if error := job.fetch.fault(link, loan, seq, size):
            raise error
        beginning = tuple(seq.token_ids[: loan.tokens])
        request = replace(seq.request, prompt_ids=beginning, output_ids=(), timeout_s=None)
        return request, tuple(seq.keys[: loan.tokens // size])

    def fetch_over(self, key: Key, tokens: int) -> None:
        """What was asked for is in the prefix cache, or will not come (0). Unknown: no-op."""
        if job := self._stages.fetching.pop(key, None):
            job.fetch, job.lent_tokens = None, tokens

    def take_unwanted(self) -> list[Key]:
        """Prompts that wait for another node's KV no longer, for they ended or lost patience since the last
        call."""
        keys, self._stages.unwanted = self._stages.unwanted, []
        return keys

    # ---- one step ----------------------------------------------------------------------------------------

    def schedule(self, now: float, budget_tokens: int, keep_blocks: int = 0) -> list[Row]:
        """Rows of at most budget_tokens in all, starting prompts. keep_blocks: starts leave them free."""
        self._flight.must_be_landed()
        self._admission.new_step()
        left = min(budget_tokens, self._limits.max_batch_tokens)
        grants: dict[Job, int] = {}
        for job in self._queue.sorted(self._stages.unfinished(), now):
            if left <= 0:
                break
            if job.seq.phase is Phase.QUEUED:
                if job.fetch is not None and self._holds(job, job.fetch, now):
                    continue
                if not self._start(now, job, keep_blocks, grants):
                    continue
            grants[job] = min(job.seq.remaining, self._limits.chunk_tokens, left)
            left -= grants[job]
            if grants[job] == job.seq.remaining and sum(grants.values()) >= self._limits.enough_tokens:
                left = 0  # more would only keep its first token waiting
        for job, granted in grants.items():  # what nobody else wants
            extra = min(job.seq.remaining - granted, left)
            grants[job] += extra
            left -= extra
            self._queue.spend(job, grants[job], now)
        rows = [row_for(job.seq, n, prompt_logprobs=job.wants_prompt_logprobs) for job, n in grants.items()]
        self._flight.depart(rows)
        return rows

    def complete(self, now: float, outputs: Mapping[Key, RowOutput]) -> list[NodeEffect]:
        """Take in what the rows gave. Keys of others are ignored; a row without output counts as not run."""
        effects, self._pending = self._pending, []
        for row, ending in self._flight.land():
            job = self._stages.running[row.seq]
            output = outputs.get(row.seq)
            if ending is not None:
                effects.append(self._finish(job, ending))
            elif output is not None:
                effects += self._advance(now, job, row, output)
        return effects

    def reclaim(self, blocks: int) -> int:
        """Decode on the same pool needs blocks: preempt the youngest prompts in computation, but for those
        whose blocks a hand-off knows. Returns how many became available. Not to be called while rows run."""
        self._flight.must_be_landed()
        before = self._kv.available
        for job in sorted(self._stages.running.values(), key=lambda job: -job.number):
            if self._kv.available - before >= blocks:
                break
            if not job.exposed:
                self._preempt(job)
        return self._kv.available - before

    def set_pace(self, token_s: float) -> None:
        """Seconds per prompt token, as measured."""
        self._queue.token_s = token_s

    # ---- what it says of itself --------------------------------------------------------------------------

    @property
    def step_tokens(self) -> int:
        """The most tokens of prompts in one step."""
        return self._limits.max_batch_tokens

    @property
    def front_context(self) -> int:
        """Tokens before the next chunk, of the prompt that is farthest."""
        return max((job.seq.computed for job in self._stages.running.values()), default=0)

    @property
    def busy(self) -> bool:
        """A prompt waits or runs (which does not mean that `schedule` finds room for it)."""
        return bool(self._stages.waiting or self._stages.running)

    def next_wakeup(self) -> float | None:
        """When `expire` is next due, or a prompt's patience ends."""
        stages = self._stages
        due = min(stages.deadlines.values()) if stages.deadlines else None
        for job in stages.fetching.values():
            when = None if job.fetch is None else job.fetch.due_s
            if when is not None and (due is None or when < due):
                due = when
        return due

    def wanted_blocks(self) -> int:
        """Blocks that a starving prompt waits for: others should leave them free (`HandoffSink.pump`)."""
        return self._admission.wanted_blocks()

    def stats(self) -> PrefillStats:
        stages = self._stages
        tokens, work = 0, 0.0
        for job in stages.unfinished():
            left = job.to_compute
            tokens += left
            work += left * (len(job.seq.token_ids) - left / 2)
        return PrefillStats(
            waiting=len(stages.waiting),
            running=len(stages.running),
            exporting=stages.kept,
            waiting_tokens=tokens,
            waiting_work=round(work),
            prefix_queries=self._queries,
            prefix_hits=self._hits,
            preemptions=self._preemptions,
        )

    def owned(self) -> Iterator[array[int]]:
        """The blocks of each sequence here: every one a reference."""
        return (job.seq.blocks for job in chain(self._stages.alive(), self._stages.held.values()))

    def check(self) -> None:
        """Raise AssertionError unless every job is in one stage, with the phase and blocks it implies."""
        stages = self._stages
        jobs = list(chain(stages.alive(), stages.held.values()))
        assert len({job.seq.key for job in jobs}) == len(jobs), "a job is in two stages"
        alive = [(job.seq.key, job.seq.deadline_s) for job in stages.alive()]
        assert stages.deadlines == {key: when for key, when in alive if when is not None}
        for stage, phase in (
            (stages.waiting, Phase.QUEUED),
            (stages.running, Phase.PREFILL),
            (stages.exporting, Phase.EXPORT),
            (stages.held, Phase.ENDED),
        ):
            for job in stage.values():
                assert job.seq.phase is phase, f"{job.seq.phase} among {phase}"
        assert not any(job.seq.blocks for job in stages.waiting.values()), "a waiting prompt holds blocks"
        fetching = {key: job for key, job in stages.waiting.items() if job.fetch is not None}
        assert stages.fetching == fetching, "a fetch is not that of a waiting prompt"
        assert all(job.fetch is None for job in jobs if job.seq.key not in fetching)
        for job in stages.running.values():
            assert len(job.seq.blocks) == self._kv.blocks_for(len(job.seq.token_ids)), "a prompt lacks blocks"

    # ---- parts -------------------------------------------------------------------------------------------

    def _holds(self, job: Job, fetch: Fetch, now: float) -> bool:
        """It waits for KV of another node, while others go first; but not for ever."""
        if fetch.holds(now):
            return True
        self._stages.unwanted.append(job.seq.key)
        self.fetch_over(job.seq.key, 0)
        return False

    def _start(self, now: float, job: Job, keep_blocks: int, granted: Mapping[Job, int]) -> bool:
        victim = None
        if len(self._stages.running) >= self._limits.max_running:
            victim = self._slot_of_lower_priority(job, granted)
            if victim is None:
                return False
        if not self._admission.start(job, keep_blocks):
            return False
        if victim is not None:
            self._preempt(victim)
        seq = job.seq
        if seq.started_s is None:  # a restart after preemption is not told, nor counted, again
            seq.started_s = now
            seq.cached = seq.computed
            self._queries += len(seq.token_ids)
            self._hits += seq.cached
            lent = min(job.lent_tokens, seq.cached)
            self._pending.append(Started(seq.key, seq.cached, now - seq.arrived_s, lent))
        return True

    def _slot_of_lower_priority(self, job: Job, granted: Mapping[Job, int]) -> Job | None:
        """The youngest prompt of the lowest priority, if that is below the job's."""
        running = self._stages.running.values()
        victims = [other for other in running if not other.exposed and other not in granted]
        worst = max(victims, key=lambda other: (other.seq.request.priority, other.number), default=None)
        if worst is None or worst.seq.request.priority <= job.seq.request.priority:
            return None
        return worst

    def _preempt(self, job: Job) -> None:
        job.seq.move(Move.PREEMPT)
        job.seq.drop_kv(self._kv)
        job.seq.preemptions += 1
        job.prompt_logprobs.clear()
        self._preemptions += 1
        self._stages.move(job, self._stages.waiting)

    def _advance(self, now: float, job: Job, row: Row, output: RowOutput) -> list[NodeEffect]:
        seq = job.seq
        seq.computed += row.length
        seq.publish(self._kv, self._revision)
        job.prompt_logprobs.extend(output.prompt_logprobs)
        if seq.remaining:
            job.exposed = job.pinned
            return [KvReady(seq.key, seq.computed, tuple(seq.blocks))] if job.pinned else []
        if output.token_id is None:
            return [self._finish(job, Ending(FinishReason.ERROR, InternalError("no token was sampled")))]
        seq.token_ids.append(output.token_id)
        logprobs = () if output.logprobs is None else (output.logprobs,)
        tokens = TokensOut(
            seq.key, seq.output_len - 1, (output.token_id,), logprobs, tuple(job.prompt_logprobs)
        )
        finish = finish_of(seq, output.token_id, self._limits.max_model_len)
        if finish is not None:
            return [tokens, self._finish(job, Ending(finish))]
        return [tokens, self._export(now, job)]

    def _export(self, now: float, job: Job) -> Prefilled:
        seq = job.seq
        seq.move(Move.PREFILLED)
        self._stages.move(job, self._stages.exporting)
        assert seq.started_s is not None
        return Prefilled(
            seq.key,
            tokens=seq.computed,
            blocks=tuple(seq.blocks),
            output_ids=tuple(seq.token_ids[seq.prompt_len :]),
            prefill_s=now - seq.started_s,
        )

    def _end(self, key: Key, ending: Ending) -> list[NodeEffect]:
        job = self._stages.get(key)
        if job is None:
            return []
        if key in self._flight:
            self._flight.defer(key, ending)
            return []
        return [self._finish(job, ending)]

    def _finish(self, job: Job, ending: Ending) -> Ended:
        seq = job.seq
        seq.move(Move.END)
        seq.finish = ending.reason
        if job.pinned and seq.blocks:
            self._stages.move(job, self._stages.held)
        else:
            self._stages.move(job, None)
            seq.drop_kv(self._kv)
        return Ended(seq.key, ending.reason, seq.output_len, seq.preemptions, ending.error, ending.silent)
