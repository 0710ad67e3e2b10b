"""The decode side of every hand-off of one node. Pure; runs in the engine thread, owns reserved blocks.

Late and stale messages (of transfers that are not, or no longer, known) are counted and dropped; a message
that the reservation's state does not allow raises IllegalTransition and changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import count

from baton.core.errors import BatonError, DeadlineExceeded, InvalidArgument, ResourceExhausted, Unavailable
from baton.core.kvcache import KvCache
from baton.core.node_effects import (
    Admit,
    DropLink,
    Ended,
    Fence,
    FetchOver,
    Key,
    SendCommitted,
    SendRefusal,
    SendRevoke,
    SendTicket,
    SinkEffect,
)
from baton.core.prefix import chain, root_key
from baton.core.request import FinishReason, Request, check_token_ids
from baton.core.value import value
from baton.kv_transfer.handoff_reservation import Event, Reservation, State

MAX_BLOCKED = 32  # a pump does not look further once so many did not fit: it runs at every step


@dataclass(frozen=True, slots=True)
class SinkLimits:
    """max_waiting: reservations without a ticket; max_granted: with one, not yet committed. lease_s: a link
    without a beat for so long counts as lost. max_bypass: how many later reservations may overtake one that
    does not fit yet. priority_s: a step of priority is worth so many seconds of waiting."""

    max_model_len: int
    vocab_size: int
    max_waiting: int = 256
    max_granted: int = 256
    max_bypass: int = 64
    lease_s: float = 10.0
    priority_s: float = 30.0


@value
class SinkStats:
    waiting: int
    reserved: int  # tickets given, not yet committed
    quarantined_transfers: int
    stale: int  # messages of transfers that are not, or no longer, known


class HandoffSink:
    """Reservations by (link, transfer id).

    link: one *writer*, named by node id and incarnation: a new stream of the same incarnation is the same
    link, a restarted writer another. Every method returns effects to be carried out in order. A reservation
    that does not come to Admit gives one silent Ended, unless it was refused by `reserve`; an offer one
    FetchOver, unless it was refused by `offer`.
    """

    def __init__(self, kv: KvCache, limits: SinkLimits, revision: str) -> None:
        self._kv = kv
        self._limits = limits
        self._revision = revision
        self._numbers = count()
        self._all: dict[tuple[str, int], Reservation] = {}
        self._waiting: dict[tuple[str, int], Reservation] = {}  # of them, those without a ticket
        self._beats: dict[str, float] = {}  # links with a live reservation -> last sign of life
        self._stale = 0

    # ---- the source's word -------------------------------------------------------------------------------

    def reserve(
        self, now: float, link: str, transfer_id: int, request: Request, router_id: str
    ) -> list[SinkEffect]:
        """Queue a reservation, or refuse it. Deadline: now + request.timeout_s. Tickets come by `pump`."""
        deadline_s = None if request.timeout_s is None else now + request.timeout_s
        number = next(self._numbers)
        return self._take(Reservation(link, transfer_id, request, router_id, number, now, deadline_s))

    def offer(
        self, now: float, link: str, transfer_id: int, request: Request, keys: tuple[bytes, ...]
    ) -> list[SinkEffect]:
        """Queue room for KV that this node asked for. request: whole blocks, whose prefix keys are `keys`.
        Ends with one FetchOver, unless it is refused here."""
        number = next(self._numbers)
        one = Reservation(link, transfer_id, request, "", number, now, None, keys=keys, loan=True)
        return self._take(one)

    def commit(
        self, now: float, link: str, transfer_id: int, tokens: int, output_ids: tuple[int, ...]
    ) -> list[SinkEffect]:
        """All KV is applied: the blocks go to the decode scheduler. A commit that is not in order is refused;
        the source then owes `abandon`."""
        self.beat(now, link)
        one = self._all.get((link, transfer_id))
        if one is None:
            self._stale += 1
            return [SendRefusal(link, transfer_id, Unavailable("the reservation is gone"))]
        if one.state is State.QUARANTINED:  # crossed our revoke
            self._stale += 1
            return []
        if one.state is State.GRANTED and (error := self._misfit(one, tokens, output_ids)):
            return [SendRefusal(link, transfer_id, error), *self._give_up(one, revoke=False)]
        one.move(Event.COMMIT)
        del self._all[one.id]
        if one.loan:
            return [Fence(link, transfer_id), self._keep(one), SendCommitted(link, transfer_id)]
        admit = Admit(
            request=replace(one.request, output_ids=output_ids),
            blocks=tuple(one.cached + one.fresh),
            computed=tokens,
            cached_tokens=len(one.cached) * self._kv.block_size,
            deadline_s=one.deadline_s,
            router_id=one.router_id,
            keys=one.keys or (),
        )
        return [Fence(link, transfer_id), admit, SendCommitted(link, transfer_id)]

    def abandon(self, now: float, link: str, transfer_id: int) -> list[SinkEffect]:
        """The source wants no more of it and promises that it does not write."""
        self.beat(now, link)
        one = self._known(link, transfer_id)
        if one is None:
            return []
        was = one.state
        one.move(Event.ABANDON)
        self._free(one, was)
        if was is State.QUARANTINED:
            return []
        fence: list[SinkEffect] = [Fence(link, transfer_id)] if was is State.GRANTED else []
        return [*fence, self._ended(one)]

    def revoked(self, now: float, link: str, transfer_id: int) -> list[SinkEffect]:
        """The source's answer to a revoke."""
        self.beat(now, link)
        one = self._known(link, transfer_id)
        if one is not None:
            self._safe(one)
        return []

    def beat(self, now: float, link: str) -> list[SinkEffect]:
        """A sign of life: the leases of all transfers of the link go on."""
        if link in self._beats:
            self._beats[link] = now
        return []

    # ---- what becomes of writers ---------------------------------------------------------------------------

    def fenced(self, link: str, transfer_id: int) -> list[SinkEffect]:
        """The transport let a Fence succeed: nothing of this transfer can land any more."""
        one = self._all.get((link, transfer_id))
        if one is not None:
            self._safe(one)
        return []

    def awaits_fence(self, link: str, transfer_id: int) -> bool:
        """Whether `fenced` would free anything."""
        one = self._all.get((link, transfer_id))
        return one is not None and one.state is State.QUARANTINED

    def link_lost(self, now: float, link: str) -> list[SinkEffect]:
        """The stream broke. What was not committed is over; its fresh blocks are quarantined."""
        self._beats.pop(link, None)
        live = [one for one in self._all.values() if one.link == link and one.live]
        return [effect for one in live for effect in self._give_up(one, revoke=False)]

    def writer_returned(self, now: float, link: str) -> list[SinkEffect]:
        """The same incarnation opened a new stream: it promises that all its earlier writes are over."""
        return self.writer_dead(now, link)

    def writer_dead(self, now: float, link: str) -> list[SinkEffect]:
        """No process is left that could write for this link's transfers."""
        effects = self.link_lost(now, link)
        for one in [one for one in self._all.values() if one.link == link]:
            self._safe(one)
        return effects

    # ---- this node's word --------------------------------------------------------------------------------

    def abort(self, now: float, key: Key) -> list[SinkEffect]:
        """The request is cancelled, or waits no longer for a loan. Unknown, committed or given up already:
        nothing happens."""
        error = Unavailable("the request was cancelled at the decode node")
        live = [one for one in self._all.values() if one.key == key and one.live]
        return [effect for one in live for effect in self._refuse_or_revoke(one, error)]

    def pump(self, now: float, keep_blocks: int = 0) -> list[SinkEffect]:
        """Give tickets, in order, as far as room goes. keep_blocks: what others here are about to need.

        One that does not fit may be overtaken by smaller ones, but only so often.
        """
        if not self._waiting:
            return []
        effects: list[SinkEffect] = []
        granted = sum(one.state is State.GRANTED for one in self._all.values())
        blocked: list[Reservation] = []
        for one in self._queue():
            if granted >= self._limits.max_granted or len(blocked) >= MAX_BLOCKED:
                break
            if not self._grant(one, keep_blocks):
                if one.bypassed >= self._limits.max_bypass:
                    break
                blocked.append(one)
                continue
            for other in blocked:
                other.bypassed += 1
            granted += 1
            cached_tokens = len(one.cached) * self._kv.block_size
            effects.append(SendTicket(one.link, one.transfer_id, cached_tokens, tuple(one.fresh)))
            if any(other.bypassed >= self._limits.max_bypass for other in blocked):
                break
        return effects

    def expire(self, now: float) -> list[SinkEffect]:
        """Leases and deadlines."""
        if not self._all:
            self._beats.clear()  # a lease is of transfers
            return []
        effects: list[SinkEffect] = []
        for link in [link for link, beat_s in self._beats.items() if beat_s + self._limits.lease_s <= now]:
            if any(one.link == link and one.live for one in self._all.values()):
                effects.append(DropLink(link))
            effects += self.link_lost(now, link)
        for one in [one for one in self._all.values() if (d := one.deadline_s) is not None and d <= now]:
            if one.live:
                error = DeadlineExceeded("the deadline passed before the hand-off")
                effects += self._refuse_or_revoke(one, error)
        return effects

    # ---- what it says of itself --------------------------------------------------------------------------

    def next_wakeup(self) -> float | None:
        """When `expire` is next due."""
        if not self._beats and not self._all:
            return None
        due = [one.deadline_s for one in self._all.values() if one.deadline_s is not None and one.live]
        if self._beats:
            due.append(min(self._beats.values()) + self._limits.lease_s)
        return min(due, default=None)

    @property
    def idle(self) -> bool:
        """No transfer is under way or in quarantine."""
        return not self._all

    @property
    def waits(self) -> bool:
        """`pump` may find room for somebody."""
        return bool(self._waiting)

    def stats(self) -> SinkStats:
        states = [one.state for one in self._all.values()]
        return SinkStats(
            waiting=len(self._waiting),
            reserved=states.count(State.GRANTED),
            quarantined_transfers=states.count(State.QUARANTINED),
            stale=self._stale,
        )

    def owned(self) -> Iterator[list[int]]:
        """The blocks of each reservation: every one a reference (quarantined ones have none)."""
        return (one.cached + one.fresh for one in self._all.values() if one.live)

    def check(self) -> None:
        """Raise AssertionError unless every reservation has the blocks that its state implies."""
        quarantined = 0
        for one_id, one in self._all.items():
            assert one.id == one_id
            assert one.state is not State.OVER, "a finished reservation is remembered"
            assert one.state is State.GRANTED or not one.cached, "cached blocks are held without a ticket"
            assert one.state is not State.WAITING or not one.fresh, "blocks are held without a ticket"
            assert not one.live or one.link in self._beats, "a link without a lease"
            assert (one.state is State.WAITING) == (one_id in self._waiting), "not where it should be"
            quarantined += len(one.fresh) if one.state is State.QUARANTINED else 0
        assert quarantined == self._kv.pool.quarantined, "quarantined blocks nobody answers for"

    # ---- parts -------------------------------------------------------------------------------------------

    def _take(self, one: Reservation) -> list[SinkEffect]:
        self.beat(one.arrived_s, one.link)
        if one.id in self._all:
            self._stale += 1
            return []
        if error := self._unfit(one.request):
            return [SendRefusal(one.link, one.transfer_id, error)]
        self._all[one.id] = self._waiting[one.id] = one
        self._beats.setdefault(one.link, one.arrived_s)
        return []

    def _keep(self, one: Reservation) -> FetchOver:
        """What was lent is found by its keys from now on; nobody holds it yet."""
        blocks = one.cached + one.fresh
        assert one.keys is not None
        for key, block in zip(one.keys, blocks, strict=True):
            self._kv.publish(key, block)
        self._kv.release(blocks)
        return FetchOver(one.key, len(one.fresh) * self._kv.block_size)

    def _known(self, link: str, transfer_id: int) -> Reservation | None:
        one = self._all.get((link, transfer_id))
        self._stale += one is None
        return one

    def _unfit(self, request: Request) -> BatonError | None:
        """Why a request cannot be taken, now or ever."""
        tokens = request.prefill_tokens
        if not request.prompt_ids or tokens + 1 > self._limits.max_model_len:
            limit = self._limits.max_model_len - 1
            return InvalidArgument(f"has {tokens} tokens, decode takes 1 to {limit}", field="prompt")
        if self._kv.blocks_for(tokens) > self._kv.pool.usable:
            return InvalidArgument(f"needs more than {self._kv.pool.usable} KV blocks", field="prompt")
        if any(one.live and one.key == (request.id, request.attempt) for one in self._all.values()):
            return Unavailable("this attempt is reserved already")
        if len(self._waiting) >= self._limits.max_waiting:
            return ResourceExhausted(f"{self._limits.max_waiting} hand-offs are waiting for decode")
        return None

    def _misfit(self, one: Reservation, tokens: int, output_ids: tuple[int, ...]) -> BatonError | None:
        """What is wrong with a commit."""
        request = one.request
        if tokens != request.prefill_tokens:
            return InvalidArgument(f"{tokens} tokens committed of {request.prefill_tokens}", field="tokens")
        if one.loan:
            return InvalidArgument("come with no loan", field="output_ids") if output_ids else None
        if len(output_ids) != len(request.output_ids) + 1 or output_ids[:-1] != request.output_ids:
            return InvalidArgument("must continue the request's by one token", field="output_ids")
        try:
            check_token_ids("output_ids", output_ids, self._limits.vocab_size)
        except InvalidArgument as error:
            return error
        return None

    def _queue(self) -> list[Reservation]:
        age = self._limits.priority_s
        waiting = self._waiting.values()
        return sorted(waiting, key=lambda one: (one.arrived_s + one.request.priority * age, one.number))

    def _grant(self, one: Reservation, keep_blocks: int) -> bool:
        kv, request = self._kv, one.request
        if one.keys is None:
            root = root_key(salt=request.salt, revision=self._revision)
            one.keys = tuple(chain(root, request.token_ids, kv.block_size))
        cached = kv.match(one.keys)
        need = kv.blocks_for(request.prefill_tokens) - len(cached)
        if need + keep_blocks > kv.available:
            kv.release(cached)
            return False
        one.cached, one.fresh = cached, kv.allocate(need)
        one.move(Event.GRANT)
        del self._waiting[one.id]
        return True

    def _refuse_or_revoke(self, one: Reservation, error: BatonError) -> list[SinkEffect]:
        if one.state is State.WAITING:
            return [SendRefusal(one.link, one.transfer_id, error), *self._give_up(one, revoke=False)]
        return self._give_up(one, revoke=True)

    def _give_up(self, one: Reservation, *, revoke: bool) -> list[SinkEffect]:
        """The end of a reservation that is not committed. revoke: ask the writer for its promise."""
        was = one.state
        one.move(Event.GIVE_UP)
        if was is State.WAITING:
            del self._all[one.id], self._waiting[one.id]
            return [self._ended(one)]
        self._kv.release(one.cached)
        one.cached = []
        if one.fresh:
            self._kv.quarantine(one.fresh)
        else:  # nothing that could be written
            self._safe(one)
        effects: list[SinkEffect] = [SendRevoke(one.link, one.transfer_id)] if revoke else []
        return [*effects, Fence(one.link, one.transfer_id), self._ended(one)]

    def _safe(self, one: Reservation) -> None:
        was = one.state
        one.move(Event.SAFE)
        self._free(one, was)

    def _free(self, one: Reservation, was: State) -> None:
        del self._all[one.id]
        self._waiting.pop(one.id, None)
        if was is State.QUARANTINED:
            self._kv.absolve(one.fresh)
        else:
            self._kv.release(one.cached + one.fresh)

    def _ended(self, one: Reservation) -> Ended | FetchOver:
        if one.loan:
            return FetchOver(one.key, 0)
        outputs = len(one.request.output_ids)
        return Ended(one.key, FinishReason.CANCELLED, outputs, silent=True)
