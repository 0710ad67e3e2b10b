"""The prefill side of every hand-off of one node. Pure; runs on the node's event loop.

Late and stale messages (of transfers that are over, of other links) are counted and dropped; a message that
the transfer's state does not allow raises IllegalTransition and changes nothing.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count

from baton.core.errors import BatonError, Unavailable
from baton.core.node_effects import Key
from baton.core.request import Request
from baton.kv_transfer import handoff
from baton.kv_transfer.handoff import Loan, PeerPool, SourceEffect, Ticket
from baton.kv_transfer.handoff_export import Event, Export, Promise, State, ticket_fault
from baton.kv_transfer.writes import Completion, Outcome, Write


@dataclass(frozen=True, slots=True)
class SourceLimits:
    """reserve_timeout_s: how long a transfer may wait for its ticket. commit_timeout_s: for the last word."""

    reserve_timeout_s: float = 30.0
    commit_timeout_s: float = 10.0


class HandoffSource:
    """Transfers by id. A transfer belongs to one link (one decode node's stream, named by the caller).

    block_size: of this node's pool. first_id: ids count up from here; choose it at random per process, so
    that two sources' ids, or those of two lives of one, do not meet at a sink. Every method returns effects
    to be carried out in order. `stale`: how many late messages were dropped.
    """

    def __init__(self, block_size: int, limits: SourceLimits | None = None, *, first_id: int = 1) -> None:
        self._block_size = block_size
        self._limits = limits or SourceLimits()
        self._ids = count(first_id)
        self._write_ids = count(first_id)
        self._exports: dict[int, Export] = {}
        self._by_key: dict[Key, Export] = {}
        self._due: list[tuple[float, int]] = []  # heap of timeouts, those that no longer hold included
        self.stale = 0

    # ---- the prefill scheduler's word --------------------------------------------------------------------

    def start(
        self, now: float, link: str, peer: PeerPool, request: Request, router_id: str
    ) -> list[SourceEffect]:
        """A request was accepted whose KV goes over `link`. Ends with exactly one Release."""
        export = self._new(now, (request.id, request.attempt), link, peer, request.prefill_tokens)
        return [handoff.SendReserve(link, export.transfer_id, router_id, request)]

    def lend(
        self, now: float, link: str, peer: PeerPool, key: Key, loan: Loan, blocks: Sequence[int]
    ) -> list[SourceEffect]:
        """Cached KV goes over `link`, to who asked for it: complete from the start. key: what it is called
        here. Ends with exactly one Release."""
        export = self._new(now, key, link, peer, loan.tokens)
        export.move(Event.PREFILLED)
        export.kv(loan.tokens, blocks)
        export.output_ids = ()
        export.prefilled_s = now
        return [handoff.SendOffer(link, export.transfer_id, loan)]

    def kv_ready(self, now: float, key: Key, tokens: int, blocks: Sequence[int]) -> list[SourceEffect]:
        """KV of [0, tokens) is in `blocks` for good. Unknown keys (given up before) are dropped."""
        export = self._by_key.get(key)
        if export is None or not export.allows(Event.KV) or tokens < export.ready:
            return []
        export.move(Event.KV)
        export.kv(tokens, blocks)
        return self._push(now, export)

    def prefilled(
        self, now: float, key: Key, tokens: int, blocks: Sequence[int], output_ids: Sequence[int]
    ) -> list[SourceEffect]:
        """The prompt is done. output_ids: all output tokens so far, the one just sampled included."""
        export = self._by_key.get(key)
        if export is None or not export.allows(Event.PREFILLED) or export.output_ids is not None:
            return []
        assert tokens == export.prompt_tokens, "prefilled tokens are not the prompt's"
        export.move(Event.PREFILLED)
        export.kv(tokens, blocks)
        export.output_ids = tuple(output_ids)
        export.prefilled_s = now
        return self._push(now, export)

    def abort(self, now: float, key: Key) -> list[SourceEffect]:
        """The request ended on this node (its first token was the last, cancelled, deadline, failed).
        Unknown, or given up already: nothing happens."""
        export = self._by_key.get(key)
        return [] if export is None else self._give_up(export, None)

    # ---- decode's word -----------------------------------------------------------------------------------

    def ticket(self, now: float, ticket: Ticket) -> list[SourceEffect]:
        """Room was made. A ticket that does not suit the request fails the transfer."""
        export = self._current(ticket.link, ticket.transfer_id)
        if export is None:
            return []
        export.move(Event.TICKET)
        if fault := ticket_fault(export, ticket):
            return self._give_up(export, fault)
        export.ticket = ticket
        export.sent = ticket.cached_tokens
        return self._push(now, export)

    def refused(self, now: float, link: str, transfer_id: int, error: BatonError) -> list[SourceEffect]:
        """No room will be made (the sink forgot it), or the commit was not taken (it awaits `abandon`)."""
        export = self._current(link, transfer_id)
        if export is None:
            return []
        promise = Promise.ABANDON if export.state is State.COMMITTING else Promise.NOTHING
        export.move(Event.REFUSED)
        export.promise = promise
        return [handoff.TransferFailed(export.key, error), *self._drain(export)]

    def committed(self, now: float, link: str, transfer_id: int) -> list[SourceEffect]:
        """Decode has the request."""
        export = self._current(link, transfer_id)
        if export is None:
            return []
        export.move(Event.COMMITTED)
        self._forget(export)
        return [
            handoff.HandedOff(export.key, now - export.prefilled_s, export.payload_bytes),
            handoff.Release(export.key),
        ]

    def revoke(self, now: float, link: str, transfer_id: int) -> list[SourceEffect]:
        """Decode gives the transfer up. Of a transfer that is not known no write can be under way: say so."""
        export = self._exports.get(transfer_id)
        if export is None or export.link != link:
            self.stale += 1
            return [handoff.SendRevoked(link, transfer_id)]
        if export.state is State.DRAINING:
            self.stale += 1
            return []
        return self._give_up(export, Unavailable("decode gave the hand-off up"), Promise.REVOKED)

    # ---- the transports' and the clock's word -------------------------------------------------------------

    def completion(self, now: float, completion: Completion) -> list[SourceEffect]:
        """A write ended. Its blocks are read no more."""
        export = self._exports.get(completion.transfer_id)
        if export is None or completion.write_id not in export.under_way:
            self.stale += 1
            return []
        export.move(Event.WROTE)
        export.under_way.remove(completion.write_id)
        export.payload_bytes += completion.payload_bytes
        if export.state is State.DRAINING:
            return self._drain(export)
        if completion.outcome is not Outcome.APPLIED:
            why = f"{completion.outcome.value}: {completion.error}"
            return self._give_up(export, Unavailable(f"a KV write was {why}"))
        return self._push(now, export)

    def link_lost(self, now: float, link: str) -> list[SourceEffect]:
        """The stream broke: nothing more can be said on it. Writes under way still get their completions."""
        effects: list[SourceEffect] = []
        for export in [export for export in self._exports.values() if export.link == link]:
            if export.state is State.DRAINING:
                export.promise = Promise.NOTHING
            else:
                error = Unavailable("the link to the decode node was lost")
                effects += self._give_up(export, error, Promise.NOTHING)
        return effects

    def expire(self, now: float) -> list[SourceEffect]:
        """Give up what waited too long for decode's answer."""
        late = [export for export in self._exports.values() if self._timeout(export) <= now]
        error = Unavailable("the decode node did not answer the hand-off in time")
        return [effect for export in late for effect in self._give_up(export, error)]

    def next_wakeup(self) -> float | None:
        """When `expire` is next due."""
        while self._due:
            when, transfer_id = self._due[0]
            export = self._exports.get(transfer_id)
            if export is not None and self._timeout(export) == when:
                return when
            heapq.heappop(self._due)
        return None

    def settled(self, link: str) -> bool:
        """No write of this link is under way: only then may a new stream to the same peer say Hello."""
        return not any(export.under_way for export in self._exports.values() if export.link == link)

    def check(self) -> None:
        """Raise AssertionError unless every transfer is known by id and key, and its state suits it."""
        assert len(self._exports) == len(self._by_key)
        for transfer_id, export in self._exports.items():
            assert export.transfer_id == transfer_id
            assert self._by_key[export.key] is export
            assert export.state is not State.OVER, "a finished transfer is remembered"
            assert export.state is not State.DRAINING or export.under_way, "a drained transfer lingers"
            assert export.state is not State.COMMITTING or export.complete, "committed too early"
            assert export.ticket is not None or not export.under_way, "written without a ticket"

    # ---- parts -------------------------------------------------------------------------------------------

    def _new(self, now: float, key: Key, link: str, peer: PeerPool, tokens: int) -> Export:
        if key in self._by_key:
            raise Unavailable(f"a hand-off of request {key} is under way")
        export = Export(
            transfer_id=next(self._ids),
            key=key,
            link=link,
            peer=peer,
            prompt_tokens=tokens,
            block_size=self._block_size,
            timeout_at_s=now + self._limits.reserve_timeout_s,
        )
        self._exports[export.transfer_id] = self._by_key[key] = export
        heapq.heappush(self._due, (export.timeout_at_s, export.transfer_id))
        return export

    def _current(self, link: str, transfer_id: int) -> Export | None:
        """The transfer, unless it is over, given up, or another link's: then its message is late."""
        export = self._exports.get(transfer_id)
        if export is None or export.link != link or export.state is State.DRAINING:
            self.stale += 1
            return None
        return export

    def _timeout(self, export: Export) -> float:
        waits = export.state in (State.RESERVING, State.COMMITTING)
        return export.timeout_at_s if waits else float("inf")

    def _push(self, now: float, export: Export) -> list[SourceEffect]:
        """Write what can be written; commit when all of it has been applied."""
        if export.state is not State.SENDING:
            return []
        span = export.next_span()
        if span is not None:
            write = Write(
                write_id=next(self._write_ids),
                transfer_id=export.transfer_id,
                start=span.start,
                end=span.end,
                src_blocks=span.src_blocks,
                src_first=span.src_first,
                dst_blocks=span.dst_blocks,
                dst_first=span.dst_first,
            )
            export.under_way.add(write.write_id)
            export.sent = span.end
            return [handoff.SubmitWrite(export.link, write)]
        if not export.complete:
            return []
        assert export.output_ids is not None
        export.move(Event.COMMIT)
        export.timeout_at_s = now + self._limits.commit_timeout_s
        heapq.heappush(self._due, (export.timeout_at_s, export.transfer_id))
        return [handoff.SendCommit(export.link, export.transfer_id, export.prompt_tokens, export.output_ids)]

    def _give_up(
        self, export: Export, error: BatonError | None, promise: Promise = Promise.ABANDON
    ) -> list[SourceEffect]:
        """error: None where the prefill scheduler has ended the request itself."""
        if export.state is State.DRAINING:
            return []
        export.move(Event.GIVE_UP)
        export.promise = promise
        effects: list[SourceEffect] = [] if error is None else [handoff.TransferFailed(export.key, error)]
        if export.under_way:
            effects.append(handoff.CancelWrites(export.link, export.transfer_id))
        return effects + self._drain(export)

    def _drain(self, export: Export) -> list[SourceEffect]:
        """Once no write is under way: promise so to the sink, and let the blocks go."""
        if export.under_way:
            return []
        export.move(Event.DRAINED)
        self._forget(export)
        effects: list[SourceEffect] = []
        if export.promise is Promise.ABANDON:
            effects.append(handoff.SendAbandon(export.link, export.transfer_id))
        elif export.promise is Promise.REVOKED:
            effects.append(handoff.SendRevoked(export.link, export.transfer_id))
        return [*effects, handoff.Release(export.key)]

    def _forget(self, export: Export) -> None:
        del self._exports[export.transfer_id]
        del self._by_key[export.key]
