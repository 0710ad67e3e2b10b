"""Registration, leases, incarnations, compatibility, drain and roles."""

from __future__ import annotations

from dataclasses import replace

import pytest

from baton.core.errors import Code, InvalidArgument, NotFound
from baton.core.load import Role
from baton.router.events import (
    Cancelled,
    CancelOn,
    Dispatch,
    NodeJoined,
    OperatorDrain,
    OperatorRole,
    Pair,
    Reject,
    SetDrain,
    SetRole,
    Tick,
)
from baton.router.machine_config import RouterConfig

from .machine_kit import FINGERPRINT, Bench, load, node, of

LEASE = RouterConfig(lease_s=3.0, lost_leases=2.0)


def states(bench: Bench) -> dict[str, str]:
    return {status.info.node_id: status.state for status in bench.machine.nodes(bench.now)}


def in_flight(bench: Bench) -> dict[str, int]:
    return {status.info.node_id: status.in_flight for status in bench.machine.nodes(bench.now)}


def test_silent_node_is_suspect_then_lost_then_back() -> None:
    bench = Bench(LEASE)
    bench.join(node("b", Role.BOTH), node("c", Role.BOTH))
    bench.arrive("r")
    ran_on = bench.dispatches("r")[0].prefill_node
    other = "c" if ran_on == "b" else "b"
    for i in range(2, 9):
        bench.run_until(bench.now + 0.9)
        bench.report(other, load(Role.BOTH, i))
        silent_s = 0.9 * (i - 1)
        assert states(bench)[ran_on] == ("up" if silent_s < 3 else "suspect" if silent_s < 6 else "lost")
    again = bench.dispatches("r")[1]
    assert again.prefill_node == other
    assert CancelOn(ran_on, "r", 0) in bench.all  # it may only be stuck
    bench.report(ran_on, load(Role.BOTH, 9))
    assert states(bench)[ran_on] == "up"


def test_suspect_node_keeps_its_requests_but_gets_no_new_ones() -> None:
    bench = Bench(LEASE)
    bench.join(node("b", Role.BOTH))
    bench.arrive("r")
    bench.run_until(bench.now + 4.0)
    assert states(bench) == {"b": "suspect"}
    assert not of(Dispatch, bench.arrive("s"))
    bench.tokens("r", "b", 0, 10)
    assert bench.text("r") == [10]
    assert of(Dispatch, bench.report("b", load(Role.BOTH, 2)))


def test_router_that_stood_still_does_not_blame_the_nodes() -> None:
    bench = Bench(LEASE)
    bench.join(node("b", Role.BOTH))
    bench.step(Tick(), after_s=30.0)
    assert states(bench) == {"b": "up"}
    bench.run_until(bench.now + 1.5)
    assert states(bench) == {"b": "lost"}


def test_older_incarnations_are_dropped() -> None:
    bench = Bench()
    bench.join(node("b", Role.BOTH, "one"), node("b", Role.BOTH, "two"))
    bench.report("b", load(Role.BOTH, 99, draining=True), "one")
    bench.lose("b", "one")
    bench.step(NodeJoined(node("b", Role.BOTH, "one")))
    assert states(bench) == {"b": "up"}
    assert bench.machine.stale_events == 3


def test_new_incarnation_ends_what_ran_on_the_old_one() -> None:
    bench = Bench()
    bench.join(node("b", Role.BOTH, "one"))
    bench.arrive("r")
    effects = bench.join(node("b", Role.BOTH, "two"))
    assert not of(CancelOn, effects)
    [again] = of(Dispatch, effects)
    assert again.request.attempt == 1
    assert in_flight(bench) == {"b": 1}


def test_registering_again_keeps_the_counts() -> None:
    bench = Bench()
    bench.join(node("b", Role.BOTH), node("c", Role.BOTH))
    for name in "abcd":
        bench.arrive(name, max_tokens=1000)
    before = in_flight(bench)
    assert sum(before.values()) == 4
    bench.join(node("b", Role.BOTH))
    for i in range(2, 7):
        bench.report("b", load(Role.BOTH, i))
    assert in_flight(bench) == before
    for name in "abcd":
        bench.step(Cancelled(name))
    assert in_flight(bench) == {"b": 0, "c": 0}


def test_stale_report_changes_nothing_but_shows_life() -> None:
    bench = Bench()
    bench.join(node("b", Role.BOTH, load=load(Role.BOTH, 5)))
    bench.report("b", load(Role.BOTH, 4, draining=True))
    assert states(bench) == {"b": "up"}


def test_registration_of_nonsense_raises_and_changes_nothing() -> None:
    bench = Bench()
    with pytest.raises(InvalidArgument):
        bench.step(NodeJoined(node("b", Role.BOTH, block_size=0)))
    assert states(bench) == {}


