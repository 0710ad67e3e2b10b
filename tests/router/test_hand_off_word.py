"""A whole answer waits for the prefill node's word of the hand-off, which may come last; but not for long."""

from __future__ import annotations

import pytest

from baton.core.errors import Unavailable
from baton.core.load import Role
from baton.core.request import FinishReason
from baton.router.events import (
    Cancelled,
    CancelOn,
    Complete,
    Deliver,
    Dispatch,
    NodeFailed,
    NodeJoined,
    Reject,
)
from baton.router.machine_config import RouterConfig

from .machine_kit import Bench, node, of


@pytest.fixture
def bench() -> Bench:
    """Decode has made all of `r`, and said so; of the hand-off nothing has been heard yet."""
    made = Bench()
    made.one_of_each()
    run_to_the_end(made)
    return made


def run_to_the_end(bench: Bench, deadline_s: float | None = None) -> None:
    bench.arrive("r", deadline_s)
    bench.tokens("r", "p", 0, 10)
    delivered = bench.tokens("r", "d", 1, 11, 12, 13)
    assert of(Deliver, delivered) == [Deliver("r", 1, (11, 12, 13))]  # tokens wait for nothing
    assert not of(Complete, bench.finished("r", "d", 4))


def test_the_word_that_comes_last_is_in_the_figures(bench: Bench) -> None:
    assert bench.machine.in_flight == 1
    assert bench.machine.node_in_flight("d") == 0  # it has room again
    assert bench.machine.node_in_flight("p") == 1
    effects = bench.handed_off("r", "p")
    [done] = of(Complete, effects)
    assert done.reason is FinishReason.LENGTH
    assert (done.outcome.transfer_bytes, done.outcome.transfer_node_s) == (100, 0.002)
    assert done.outcome.prefill_node_s == 0.01
    assert not of(CancelOn, effects)
    assert bench.text("r") == [10, 11, 12, 13]
    assert bench.machine.in_flight == bench.machine.node_in_flight("p") == 0
    later = bench.run_until(bench.now + 5.0)
    assert not of(Complete, later)
    assert not of(CancelOn, later)


def test_decode_done_before_the_first_token_came() -> None:
    bench = Bench()
    bench.one_of_each()
    bench.arrive("r")
    bench.tokens("r", "d", 1, 11, 12, 13)
    bench.finished("r", "d", 4)
    effects = bench.tokens("r", "p", 0, 10)
    assert len(of(Deliver, effects)) == 2
    assert not of(Complete, effects)
    [done] = of(Complete, bench.handed_off("r", "p"))
    assert done.outcome.transfer_bytes == 100


def test_the_room_on_decode_is_used_while_the_end_waits() -> None:
    bench = Bench(RouterConfig(decode_slack=0))
    bench.join(node("p", Role.PREFILL), node("d", Role.DECODE))
    for i in range(9):  # it runs eight at once
        bench.arrive(f"r{i}")
        bench.tokens(f"r{i}", "p", 0, 10)
    assert not bench.dispatches("r8")
    bench.tokens("r0", "d", 1, 11, 12, 13)
    assert [d.request.id for d in of(Dispatch, bench.finished("r0", "d", 4))] == ["r8"]


def test_a_lost_prefill_node_has_nothing_more_to_say(bench: Bench) -> None:
    effects = bench.lose("p")
    [done] = of(Complete, effects)
    assert (done.reason, done.outcome.transfer_bytes) == (FinishReason.LENGTH, 0)
    assert not of(Dispatch, effects)
    assert bench.handed_off("r", "p") == []


def test_nor_has_one_that_another_incarnation_replaced(bench: Bench) -> None:
    effects = bench.step(NodeJoined(node("p", Role.PREFILL, "p-2")))
    assert [done.reason for done in of(Complete, effects)] == [FinishReason.LENGTH]


def test_nor_one_that_was_lost_before_decode_was_done() -> None:
    bench = Bench()
    bench.one_of_each()
    bench.arrive("r")
    bench.tokens("r", "p", 0, 10)
    bench.tokens("r", "d", 1, 11)
    bench.lose("p")
    bench.step(NodeJoined(node("p", Role.PREFILL, "p-2")))
    bench.tokens("r", "d", 2, 12, 13)
    assert of(Complete, bench.finished("r", "d", 4))


