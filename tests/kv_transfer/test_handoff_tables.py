"""Every (state, event) of both machines: what the table has happens, what it lacks raises, changing nothing.
And what arrives late, twice, or from nowhere is counted and dropped."""

from itertools import product

import pytest

from baton.core.errors import (
    DeadlineExceeded,
    IllegalTransition,
    InvalidArgument,
    ResourceExhausted,
    Unavailable,
)
from baton.core.kvcache import KvCache
from baton.core.node_effects import (
    Admit,
    DropLink,
    Ended,
    Fence,
    SendCommitted,
    SendRefusal,
    SendRevoke,
    SendTicket,
)
from baton.core.request import Request
from baton.kv_transfer import handoff, handoff_export, handoff_reservation
from baton.kv_transfer.handoff import PeerPool, Ticket
from baton.kv_transfer.handoff_sink import HandoffSink, SinkLimits
from baton.kv_transfer.handoff_source import HandoffSource, SourceLimits
from baton.kv_transfer.writes import Completion, Outcome

PEER = PeerPool(block_size=4, num_blocks=50)
REQUEST = Request("a", tuple(range(10)))
KEY = ("a", 0)


def kinds(effects) -> list[type]:
    return [type(effect) for effect in effects]


# ---- tables ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("state", "event"), list(product(handoff_export.State, handoff_export.Event)))
def test_source_table(state, event) -> None:
    export = handoff_export.Export(1, KEY, "d", PEER, 10, 4, 0.0, state=state)
    following = handoff_export.TRANSITIONS.get((state, event))
    if following is None:
        with pytest.raises(IllegalTransition, match=state.value):
            export.move(event)
    else:
        export.move(event)
    assert export.state is (following or state)


@pytest.mark.parametrize(
    ("state", "event"), list(product(handoff_reservation.State, handoff_reservation.Event))
)
def test_sink_table(state, event) -> None:
    one = handoff_reservation.Reservation("p", 1, REQUEST, "r", 0, 0.0, None, state=state)
    following = handoff_reservation.TRANSITIONS.get((state, event))
    if following is None:
        with pytest.raises(IllegalTransition, match=state.value):
            one.move(event)
    else:
        one.move(event)
    assert one.state is (following or state)


# ---- source ----------------------------------------------------------------------------------------------


def started(**limits) -> HandoffSource:
    source = HandoffSource(4, SourceLimits(**limits), first_id=7)
    (reserve,) = source.start(0.0, "d", PEER, REQUEST, "r")
    assert reserve == handoff.SendReserve("d", 7, "r", REQUEST)
    return source


def sending() -> tuple[HandoffSource, int]:
    """With all of the KV on its way in one write; returns its id."""
    source = started()
    assert source.prefilled(1.0, KEY, 10, (1, 2, 3), (5,)) == []
    (submit,) = source.ticket(1.0, Ticket("d", 7, 0, (11, 12, 13)))
    return source, submit.write.write_id


def test_commit_follows_application_and_release_follows_committed() -> None:
    source, write_id = sending()
    (commit,) = source.completion(2.0, Completion(write_id, 7, Outcome.APPLIED, payload_bytes=10))
    assert commit == handoff.SendCommit("d", 7, 10, (5,))
    effects = source.committed(3.0, "d", 7)
    assert effects == [handoff.HandedOff(KEY, 2.0, 10), handoff.Release(KEY)]
    assert source.next_wakeup() is None


@pytest.mark.parametrize("outcome", [Outcome.FAILED, Outcome.CANCELLED])
def test_a_failed_write_fails_the_attempt(outcome) -> None:
    source, write_id = sending()
    effects = source.completion(2.0, Completion(write_id, 7, outcome, error="reset"))
    assert kinds(effects) == [handoff.TransferFailed, handoff.SendAbandon, handoff.Release]
    assert isinstance(effects[0].error, Unavailable)


@pytest.mark.parametrize(
    ("give_up", "promise"),
    [
        (lambda source: source.revoke(2.0, "d", 7), [handoff.SendRevoked]),
        (lambda source: source.abort(2.0, KEY), [handoff.SendAbandon]),
        (lambda source: source.link_lost(2.0, "d"), []),
    ],
)
def test_blocks_are_kept_while_a_write_reads_them(give_up, promise) -> None:
    source, write_id = sending()
    effects = give_up(source)
    assert handoff.CancelWrites in kinds(effects)
    assert handoff.Release not in kinds(effects)
    assert give_up(source) == [], "again changes nothing"
    assert not source.settled("d")
    effects = source.completion(3.0, Completion(write_id, 7, Outcome.APPLIED))
    assert kinds(effects) == [*promise, handoff.Release]
    assert source.settled("d")


