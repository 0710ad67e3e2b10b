"""KV that simulated nodes fetch from each other: where it pays, and what faults in the middle leave."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from baton.router.ask import Ask
from baton.router.events import Dispatch, Effect, Event, Record
from baton.router.fetches import FetchLeg
from baton.router.lenders import Lenders
from baton.router.machine_config import RouterConfig
from baton.router.nodes import Registry
from baton.router.policy import Blocked, Choice
from baton.router.policy_latency import latency_policy
from baton.sim.clients import ClientSpec
from baton.sim.cost import MeasuredCost
from baton.sim.faults import Kill
from baton.sim.spec import ClusterSpec
from baton.sim.workload.arrival import Arrival
from baton.sim.world import Checks, Options, Results, World

from .kit import SMALL, cluster, faults

NAMES = ("p0", "p1", "d0", "d1", "b0")
SOON = Checks(every=1, limit_s=120.0)
SLOW = replace(
    SMALL,
    cost=MeasuredCost(prefill=(0.002, 1e-3, 1e-8), decode=((1, 0.005), (8, 0.008)), context_s=1e-6),
    noise=0.0,
    num_blocks=300,
)
CHAT = (1, 2, 3, 4, 5)  # of 64 tokens each


class Fetching:
    """The usual policy, but whatever it thinks, most prompts ask some other node for their beginning."""

    def __init__(self, seed: int) -> None:
        self._policy = latency_policy(RouterConfig())
        self._dice = Random(f"fetching/{seed}")

    def choose(self, ask: Ask, registry: Registry) -> Choice | Blocked:
        choice = self._policy.choose(ask, registry)
        others = [node for node in registry if isinstance(choice, Choice) and node is not choice.prefill]
        if isinstance(choice, Blocked) or not others or self._dice.random() < 0.2:
            return choice
        lender, tokens = self._dice.choice(others), self._dice.randint(1, 12) * SMALL.block_size
        if (found := Lenders(registry, ask.chains).of(SMALL.block_size, lender.prefixes.revision)) and (
            found[0][0] is not choice.prefill and self._dice.random() < 0.8
        ):
            lender, tokens = found[0]
        patience_s = self._dice.choice((0.05, 0.1, 1.0))
        return replace(choice, fetch=FetchLeg(lender, tokens, 0.0, 0.0, 0.0, patience_s))


def chats(seed: int, count: int, rate: float) -> Iterator[Arrival]:
    """Poisson; their beginnings are those of a dozen."""
    dice = Random(f"chats/{seed}")
    at_s = 0.0
    for _ in range(count):
        at_s += dice.expovariate(rate)
        chat = dice.randrange(12)
        prefix = tuple(chat * 10 + i for i in range(dice.randint(1, 5)))
        yield Arrival(at_s, len(prefix) * 16 + dice.randint(1, 20), dice.randint(1, 40), prefix, 16)


@settings(max_examples=12, suppress_health_check=[HealthCheck.too_slow])
@given(seed=st.integers(0, 10**6), fenced=st.booleans(), count=st.integers(0, 8))
def test_faults_break_no_invariant(seed: int, fenced: bool, count: int) -> None:
    """Every prompt is answered once and every block comes back, whoever dies, is cut off or cancels."""
    spec = cluster(2, 2, 1, jitter=0.5, loss=0.02, resend_s=0.05, detect_s=1.0, fenced=fenced)
    options = Options(ClientSpec(resends=1), SOON, faults=faults(seed, NAMES, count, 0.6))
    world = World(spec, seed, policy=Fetching(seed), options=options)  # type: ignore[arg-type]
    results = world.run(chats(seed, 30, rate=80.0))
    assert len(results.requests) == 30
    if not count:
        assert all(result.ok for result in results.requests)


def test_forced_fetches_do_happen() -> None:
    """Guard: the test above is about something. One world may have next to none, by chance."""
    seen: list[Record] = []

    def watch(now: float, event: Event, effects: list[Effect]) -> None:
        seen.extend(e for e in effects if isinstance(e, Record) and e.kind == "fetch")

    for seed in range(20):
        world = World(cluster(2, 2, 1), seed, policy=Fetching(seed), watch=watch)  # type: ignore[arg-type]
        world.run(chats(seed, 60, rate=60.0))
    assert sum(record.data["fetched_tokens"] > 0 for record in seen) >= 80


def conversation(**network: float) -> ClusterSpec:
    """Two prefill nodes; a second turn comes while the node of the first computes somebody else's prompt."""
    spec = ClusterSpec.pools(SLOW, prefill=2, decode=2)
    return replace(spec, network=replace(spec.network, **network), calibrated=True)