@pytest.mark.parametrize("before", [False, True])
def test_a_prefill_node_that_failed_after_its_work(before: bool) -> None:
    """Decode has the request, but the link broke before prefill knew."""
    bench = Bench()
    bench.one_of_each()
    bench.arrive("r")
    bench.tokens("r", "p", 0, 10)
    bench.tokens("r", "d", 1, 11, 12, 13)
    failed = NodeFailed("r", 0, "p", Unavailable("the link was lost"))
    if before:
        assert not of(Complete, bench.step(failed))
        effects = bench.finished("r", "d", 4)
    else:
        bench.finished("r", "d", 4)
        effects = bench.step(failed)
    assert [done.reason for done in of(Complete, effects)] == [FinishReason.LENGTH]
    assert not of(Dispatch, effects)


def test_loss_of_decode_changes_nothing_any_more(bench: Bench) -> None:
    assert not of(Complete, bench.lose("d"))
    [done] = of(Complete, bench.handed_off("r", "p"))
    assert done.outcome.transfer_bytes == 100


def test_the_wait_is_bounded(bench: Bench) -> None:
    started, wait_s = bench.now, bench.config.word_wait_s
    assert bench.run_until(started + 0.9 * wait_s) == []
    effects = bench.run_until(started + 1.01 * wait_s)
    [done] = of(Complete, effects)
    assert (done.reason, done.outcome.transfer_bytes) == (FinishReason.LENGTH, 0)
    assert of(CancelOn, effects) == [CancelOn("p", "r", 0)]
    assert bench.handed_off("r", "p") == []


def test_an_answer_in_time_is_not_made_late_by_the_wait() -> None:
    bench = Bench()
    bench.one_of_each()
    run_to_the_end(bench, deadline_s=bench.now + 0.1)
    effects = bench.run_until(0.099)
    assert [done.reason for done in of(Complete, effects)] == [FinishReason.LENGTH]
    assert not of(Reject, bench.run_until(1.0))


def test_a_client_that_goes_away_meanwhile_is_waited_for_no_more(bench: Bench) -> None:
    effects = bench.step(Cancelled("r"))
    assert [done.reason for done in of(Complete, effects)] == [FinishReason.CANCELLED]
    assert of(CancelOn, effects) == [CancelOn("p", "r", 0)]
    assert bench.handed_off("r", "p") == []


def test_a_stop_string_in_the_last_tokens(bench: Bench) -> None:
    assert bench.step(Cancelled("r", FinishReason.STOP)) == []
    [done] = of(Complete, bench.handed_off("r", "p"))
    assert (done.reason, done.outcome.transfer_bytes) == (FinishReason.STOP, 100)


def test_a_stop_string_found_before_the_word_came() -> None:
    bench = Bench()
    bench.one_of_each()
    bench.arrive("r")
    bench.tokens("r", "p", 0, 10)
    bench.tokens("r", "d", 1, 11)
    assert bench.step(Cancelled("r", FinishReason.STOP)) == [CancelOn("d", "r", 0)]
    assert bench.tokens("r", "d", 2, 12) == []  # made before decode heard of it
    assert bench.finished("r", "d", 3) == []
    [done] = of(Complete, bench.handed_off("r", "p"))
    assert (done.reason, done.outcome.transfer_bytes) == (FinishReason.STOP, 100)
    assert bench.text("r") == [10, 11]


def test_a_word_of_another_attempt_ends_nothing() -> None:
    bench = Bench()
    bench.join(node("p", Role.PREFILL), node("d", Role.DECODE), node("d2", Role.DECODE))
    [first] = of(Dispatch, bench.arrive("r"))
    bench.tokens("r", "p", 0, 10)
    [again] = of(Dispatch, bench.lose(first.decode_node))
    bench.tokens("r", "p", 1, 11, attempt=1)
    bench.tokens("r", again.decode_node, 2, 12, 13, attempt=1)
    assert not of(Complete, bench.finished("r", again.decode_node, 4, attempt=1))
    assert bench.handed_off("r", "p", attempt=0) == []
    assert of(Complete, bench.handed_off("r", "p", attempt=1))