def test_incompatible_pair_is_named_on_join_and_in_the_rejection() -> None:
    bench = Bench()
    bench.join(node("p", Role.PREFILL))
    effects = bench.join(node("d", Role.DECODE, fingerprint=replace(FINGERPRINT, weights="w1")))
    assert of(Pair, effects) == [Pair("d", "p", ("weights (w1 against w0)",))]
    [reject] = of(Reject, bench.arrive("r"))
    assert reject.error.code is Code.FAILED_PRECONDITION
    assert "weights (w0 against w1)" in reject.error.message
    assert bench.machine.nodes(0.0)[0].incompatible == (("d", ("weights (w0 against w1)",)),)


def test_other_peers_are_used_beside_an_incompatible_one() -> None:
    bench = Bench()
    bench.join(node("p", Role.PREFILL), node("d1", Role.DECODE))
    bench.join(node("d2", Role.DECODE, fingerprint=replace(FINGERPRINT, geometry="g1")))
    for i in range(8):
        [dispatch] = of(Dispatch, bench.arrive(f"r{i}"))
        assert dispatch.decode_node == "d1"
        bench.step(Cancelled(f"r{i}"))


def test_draining_node_gets_nothing_new_and_finishes_what_it_has() -> None:
    bench = Bench()
    bench.join(node("b", Role.BOTH))
    bench.arrive("r")
    assert of(SetDrain, bench.step(OperatorDrain("b", True))) == [SetDrain("b", True)]
    assert states(bench) == {"b": "draining"}
    assert not of(Dispatch, bench.arrive("s"))
    bench.tokens("r", "b", 0, 10, 11, 12, 13)
    bench.finished("r", "b", 4)
    assert bench.end("r") is not None
    assert of(Dispatch, bench.step(OperatorDrain("b", False)))


def test_node_that_reports_draining_gets_nothing_new() -> None:
    bench = Bench()
    bench.join(node("b", Role.BOTH))
    bench.report("b", load(Role.BOTH, 2, draining=True))
    assert not of(Dispatch, bench.arrive("r"))
    assert not bench.machine.ready()


def test_role_change_uses_only_what_both_roles_allow_until_reported() -> None:
    bench = Bench()
    bench.join(node("p", Role.PREFILL), node("d", Role.DECODE), node("x", Role.BOTH))
    assert of(SetRole, bench.step(OperatorRole("x", Role.PREFILL))) == [SetRole("x", Role.PREFILL)]
    for i in range(8):
        [dispatch] = of(Dispatch, bench.arrive(f"r{i}"))
        assert dispatch.decode_node == "d"
        bench.step(Cancelled(f"r{i}"))
    bench.report("x", load(Role.PREFILL, 2))
    bench.step(OperatorRole("x", Role.DECODE))
    used = set()
    for i in range(8):
        used |= {n for d in of(Dispatch, bench.arrive(f"s{i}")) for n in (d.prefill_node, d.decode_node)}
        bench.step(Cancelled(f"s{i}"))
    assert used == {"p", "d"}
    bench.report("x", load(Role.DECODE, 3))
    for i in range(16):
        used |= {d.decode_node for d in of(Dispatch, bench.arrive(f"t{i}"))}
    assert "x" in used


def test_role_that_is_never_taken_is_given_up() -> None:
    bench = Bench(LEASE)
    bench.join(node("b", Role.BOTH))
    bench.step(OperatorRole("b", Role.DECODE))
    assert not bench.machine.ready()
    for i in range(2, 7):
        bench.run_until(bench.now + 0.9)
        bench.report("b", load(Role.BOTH, i))
    assert bench.machine.ready()


def test_operator_who_names_no_known_node_is_told() -> None:
    bench = Bench()
    for event in (OperatorDrain("ghost", True), OperatorRole("ghost", Role.BOTH)):
        with pytest.raises(NotFound):
            bench.step(event)


def test_a_silent_node_is_forgotten_with_the_role_that_it_was_to_take() -> None:
    bench = Bench(RouterConfig(lease_s=1.0, forget_s=0.5))
    bench.join(node("b", Role.BOTH))
    bench.run_until(bench.now + 2.2)
    assert states(bench) == {"b": "lost"}
    bench.step(OperatorRole("b", Role.PREFILL))
    bench.run_until(bench.now + 2.0)
    assert states(bench) == {}
    assert bench.machine.next_wakeup() is None


def test_lost_nodes_leave_the_view_in_the_end() -> None:
    bench = Bench(RouterConfig(forget_s=10.0))
    bench.join(node("b", Role.BOTH))
    bench.lose("b")
    assert states(bench) == {"b": "lost"}
    bench.run_until(bench.now + 11.0)
    assert states(bench) == {}
    assert bench.machine.next_wakeup() is None
