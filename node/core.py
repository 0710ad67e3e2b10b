"""Both roles of a node over one block pool: the pure heart that the engine thread turns.

prefill scheduler ──Prefilled──▶ the hand-off, on the event loop ──ExportEnded──▶ KV given back
       │ in place          Lend ──▶ loans ──Lent──▶ the same, for KV that is cached here
       ▼
decode scheduler  ◀──Admit── hand-off sink ◀── Reserve / Commit of prefill nodes
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from baton.core.batch import Row, SharedPrefix, StepOutput
from baton.core.cascade import CascadeCost, shared_prefixes
from baton.core.errors import BatonError, IllegalTransition, NotFound
from baton.core.kvcache import KvCache, KvEvents
from baton.core.load import LoadReport, Role
from baton.core.node_effects import (
    Admit,
    DropLink,
    Ended,
    FetchOver,
    Key,
    KvReady,
    NodeEffect,
    Prefilled,
    SendRefusal,
    SinkEffect,
)
from baton.core.request import FinishReason
from baton.core.value import value
from baton.decode_node.scheduler import DecodeScheduler
from baton.kv_transfer.handoff_sink import HandoffSink
from baton.node import commands as cmd
from baton.node.loans import Loans
from baton.node.pace import Pace
from baton.node.samples import StepSamples
from baton.prefill_node.fetch import Fetch
from baton.prefill_node.scheduler import PrefillScheduler


@value
class SnapshotOut:
    token: int
    keys: tuple[bytes, ...]


@value
class Lent:
    """What became of a Lend: blocks of the longest beginning that is cached here, or why there are none."""

    key: Key
    blocks: tuple[int, ...] = ()
    error: BatonError | None = None


@value
class KvChange:
    events: KvEvents


@value
class Admitted:
    """A hand-off was committed: from here on this node tells router_id of the request."""

    key: Key
    router_id: str


@value
class Misbehaved:
    """A prefill node said something that makes no sense; its link is dropped."""

    link: str
    error: BatonError


@value
class LoadOut:
    load: LoadReport


@value
class CoreLimits:
    """max_batch_tokens: of one step. max_running: decode rows of one step, as told to routers. cascade: what
    reading shared KV once costs; None: never do it. least_prompt_tokens: so many go into a step now and then,
    if there is a prompt, however tight the targets of decode rows are. by_latency: look at those at all."""

    max_batch_tokens: int
    max_running: int
    cascade: CascadeCost | None = None
    least_prompt_tokens: int = 32
    by_latency: bool = True


Told = Admitted | Misbehaved | Lent | SnapshotOut | KvChange | LoadOut
Out = NodeEffect | SinkEffect | Told | BaseException


JUST_S = 0.005  # after a step what waited for it is taken in
MOST_WITHOUT = 7  # steps in a row that leave no time for prompts


class NodeCore:
    """Commands in, rows to run out, step results in, effects out (`drain`). No clock, no I/O."""

    def __init__(
        self,
        kv: KvCache,
        prefill: PrefillScheduler,
        decode: DecodeScheduler,
        sink: HandoffSink,
        role: Role,
        limits: CoreLimits,
    ) -> None:
        self.kv = kv
        self.prefill = prefill
        self.decode = decode
        self.sink = sink
        self.loans = Loans(kv)
        self.role = role
        self.draining = False
        self._limits = limits
        self._in_place: set[Key] = set()
        self._rows: tuple[Row, ...] = ()
        self._decode_rows = 0
        self._outs: list[Out] = []
        self._samples = StepSamples()
        self._pace = Pace(prefill.step_tokens)
        self._steps = self._without_prompts = 0
        self._mixed = (-1.0, 0.0)  # when the last step with prompts ended, how long it took
        self._reports = 0
        self._arrived: list[str] = []  # since the last report
        self._changed = True

    @property
    def has_work(self) -> bool:
        return self.prefill.busy or self.decode.busy

    @property
    def quiet(self) -> bool:
        """Nothing is to be computed, and nobody waits for room: until a command comes or the next wakeup,
        `tick` and `schedule` would do nothing."""
        return not self.has_work and self.sink.idle

    # ---- in ----------------------------------------------------------------------------------------------

    def handle(self, now: float, command: cmd.Command) -> None:
        self._changed = True
        match command:
            case cmd.Add():
                self._add(now, command)
            case cmd.AbortKeys(keys):
                for key in keys:
                    self._abort(now, key)
            case cmd.Fail(key, error):
                self._emit(now, self.prefill.fail(key, error))
            case cmd.ExportEnded(key):
                if not self.loans.release(key):
                    self.prefill.release(key)
            case cmd.FetchFailed(key):
                self.prefill.fetch_over(key, 0)
            case cmd.Lend(key, keys):
                self._outs.append(self._lend(key, keys))
            case cmd.SetRole(role):
                self.role = role
            case cmd.SetDraining(draining):
                self.draining = draining
            case cmd.Snapshot(token):
                self._kv_changes()
                self._outs.append(SnapshotOut(token, tuple(self.kv.index.keys())))
            case _:
                self._sunk(now, self._sink(now, command))

    def _sink(self, now: float, command: cmd.SinkCommand) -> Iterable[SinkEffect]:
        """A peer whose message its transfer's state does not allow loses its link, and nothing else."""
        try:
            return self._sink_call(now, command)
        except IllegalTransition as error:
            self._outs.append(Misbehaved(command.link, error))
            return [DropLink(command.link)]

    def _sink_call(self, now: float, command: cmd.SinkCommand) -> Iterable[SinkEffect]:
        sink = self.sink
        match command:
            case cmd.Reserve(link, transfer_id, request, router_id):
                return sink.reserve(now, link, transfer_id, request, router_id)
            case cmd.Offer(link, transfer_id, loan):
                try:
                    return sink.offer(now, link, transfer_id, *self.prefill.asked_for(link, loan))
                except NotFound as error:
                    return [SendRefusal(link, transfer_id, error)]
            case cmd.Commit(link, transfer_id, tokens, output_ids):
                return sink.commit(now, link, transfer_id, tokens, output_ids)
            case cmd.Abandon(link, transfer_id, revoked):
                return (sink.revoked if revoked else sink.abandon)(now, link, transfer_id)
            case cmd.Fenced(link, transfer_id):
                return sink.fenced(link, transfer_id)
            case cmd.LinkReturned(link):
                return sink.writer_returned(now, link)
            case cmd.LinkBeat(link):
                return sink.beat(now, link)
            case cmd.LinkLost(link):
                return sink.link_lost(now, link)
            case cmd.WriterDead(link):
                return sink.writer_dead(now, link)

    def tick(self, now: float) -> None:
        """Deadlines, leases, and reservations that now find room."""
        self._emit(now, self.prefill.expire(now))
        self._emit(now, self.decode.expire(now))
        self._end_unwanted_fetches(now)
        self._sunk(now, self.sink.expire(now))
        if self.sink.waits:
            keep = self.decode.headroom_blocks() + self.prefill.wanted_blocks()
            self._sunk(now, self.sink.pump(now, keep))

    def next_wakeup(self) -> float | None:
        times = (self.prefill.next_wakeup(), self.decode.next_wakeup(), self.sink.next_wakeup())
        return min([when for when in times if when is not None], default=None)

    # ---- a step ------------------------------------------------------------------------------------------

    def schedule(self, now: float) -> tuple[Row, ...]:
        """Decode rows first, prefill chunks with what is left of the token budget, and of the time within
        which the rows want their next token."""
        rows = self.decode.schedule(now, self._limits.max_batch_tokens)
        budget = self._limits.max_batch_tokens - sum([len(row.token_ids) for row in rows])
        self._decode_rows = len(rows)
        if rows and budget > 0 and self._limits.by_latency and self.prefill.busy:
            budget = min(budget, self._prompt_tokens(now, rows))
        if budget > 0 and self.prefill.busy:
            rows = rows + self.prefill.schedule(now, budget, self.decode.headroom_blocks())
            self._end_unwanted_fetches(now)
        self._rows = tuple(rows)
        return self._rows

    def _prompt_tokens(self, now: float, rows: list[Row]) -> int:
        limit_s = self.decode.patience_s(now, rows)
        if limit_s is None:
            return self._limits.max_batch_tokens
        fit = self._pace.prompt_tokens(rows, limit_s, self.prefill.front_context)
        self._without_prompts = 0 if fit > 0 else self._without_prompts + 1
        if self._without_prompts > MOST_WITHOUT:
            self._without_prompts = 0
            return self._limits.least_prompt_tokens
        return fit

    def shared(self) -> tuple[SharedPrefix, ...]:
        """Of the rows just scheduled."""
        cost = self._limits.cascade
        return () if cost is None else shared_prefixes(self._rows, self.kv.block_size, cost)

    @property
    def decode_rows(self) -> int:
        """How many of the rows just scheduled, the first ones, are decode's."""
        return self._decode_rows

    def take_dirty(self) -> tuple[int, ...]:
        return tuple(self.kv.take_dirty())

    def complete(self, now: float, output: StepOutput) -> None:
        self._changed = True
        self._steps += 1
        self._samples.add(self._rows, self._decode_rows, output.duration_s)
        self._pace.observe(self._rows, self._decode_rows, output.duration_s)
        if (part := self._pace.decode_part(self._rows, self._decode_rows, output.duration_s)) is not None:
            self._samples.add_decode(part)
        if self._decode_rows < len(self._rows):
            self._mixed = (now, output.duration_s)
            self.prefill.set_pace(self._pace.token_s)
        outputs = {row.seq: row for row in output.rows}
        decode = {row.seq: outputs[row.seq] for row in self._rows[: self._decode_rows]}
        prefill = {row.seq: outputs[row.seq] for row in self._rows[self._decode_rows :]}
        self._rows = ()
        self._emit(now, self.decode.complete(now, decode))
        self._emit(now, self.prefill.complete(now, prefill))

    def steady_steps(self, most: int) -> int:
        """How many steps from the one just scheduled on, at most `most`, would run the same rows, a token
        each, as long as no command comes and no sequence ends: a driver may take them together."""
        return 1 if self.prefill.busy else self.decode.steady_steps(most)

    def complete_steps(self, tokens: Sequence[tuple[int, ...]], seconds: Sequence[float]) -> None:
        """Steady steps, one for each of `seconds`, ran: every row gets as many tokens. Only the last may end
        one."""
        rows, context = len(self._rows), sum([row.start + 1 for row in self._rows])
        self._changed = True
        self._steps += len(seconds)
        self._samples.add_steady(rows, context, seconds)
        self._pace.observe_steady(rows, context, seconds)
        self._rows = ()
        self._outs += self.decode.complete_steps(tokens)

    # ---- out ---------------------------------------------------------------------------------------------

    def drain(self, *, report: bool = True) -> list[Out]:
        """Everything to be done or known since the last call, in order; a load report last if it changed.
        report: False leaves it to whoever asks for `load`."""
        self._kv_changes()
        if report and self._changed:
            self._changed = False
            self._outs.append(LoadOut(self.load()))
        outs, self._outs = self._outs, []
        return outs

    def load(self) -> LoadReport:
        prefill, decode, sink = self.prefill.stats(), self.decode.stats(), self.sink.stats()
        self._reports += 1
        prefill_samples, decode_samples = self._samples.take()
        arrived, self._arrived = tuple(self._arrived), []
        return LoadReport(
            seq=self._reports,
            role=self.role,
            draining=self.draining,
            waiting=prefill.waiting + decode.waiting,
            running=prefill.running + decode.running,
            exporting=prefill.exporting + len(self.loans),
            reserved=sink.reserved + sink.waiting,
            waiting_tokens=prefill.waiting_tokens,
            waiting_work=prefill.waiting_work,
            context_tokens=decode.context_tokens,
            blocks_total=self.kv.pool.usable,
            blocks_free=self.kv.available,
            block_size=self.kv.block_size,
            quarantined=self.kv.pool.quarantined,
            max_running=self._limits.max_running,
            steps=self._steps,
            prefill_samples=prefill_samples,
            decode_samples=decode_samples,
            arrived=arrived,
        )

    def check(self) -> None:
        self.kv.check()
        self.prefill.check()
        self.decode.check()
        self.sink.check()
        self.loans.check()

    # ---- inside ------------------------------------------------------------------------------------------

    def _add(self, now: float, add: cmd.Add) -> None:
        request = add.request
        key = (request.id, request.attempt)
        fetch = None if add.fetch is None else Fetch(add.fetch.lender, add.fetch.tokens, add.fetch.patience_s)
        try:
            self.prefill.add(now, request, add.deadline_s, remote=not add.in_place, fetch=fetch)
        except BatonError as error:
            self._outs.append(Ended(key, FinishReason.ERROR, len(request.output_ids), error=error))
            return
        self._arrived.append(request.id)
        if add.in_place:
            self._in_place.add(key)

    def _lend(self, key: Key, keys: Sequence[bytes]) -> Lent:
        keep = self.decode.headroom_blocks() + self.prefill.wanted_blocks()
        try:
            return Lent(key, self.loans.lend(key, keys, keep))
        except BatonError as error:
            return Lent(key, error=error)

    def _abort(self, now: float, key: Key) -> None:
        self._emit(now, self.prefill.abort(key, silent=True))
        self._emit(now, self.decode.abort(key, silent=True))
        self._sunk(now, self.sink.abort(now, key))

    def _end_unwanted_fetches(self, now: float) -> None:
        for key in self.prefill.take_unwanted():
            self._sunk(now, self.sink.abort(now, key))

    def _emit(self, now: float, effects: Iterable[NodeEffect]) -> None:
        for effect in effects:
            match effect:
                case KvReady(key) if key in self._in_place:
                    continue
                case Prefilled(key) if key in self._in_place:
                    self._in_place.remove(key)
                    self._emit(now, self.decode.adopt(now, self.prefill.take(key)))
                    continue
                case Ended(key):
                    self._in_place.discard(key)
            self._outs.append(effect)

    def _sunk(self, now: float, effects: Iterable[SinkEffect]) -> None:
        for effect in effects:
            if isinstance(effect, Admit):
                request = effect.request
                self._outs.append(Admitted((request.id, request.attempt), effect.router_id))
                ended_s, took_s = self._mixed
                waited_s = took_s if now - ended_s < JUST_S else 0.0  # for that step, perhaps
                self._emit(now, self.decode.admit(now, effect, waited_s))
            else:
                if isinstance(effect, FetchOver):
                    self.prefill.fetch_over(effect.key, effect.tokens)
                self._outs.append(effect)

    def _kv_changes(self) -> None:
        if self.kv.changed:
            self._outs.append(KvChange(self.kv.drain_events()))