@pytest.mark.parametrize(
    "ticket",
    [
        Ticket("d", 7, 3, (11, 12, 13)),
        Ticket("d", 7, 12, ()),
        Ticket("d", 7, 0, (11, 12)),
        Ticket("d", 7, 0, (11, 12, 12)),
        Ticket("d", 7, 0, (0, 1, 2)),
        Ticket("d", 7, 0, (11, 12, 50)),
    ],
)
def test_a_ticket_that_does_not_suit_is_not_written_to(ticket) -> None:
    effects = started().ticket(1.0, ticket)
    assert kinds(effects) == [handoff.TransferFailed, handoff.SendAbandon, handoff.Release]
    assert isinstance(effects[0].error, Unavailable)


def test_source_drops_what_is_late_and_refuses_what_is_wrong() -> None:
    source, _ = sending()
    for late in (
        source.ticket(1.0, Ticket("d", 99, 0, ())),
        source.ticket(1.0, Ticket("other", 7, 0, (11, 12, 13))),
        source.committed(1.0, "d", 99),
        source.refused(1.0, "d", 99, Unavailable("")),
        source.completion(1.0, Completion(99, 7, Outcome.APPLIED)),
        source.kv_ready(1.0, ("x", 0), 4, (1,)),
        source.abort(1.0, ("x", 0)),
    ):
        assert late == []
    assert source.stale == 5
    assert source.revoke(1.0, "d", 99) == [handoff.SendRevoked("d", 99)], "true of what is not known"
    for wrong in (
        lambda: source.ticket(1.0, Ticket("d", 7, 0, (11, 12, 13))),
        lambda: source.committed(1.0, "d", 7),
        lambda: source.refused(1.0, "d", 7, Unavailable("")),
    ):
        with pytest.raises(IllegalTransition):
            wrong()
        source.check()


def test_refusals_and_timeouts() -> None:
    error = ResourceExhausted("full")
    assert started().refused(1.0, "d", 7, error) == [handoff.TransferFailed(KEY, error), handoff.Release(KEY)]
    source = started(reserve_timeout_s=3.0)
    assert source.next_wakeup() == 3.0
    assert source.expire(2.9) == []
    assert kinds(source.expire(3.0)) == [handoff.TransferFailed, handoff.SendAbandon, handoff.Release]
    source, write_id = sending()
    assert source.next_wakeup() is None
    source.completion(2.0, Completion(write_id, 7, Outcome.APPLIED))
    assert source.next_wakeup() == 12.0
    effects = source.refused(3.0, "d", 7, error)
    assert kinds(effects) == [handoff.TransferFailed, handoff.SendAbandon, handoff.Release]


# ---- sink ------------------------------------------------------------------------------------------------


class Sink:
    def __init__(self, blocks: int = 11, **limits) -> None:
        self.kv = KvCache(blocks, 4)
        self.machine = HandoffSink(self.kv, SinkLimits(100, 97, **limits), "r")

    def reserve(self, transfer_id: int, name: str = "a", tokens: int = 10, link: str = "p", **fields):
        request = Request(name, tuple(range(transfer_id, transfer_id + tokens)), **fields)
        return self.machine.reserve(0.0, link, transfer_id, request, "router")

    def granted(self, transfer_id: int = 1, name: str = "a", **fields) -> None:
        assert self.reserve(transfer_id, name, **fields) == []
        assert SendTicket in kinds(self.machine.pump(0.0))


def test_a_commit_hands_the_blocks_over() -> None:
    sink = Sink()
    sink.granted(timeout_s=5.0)
    fence, admit, said = sink.machine.commit(1.0, "p", 1, 10, (3,))
    assert fence == Fence("p", 1), "no write may land any more"
    assert isinstance(admit, Admit)
    assert (admit.computed, admit.request.output_ids, admit.deadline_s) == (10, (3,), 5.0)
    assert (len(admit.blocks), admit.router_id) == (3, "router")
    assert said == SendCommitted("p", 1)
    assert list(sink.machine.owned()) == []


