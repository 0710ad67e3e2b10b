"""Nodes that looked slow are tried again, one request at a time; peers are nodes of the same kind."""

from __future__ import annotations

from dataclasses import replace

import pytest

from baton.core.load import Role
from baton.router.machine_config import RouterConfig
from baton.router.nodes import Node, Registry

from .machine_kit import FINGERPRINT, Bench, load, node

BYTES = 1 << 20


def reported(registry: Registry, known: Node, now: float, **samples: object) -> None:
    known.report(load(known.load.role, seq=known.load.seq + 1, **samples), now, 0.02)
    registry.learn(known, now)


def test_a_link_that_was_slow_is_taken_for_a_usual_one_again() -> None:
    registry = Registry()
    usual, slow = (registry.add(node(name, Role.PREFILL), 0.0) for name in ("p0", "p1"))
    for i in range(10):
        for known, seconds in ((usual, 0.001), (slow, 0.05)):
            reported(registry, known, 0.1 * i, transfer_samples=((BYTES, seconds),))
    assert slow.cost.transfer_s(BYTES).mean_s == pytest.approx(0.05, rel=0.1)
    reported(registry, slow, 30.0)
    leant_s = slow.cost.transfer_s(BYTES).mean_s
    assert leant_s < 0.01
    slow.sending_until_s = 31.0
    reported(registry, slow, 30.5)
    assert slow.cost.transfer_s(BYTES).mean_s == pytest.approx(0.05, rel=0.1), (
        "one is under way: it will tell"
    )


def test_a_slow_kind_of_node_is_not_held_against_a_fast_one() -> None:
    registry = Registry()
    other = replace(FINGERPRINT, quantization="int8-w8a8")
    slow = [registry.add(node(f"s{i}", Role.PREFILL), 0.0) for i in range(2)]
    fast = registry.add(node("f", Role.PREFILL, fingerprint=other), 0.0)
    for i in range(20):
        for known, seconds in ((slow[0], 0.1), (slow[1], 0.3), (fast, 0.02)):
            reported(registry, known, 0.1 * i, prefill_samples=((100, 0, seconds),))
    reported(registry, slow[1], 100.0)
    assert 0.09 < slow[1].cost.prefill_s(100, 0).mean_s < 0.2


def test_one_request_tries_a_node_and_the_next_waits_for_what_it_tells() -> None:
    bench = Bench(RouterConfig(lease_s=1e6))
    bench.join(node("p", Role.PREFILL), node("d0", Role.DECODE), node("d1", Role.DECODE))
    for seq in range(2, 12):
        for name, pace in (("d0", 1.0), ("d1", 5.0)):
            samples = ((1, 100, 0.01 * pace), (4, 400, 0.02 * pace))
            bench.report(name, load(Role.DECODE, seq, decode_samples=samples))
    for name in ("before", "as well"):
        bench.arrive(name)
        assert bench.dispatches(name)[0].decode_node == "d0"
    bench.now += 100.0
    bench.report("d1", load(Role.DECODE, 12))
    bench.arrive("tries")
    assert bench.dispatches("tries")[0].decode_node == "d1"
    bench.arrive("waits for it")
    bench.arrive("so does this")
    assert bench.dispatches("waits for it")[0].decode_node == "d0"
    assert bench.dispatches("so does this")[0].decode_node == "d0"


def test_a_usual_step_is_one_of_nodes_that_compute_prompts() -> None:
    """Whoever joins last: one that only decodes, or is too old to say how long its steps are."""
    registry = Registry()
    first = registry.add(node("p0", Role.PREFILL, step_tokens=16), 0.0)
    registry.add(node("d0", Role.DECODE, step_tokens=256), 0.0)
    registry.add(node("p1", Role.PREFILL), 0.0)
    for i in range(20):
        reported(registry, first, 0.1 * i, prefill_samples=((16, 16 * i, 0.05),))
    for cost in (first.cost, registry.average):
        assert cost.prefill_s(600, 0).mean_s == pytest.approx(38 * 0.05, rel=0.1)
