"""How a pair is chosen: each node's legs are looked at once, and the pairs left out could not have won."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton.core.errors import Code
from baton.core.load import Role
from baton.router.events import Cancelled, Dispatch, Reject
from baton.router.machine import RouterMachine
from baton.router.machine_config import RouterConfig
from baton.router.nodes import Registry
from baton.router.policy import Ask, DecodeLeg, PrefillLeg, Scored
from baton.router.policy_latency import _slow, latency_policy
from baton.router.prefix_view import PromptChains

from .machine_kit import Bench, load, node, of, request

seconds = st.sampled_from([0.0, 0.001, 0.01, 0.0101, 0.5]) | st.floats(0.0, 2.0)


def nodes(count: int, role: Role, name: str) -> list[Any]:
    registry = Registry()
    return [registry.add(node(f"{name}{i}", role), 0.0) for i in range(count)]


PREFILLS, DECODES = nodes(5, Role.PREFILL, "p"), nodes(5, Role.DECODE, "d")
prefill_legs = st.lists(st.tuples(seconds, seconds, seconds, seconds), min_size=1, max_size=5)
decode_legs = st.lists(st.tuples(seconds, seconds, st.integers(0, 1000)), min_size=1, max_size=5)


@given(prefill_legs, decode_legs, st.sets(st.tuples(st.integers(0, 4), st.integers(0, 4))), st.booleans())
def test_exactly_the_pairs_close_to_the_cheapest_are_left(
    first: list[tuple[float, ...]],
    second: list[tuple[Any, ...]],
    allowed: set[tuple[int, int]],
    all_fit: bool,
) -> None:
    policy = latency_policy(RouterConfig())
    prefills = [
        PrefillLeg(PREFILLS[i], queue, compute, 0, transfer_token_s=rate / 1000, transfer_tail_s=tail)
        for i, (queue, compute, rate, tail) in enumerate(first)
    ]
    decodes = [DecodeLeg(DECODES[i], *leg[:1], 0.0, *leg[1:]) for i, leg in enumerate(second)]
    pairs = {(PREFILLS[p], DECODES[d]) for p, d in allowed}
    may = None if all_fit else (lambda p, d: (p, d) in pairs)
    ask = Ask(request("r"), 0.0, PromptChains((1,), ""), 8.0)
    every = [
        policy.pair(ask, p, d, p.cost_s + d.cost_s)
        for p in prefills
        for d in decodes
        if may is None or may(p.node, d.node)
    ]
    close, compared = policy._cheapest(
        ask,
        sorted((leg.cost_s, leg.node.id, leg) for leg in prefills),
        sorted((leg.cost_s, leg.node.id, leg) for leg in decodes),
        may,
    )
    lowest = min([pair.score_s for pair in every], default=math.inf)
    limit = lowest + max(lowest * policy.tie_fraction, policy.tie_s)

    def named(scored: list[Scored]) -> set[tuple[str, str]]:
        return {(pair.prefill.node.id, pair.decode.node.id) for pair in scored}

    assert named(close) == named([pair for pair in every if pair.score_s <= limit])
    assert compared <= len(every)


@pytest.mark.parametrize("busy", [0, 7])
def test_an_arrival_looks_at_each_node_once_and_at_few_pairs(busy: int) -> None:
    config = RouterConfig(max_node_wait_s=1e9)
    calls: Counter[str] = Counter()

    def counted(name: str, inner: Any) -> Any:
        def call(*args: Any) -> Any:
            calls[name] += 1
            return inner(*args)

        return call

    policy = latency_policy(config)
    counting = {name: counted(name, getattr(policy, name)) for name in ("prefill_leg", "decode_leg", "pair")}
    bench = Bench(config)
    bench.machine = RouterMachine(config, replace(policy, **counting))
    for i in range(8):
        waiting = load(Role.PREFILL, waiting_tokens=1000 * i if i <= busy else 0)
        running = load(Role.DECODE, running=i if i <= busy else 0)
        bench.join(node(f"p{i}", Role.PREFILL, load=waiting), node(f"d{i}", Role.DECODE, load=running))
    bench.arrive("a")
    assert (calls["prefill_leg"], calls["decode_leg"]) == (8, 8)
    assert calls["pair"] == 64 if not busy else calls["pair"] < 16


def test_equal_pairs_all_get_their_share() -> None:
    bench = Bench()
    for i in range(3):
        bench.join(node(f"p{i}", Role.PREFILL), node(f"d{i}", Role.DECODE))
    sent: Counter[tuple[str, str]] = Counter()
    for i in range(180):
        [dispatch] = of(Dispatch, bench.arrive(f"r{i}"))
        sent[dispatch.prefill_node, dispatch.decode_node] += 1
        bench.step(Cancelled(f"r{i}"))
    assert len(sent) == 9
    assert min(sent.values()) >= 5


def test_what_no_node_can_take_is_refused_though_the_queue_is_stuck() -> None:
    """The queue's head has no room, so the newcomer is never compared with nodes: it is told all the same."""
    bench = Bench(RouterConfig(decode_slack=0))
    bench.join(
        node("p", Role.PREFILL),
        node("d", Role.DECODE, load=load(Role.DECODE, max_running=1)),
    )
    bench.arrive("running")
    bench.arrive("waits")
    [reject] = of(Reject, bench.arrive("long", prompt=5000))
    assert (reject.request_id, reject.error.code) == ("long", Code.INVALID_ARGUMENT)
    assert bench.machine.queued == 1


