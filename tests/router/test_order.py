"""Ordered indices over nodes: order, board and holders, against plain tables."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton.core.load import Role
from baton.core.prefix import chain, root_key
from baton.router.ask import Ask
from baton.router.holders import Holders
from baton.router.machine_config import RouterConfig
from baton.router.nodes import Node, Registry
from baton.router.order import Order
from baton.router.policy import Choice
from baton.router.policy_latency import latency_policy
from baton.router.prefix_view import NodePrefixes, PromptChains
from baton.router.shortlist import EVERY, HOLDERS, NEAREST, candidates, kinds

from .machine_kit import load, node, request


@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.none() | st.integers(0, 5)), max_size=60))
def test_order_agrees_with_a_sorted_table(steps: list[tuple[str, int | None]]) -> None:
    order: Order[str] = Order()
    table: dict[str, float] = {}
    for name, figure in steps:
        if figure is None:
            order.drop(name)
            table.pop(name, None)
        else:
            order.put(name, float(figure), ord(name))
            table[name] = float(figure)
        order.check()
        assert list(order) == sorted(table, key=lambda one: (table[one], one))


keys = st.lists(st.sampled_from([b"a", b"b", b"c", b"d"]), unique=True, max_size=4)


@given(st.lists(st.tuples(st.integers(0, 4), keys, keys, st.booleans()), max_size=30))
def test_holders_agree_with_the_views(steps: list[tuple[int, list[bytes], list[bytes], bool]]) -> None:
    """Of each key in the order in which the nodes got it."""
    holders: Holders[int] = Holders()
    views = {i: NodePrefixes(4, "w") for i in range(5)}
    table: dict[bytes, list[int]] = {key: [] for key in (b"a", b"b", b"c", b"d")}
    for number, stored, removed, reset in steps:
        holders.change(number, views[number], stored, removed, reset=reset)
        holders.check(views.items())
        for key, nodes in table.items():
            if key not in views[number].stored:
                table[key] = [one for one in nodes if one != number]
            elif number not in nodes:
                nodes.append(number)
            assert list(holders.of(key)) == table[key]


@pytest.mark.parametrize("lost", [0, 1, 2, 3])
def test_it_is_seen_that_a_holder_is_not_known(lost: int) -> None:
    holders: Holders[int] = Holders()
    views = {i: NodePrefixes(4, "w") for i in range(4)}
    for number, view in views.items():
        holders.change(number, view, (b"k", b"l"), (), reset=False)
    holders.check(views.items())
    views[lost].stored.remove(b"k")
    views[lost].stored.add(b"m")
    with pytest.raises(AssertionError, match="lacks a node"):
        holders.check(views.items())


def test_the_longest_matches_come_first_each_once() -> None:
    holders: Holders[str] = Holders()
    tokens = tuple(range(400))
    chained = list(chain(root_key(revision="w"), tokens, 4))
    for name, blocks in (("all", 99), ("most", 80), ("some", 3), ("other", 0)):
        stored = chained[:blocks] or [b"x"]
        holders.change(name, NodePrefixes(4, "w"), stored, (), reset=False)
    assert list(holders.longest(PromptChains(tokens, "").keys(4, "w"))) == ["all", "most", "some"]


def cluster(count: int) -> tuple[Registry, list[Node], list[Node]]:
    registry = Registry()
    prefills = [registry.add(node(f"p{i}", Role.PREFILL), 0.0) for i in range(count)]
    decodes = [registry.add(node(f"d{i}", Role.DECODE), 0.0) for i in range(count)]
    return registry, prefills, decodes


def test_of_a_large_cluster_the_least_loaded_and_the_holders_are_looked_at() -> None:
    registry, prefills, _ = cluster(200)
    tokens = tuple(range(1, 801))
    seq = 2
    for number, one in enumerate(prefills):
        one.report(load(Role.PREFILL, seq, waiting_tokens=1000 * number), 0.0, 0.0)
    stored = tuple(chain(root_key(revision="w0"), tokens, 4))
    registry.kv_changed(prefills[150], stored, (), reset=False)
    registry.check()
    ask = Ask(request("r", prompt=800), 0.0, PromptChains(tokens, ""), 8.0)
    [kind] = kinds(ask, registry)
    picked = candidates(ask, registry, kind.prefills, "prefills", lambda ask, one: True)
    assert picked == [*prefills[:NEAREST], prefills[150]]
    assert len(picked) <= NEAREST + HOLDERS < EVERY


def test_the_shortlist_costs_little_against_looking_at_all() -> None:
    """The pair taken of 60 + 60 nodes with random queues, loads and caches is about as good as the best."""
    registry, prefills, decodes = cluster(60)
    dice = Random(3)
    policy = latency_policy(RouterConfig(max_node_wait_s=1e9))
    tokens = tuple(range(1, 801))
    chained = list(chain(root_key(revision="w0"), tokens, 4))
    for one in prefills:
        one.report(load(Role.PREFILL, 2, waiting_tokens=dice.randrange(20_000)), 0.0, 0.0)
        if dice.random() < 0.3:
            registry.kv_changed(one, chained[: dice.randrange(199)], (), reset=False)
    for one in decodes:
        one.report(load(Role.DECODE, 2, running=dice.randrange(8), context_tokens=100), 0.0, 0.0)
    ask = Ask(request("r", prompt=800), 0.0, PromptChains(tokens, ""), 8.0)
    choice = policy.choose(ask, registry)
    assert isinstance(choice, Choice)
    firsts = [policy.prefill_leg(ask, one) for one in prefills]
    seconds = [policy.decode_leg(ask, one, 0.0) for one in decodes]
    best = min(policy.pair(ask, p, d, p.cost_s + d.cost_s).score_s for p in firsts for d in seconds)
    assert choice.score_s <= best * 1.05 + 0.01