TURNS = [
    Arrival(0.0, 320, 8, CHAT, 64),
    Arrival(1.0, 390, 2, (1, 6, 7, 8, 9, 10), 64),  # goes where its first block is
    Arrival(1.01, 340, 8, CHAT, 64),
]


def run(
    spec: ClusterSpec, *, fetch: bool, plan: tuple[Kill, ...] = ()
) -> tuple[Results, list[Dispatch], list[Record]]:
    dispatches: list[Dispatch] = []
    records: list[Record] = []

    def watch(now: float, event: Event, effects: list[Effect]) -> None:
        dispatches.extend(e for e in effects if isinstance(e, Dispatch))
        records.extend(e for e in effects if isinstance(e, Record) and e.kind == "fetch")

    options = Options(checks=SOON, faults=plan)
    world = World(spec, 1, RouterConfig(fetch=fetch, max_node_wait_s=10.0), options=options, watch=watch)
    return world.run(TURNS), dispatches, records


def test_a_second_turn_is_fetched_where_that_is_faster() -> None:
    results, dispatches, records = run(conversation(), fetch=True)
    plain, none, _ = run(conversation(), fetch=False)
    (last,) = [d for d in dispatches if d.fetch is not None]
    assert not any(d.fetch for d in none)
    assert last.fetch is not None
    assert last.fetch.tokens == 320
    (record,) = records
    assert record.data["fetched_tokens"] == 320
    by_number = sorted(results.requests, key=lambda one: one.number)
    before = sorted(plain.requests, key=lambda one: one.number)
    assert by_number[2].cached_tokens == 320
    assert by_number[2].ttft_s is not None
    assert before[2].ttft_s is not None
    assert by_number[2].ttft_s < before[2].ttft_s


def test_over_a_slow_network_it_is_computed() -> None:
    spec = conversation()
    slow = replace(SLOW, nic_bytes_s=1e5)
    spec = replace(spec, nodes=tuple(replace(node, profile=slow) for node in spec.nodes))
    _, dispatches, _ = run(spec, fetch=True)
    assert not any(d.fetch for d in dispatches[:2])


@pytest.mark.parametrize("silent", [False, True])
@pytest.mark.parametrize("at_s", [1.0101, 1.0105, 1.011, 1.0115, 1.0125, 1.03])
def test_a_lender_that_dies_costs_at_most_what_computing_costs(at_s: float, silent: bool) -> None:
    """Before it is asked, before it offers, before it has room, while it writes. Where its process alone is
    gone, that is known at once."""
    _, dispatches, _ = run(conversation(), fetch=True)
    (last,) = [d for d in dispatches if d.fetch is not None]
    assert last.fetch is not None
    kill = Kill(at_s, last.fetch.node_id, None, silent=silent)
    results, _, (record,) = run(conversation(detect_s=3.0), fetch=True, plan=(kill,))
    assert record.data["fetched_tokens"] == 0
    assert all(result.ok for result in results.requests)
    (answer,) = [result for result in results.requests if result.number == 2]
    assert answer.retries == 0
    assert answer.ttft_s is not None
    assert answer.ttft_s < 0.36 + (last.fetch.patience_s if silent else 0.05)