def test_of_nearly_equal_nodes_the_emptier_one_is_taken() -> None:
    """SCH2: four long streams on one decode node, then eight short requests, one by one."""
    bench = Bench()
    busy = load(Role.DECODE, running=4, context_tokens=100)
    bench.join(
        node("p", Role.PREFILL),
        node("d0", Role.DECODE, load=busy),
        node("d1", Role.DECODE, load=load(Role.DECODE)),
    )
    sent: Counter[str] = Counter()
    for i in range(8):
        [dispatch] = of(Dispatch, bench.arrive(f"r{i}"))
        sent[dispatch.decode_node] += 1
        bench.step(Cancelled(f"r{i}"))
    assert sent["d1"] == 8, sent


def test_a_batch_that_is_said_to_cost_nothing_is_never_slow() -> None:
    """A fit is non-negative, so it may be zero; a division by it stopped the machine for good."""
    assert _slow(DECODES[0].tpot_errors, 0.1, 0.0) == 0.0
    assert _slow(DECODES[0].tpot_errors, 0.1, 1e9) > 0.5


@pytest.mark.parametrize("step_s", [0.001, 0.005, 0.05])
def test_nodes_that_have_not_measured_anything_are_taken_for_average_ones(step_s: float) -> None:
    """All joined before any had a measurement. One tells of its steps, and gets its share all the same."""
    bench = Bench()
    names = [f"d{i}" for i in range(8)]
    bench.join(node("p", Role.PREFILL), *(node(name, Role.DECODE, load=load(Role.DECODE)) for name in names))
    steps = tuple((1 + i % 4, 8 * (1 + i % 4), step_s * (1.0 + 0.01 * (i % 3))) for i in range(32))
    bench.report("d0", load(Role.DECODE, seq=2, decode_samples=steps))
    sent = [of(Dispatch, bench.arrive(f"r{i}"))[0].decode_node for i in range(8)]
    assert sorted(sent) == names, sent


def test_a_node_that_has_measurements_keeps_to_them() -> None:
    registry = Registry()
    one, other, third = (registry.add(node(f"d{i}", Role.DECODE), 0.0) for i in range(3))
    for seq, (measured, step_s) in enumerate([(one, 0.01), (other, 0.1)], start=2):
        report = load(Role.DECODE, seq=seq, decode_samples=((1, 8, step_s),) * 32)
        measured.report(report, 0.0, 0.0)
        registry.learn(measured, 0.0)
    assert one.cost.decode_mean_s(1, 8) == pytest.approx(0.01, rel=0.05)
    assert other.cost.decode_mean_s(1, 8) == pytest.approx(0.1, rel=0.05)
    assert third.cost.decode_mean_s(1, 8) == registry.average.decode_mean_s(1, 8)
    assert third.cost.decode_factor(0.8) == registry.average.decode_factor(0.8)