@pytest.mark.parametrize(("tokens", "output_ids"), [(9, (3,)), (10, ()), (10, (3, 4)), (10, (97,))])
def test_a_commit_out_of_order_is_refused_and_its_blocks_kept_away(tokens, output_ids) -> None:
    sink = Sink()
    sink.granted()
    refusal, fence, ended = sink.machine.commit(1.0, "p", 1, tokens, output_ids)
    assert isinstance(refusal.error, InvalidArgument)
    assert (type(fence), ended.silent) == (Fence, True)
    assert sink.kv.pool.quarantined == 3
    assert sink.machine.abandon(1.0, "p", 1) == []
    assert sink.kv.pool.free == 10


def test_reservations_are_checked_and_bounded() -> None:
    sink = Sink(max_waiting=2)
    for tokens in (0, 41, 100):
        (refusal,) = sink.reserve(tokens, "x", tokens=tokens)
        assert isinstance(refusal.error, InvalidArgument)
    sink.reserve(1, "a")
    assert sink.reserve(1, "a") == [], "a repeated message"
    (refusal,) = sink.reserve(2, "a")
    assert isinstance(refusal.error, Unavailable)
    sink.reserve(3, "b")
    (refusal,) = sink.reserve(4, "c")
    assert isinstance(refusal.error, ResourceExhausted)


def test_tickets_come_in_order_as_room_goes_and_bypass_is_bounded() -> None:
    sink = Sink(max_bypass=2)
    sink.granted(1, "holder", tokens=12)
    sink.reserve(100, "big", tokens=36)
    for i in range(4):
        sink.reserve(200 + 10 * i, f"s{i}", tokens=4)
    tickets = sink.machine.pump(0.0)
    assert [ticket.transfer_id for ticket in tickets] == [200, 210]
    assert sink.machine.pump(0.0) == []
    for transfer_id in (1, 200, 210):
        sink.machine.abandon(0.0, "p", transfer_id)
    assert [ticket.transfer_id for ticket in sink.machine.pump(0.0)] == [100, 220]


def test_room_is_left_for_others_and_the_number_of_tickets_is_bounded() -> None:
    sink = Sink(max_granted=1)
    sink.reserve(1, "a")
    sink.reserve(50, "b")
    assert sink.machine.pump(0.0, keep_blocks=8) == []
    assert len(sink.machine.pump(0.0, keep_blocks=7)) == 1
    assert sink.machine.pump(0.0) == []


def test_cancel_and_deadline_before_and_after_the_ticket() -> None:
    sink = Sink()
    sink.reserve(1, "a", timeout_s=5.0)
    assert kinds(sink.machine.abort(0.0, KEY)) == [SendRefusal, Ended]
    sink.granted(2, "a", timeout_s=5.0)
    assert kinds(sink.machine.abort(0.0, KEY)) == [SendRevoke, Fence, Ended]
    assert sink.machine.abort(0.0, KEY) == []
    assert sink.machine.commit(0.0, "p", 2, 10, (3,)) == [], "crossed the revoke, which answers it"
    sink.machine.revoked(0.0, "p", 2)
    assert sink.kv.pool.free == 10
    sink.reserve(3, "b", timeout_s=5.0)
    assert sink.machine.next_wakeup() == 5.0
    refusal, _ = sink.machine.expire(5.0)
    assert isinstance(refusal.error, DeadlineExceeded)


def test_a_lease_without_a_beat_drops_the_link() -> None:
    sink = Sink(lease_s=10.0)
    sink.granted()
    sink.machine.beat(8.0, "p")
    assert sink.machine.expire(17.9) == []
    assert kinds(sink.machine.expire(18.0)) == [DropLink, Fence, Ended]
    assert sink.kv.pool.quarantined == 3
    assert sink.machine.next_wakeup() is None
    sink.machine.fenced("p", 1)
    assert sink.kv.pool.free == 10


def test_sink_drops_what_is_late_and_refuses_what_is_wrong() -> None:
    sink = Sink()
    sink.reserve(1, "a")
    (refusal,) = sink.machine.commit(0.0, "p", 9, 10, (3,))
    assert isinstance(refusal.error, Unavailable), "else the source would wait for its word"
    for late in (
        sink.machine.abandon(0.0, "p", 9),
        sink.machine.revoked(0.0, "other", 1),
        sink.machine.fenced("p", 9),
    ):
        assert late == []
    assert sink.machine.stats().stale == 3
    for wrong in (
        lambda: sink.machine.commit(0.0, "p", 1, 10, (3,)),
        lambda: sink.machine.revoked(0.0, "p", 1),
        lambda: sink.machine.fenced("p", 1),
    ):
        with pytest.raises(IllegalTransition):
            wrong()
        sink.machine.check()
