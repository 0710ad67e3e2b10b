"""One transfer as its source sees it: the table of its states, and which writes it still owes. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

from baton.core.errors import BatonError, IllegalTransition, Unavailable
from baton.core.node_effects import Key
from baton.core.quick_enum import QuickEnum
from baton.core.value import value
from baton.kv_transfer.handoff import PeerPool, Ticket


class State(QuickEnum):
    RESERVING = "reserving"  # asked for room
    SENDING = "sending"  # has a ticket; writes follow the computation
    COMMITTING = "committing"  # all is applied at the destination; decode's last word is awaited
    DRAINING = "draining"  # given up; writes under way still read the blocks
    OVER = "over"


class Event(QuickEnum):
    TICKET = "ticket"
    REFUSED = "refused"
    KV = "kv"  # more is computed
    PREFILLED = "prefilled"
    WROTE = "wrote"  # a write ended
    COMMIT = "commit"  # all was applied
    COMMITTED = "committed"
    GIVE_UP = "give up"  # revoked, aborted, link lost, a write failed, timed out
    DRAINED = "drained"  # no write is under way


TRANSITIONS: dict[tuple[State, Event], State] = {
    (State.RESERVING, Event.TICKET): State.SENDING,
    (State.RESERVING, Event.REFUSED): State.DRAINING,
    (State.RESERVING, Event.KV): State.RESERVING,
    (State.RESERVING, Event.PREFILLED): State.RESERVING,
    (State.RESERVING, Event.GIVE_UP): State.DRAINING,
    (State.SENDING, Event.KV): State.SENDING,
    (State.SENDING, Event.PREFILLED): State.SENDING,
    (State.SENDING, Event.WROTE): State.SENDING,
    (State.SENDING, Event.COMMIT): State.COMMITTING,
    (State.SENDING, Event.GIVE_UP): State.DRAINING,
    (State.COMMITTING, Event.COMMITTED): State.OVER,
    (State.COMMITTING, Event.REFUSED): State.DRAINING,
    (State.COMMITTING, Event.GIVE_UP): State.DRAINING,
    (State.DRAINING, Event.WROTE): State.DRAINING,
    (State.DRAINING, Event.DRAINED): State.OVER,
}


class Promise(Enum):
    """What the sink is told when a transfer that was given up has drained."""

    ABANDON = "abandon"
    REVOKED = "revoked"
    NOTHING = "nothing"  # the sink forgot it already, or the link is gone


@value
class Span:
    """Tokens [start, end) and the blocks, on both sides, that they lie in; *_first: the first's position."""

    start: int
    end: int
    src_blocks: tuple[int, ...]
    src_first: int
    dst_blocks: tuple[int, ...]
    dst_first: int


@dataclass(slots=True, eq=False)
class Export:
    """sent: tokens up to which writes were submitted, or decode has them. under_way: ids of writes without
    their completion. output_ids: known once the prompt is done."""

    transfer_id: int
    key: Key
    link: str
    peer: PeerPool
    prompt_tokens: int
    block_size: int
    timeout_at_s: float
    state: State = State.RESERVING
    ticket: Ticket | None = None
    blocks: tuple[int, ...] = ()
    ready: int = 0
    sent: int = 0
    output_ids: tuple[int, ...] | None = None
    prefilled_s: float = 0.0
    under_way: set[int] = field(default_factory=set)
    payload_bytes: int = 0
    promise: Promise = Promise.ABANDON

    def allows(self, event: Event) -> bool:
        return (self.state, event) in TRANSITIONS

    def move(self, event: Event) -> None:
        """IllegalTransition, and no change, where the table has none."""
        try:
            self.state = TRANSITIONS[self.state, event]
        except KeyError:
            raise IllegalTransition(
                f"{event.value!r} is not legal for a transfer that is {self.state.value}"
            ) from None

    def kv(self, tokens: int, blocks: Sequence[int]) -> None:
        self.ready = tokens
        self.blocks = tuple(blocks)

    @property
    def complete(self) -> bool:
        """Everything is applied at the destination, and what follows the prompt is known."""
        return self.output_ids is not None and self.sent >= self.prompt_tokens and not self.under_way

    def next_span(self) -> Span | None:
        """What can be written now: whole source blocks while the prompt computes, the rest at its end."""
        if self.ticket is None:
            return None
        src, dst = self.block_size, self.peer.block_size
        start = self.sent
        end = self.prompt_tokens if self.output_ids is not None else self.ready // src * src
        if end <= start:
            return None
        first = start // dst - self.ticket.cached_tokens // dst
        count = -(-end // dst) - start // dst
        return Span(
            start=start,
            end=end,
            src_blocks=self.blocks[start // src : -(-end // src)],
            src_first=start // src * src,
            dst_blocks=self.ticket.blocks[first : first + count],
            dst_first=start // dst * dst,
        )


def ticket_fault(export: Export, ticket: Ticket) -> BatonError | None:
    """What is wrong with a ticket; None: it can be written to."""
    size = export.peer.block_size
    cached = ticket.cached_tokens
    if cached % size or not 0 <= cached <= export.prompt_tokens:
        return Unavailable(f"a ticket says {cached} of {export.prompt_tokens} tokens are cached")
    wanted = -(-export.prompt_tokens // size) - cached // size
    if len(ticket.blocks) != wanted or len(set(ticket.blocks)) != wanted:
        return Unavailable(f"a ticket has {len(ticket.blocks)} blocks where {wanted} are needed")
    if any(not 0 < block < export.peer.num_blocks for block in ticket.blocks):
        return Unavailable(f"a ticket has a block outside the pool of {export.peer.num_blocks}")
    return None
