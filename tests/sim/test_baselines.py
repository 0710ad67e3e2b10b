"""Published policies, each by what its formula says of a small cluster."""

from collections import Counter
from dataclasses import replace

import pytest

from baton.core.load import LoadReport, Role
from baton.core.model import Fingerprint
from baton.core.prefix import chain, root_key
from baton.core.request import Request, Slo
from baton.router.ask import Ask
from baton.router.events import NodeInfo
from baton.router.ledger import Work
from baton.router.nodes import Node, Registry
from baton.router.policy import Blocked, Choice, Why
from baton.router.prefix_view import PromptChains
from baton.sim.baselines.catalogue import BASELINES, baseline
from baton.sim.baselines.mooncake import Mooncake

FINGERPRINT = Fingerprint("1", "llama", "w0", "t0", "g0", "none", "float32", "native")
BLOCK = 4
NO_SLO = Slo()


def node(registry: Registry, name: str, role: Role, **load) -> Node:
    report = replace(
        LoadReport(1, role, blocks_total=1000, blocks_free=1000, block_size=BLOCK, max_running=64), **load
    )
    info = NodeInfo(name, name, f"{name}:1", name, FINGERPRINT, BLOCK, 1000, 1024, 1 << 20, report)
    return registry.add(info, 0.0)


def cluster(prefills: int = 3, decodes: int = 3, decode_role: Role = Role.DECODE) -> Registry:
    registry = Registry()
    for i in range(prefills):
        node(registry, f"p{i}", Role.PREFILL)
    for i in range(decodes):
        node(registry, f"d{i}", decode_role)
    return registry


def report(registry: Registry, name: str, **load) -> None:
    """What the node says of itself next."""
    there = registry.get(name)
    assert there.report(replace(there.load, seq=there.load.seq + 1, **load), 0.0, 0.0)


def holds(registry: Registry, name: str, ids: tuple[int, ...]) -> None:
    there = registry.get(name)
    keys = list(chain(root_key(salt="", revision="w0"), ids, BLOCK))
    registry.kv_changed(there, keys, (), reset=False)


def ask(prompt: int = 40, slo: Slo = NO_SLO, expected: float = 16.0) -> Ask:
    request = Request("r", tuple(range(prompt)), slo=slo)
    return Ask(request, 0.0, PromptChains(request.prompt_ids, ""), expected)


def choose(name: str, registry: Registry, asked: Ask | None = None, seed: int = 1) -> tuple[str, str]:
    choice = baseline(name).make(seed).choose(asked or ask(), registry)
    assert isinstance(choice, Choice), choice
    return choice.prefill.id, choice.decode.id


def busy(registry: Registry, name: str, seconds: float, requests: int = 1) -> None:
    """Prompt work that the router sent there."""
    for i in range(requests):
        registry.get(name).prefill.put(f"{name}-{i}", Work(seconds / requests, 10))


@pytest.mark.parametrize("each", BASELINES, ids=lambda each: each.name)
def test_all_choose_a_pair_where_there_is_one_and_say_why_where_there_is_none(each):
    choice = each.make(1).choose(ask(), cluster())
    assert isinstance(choice, Choice)
    assert (choice.prefill.id[0], choice.decode.id[0]) == ("p", "d")
    assert choice.prediction.prefill_s > 0.0
    assert each.make(1).choose(ask(), cluster(decodes=0)) == Blocked(Why.NO_NODE)
    assert isinstance(each.make(1).choose(ask(prompt=2 << 20), cluster()), Blocked)


@pytest.mark.parametrize("each", BASELINES, ids=lambda each: each.name)
def test_a_seed_fixes_the_choices(each):
    def run() -> list[tuple[str, str]]:
        policy, registry = each.make(5), cluster()
        picked = [policy.choose(ask(), registry) for _ in range(20)]
        return [(choice.prefill.id, choice.decode.id) for choice in picked]

    assert run() == run()


def test_random_reaches_all_and_round_robin_all_equally():
    registry = cluster()
    for name in ("random", "round robin"):
        policy = baseline(name).make(3)
        picked = Counter(policy.choose(ask(), registry).prefill.id for _ in range(300))
        assert len(picked) == 3
        assert min(picked.values()) >= (100 if name == "round robin" else 60)


def test_least_requests_counts_what_the_router_sent():
    registry = cluster(2, 2)
    busy(registry, "p0", 0.1, requests=3)
    busy(registry, "p1", 9.0, requests=2)
    registry.get("d0").decode.put("a", Work())
    assert choose("least requests", registry) == ("p1", "d1")


def test_power_of_two_takes_the_one_with_fewer_tokens():
    registry = cluster(2, 2)
    report(registry, "p1", waiting_tokens=500)
    report(registry, "d0", blocks_free=900)
    assert choose("power of two", registry) == ("p0", "d1")
    wide = cluster(20, 1)
    report(wide, "p0", waiting_tokens=1)
    policy = baseline("power of two").make(0)
    picked = Counter(policy.choose(ask(), wide).prefill.id for _ in range(400))
    assert len(picked) > 15  # it looks at two of them only, so it cannot always find the best


def test_cache_aware_follows_a_long_match_until_the_nodes_are_out_of_balance():
    registry = cluster(2, 1)
    busy(registry, "p1", 0.1)
    holds(registry, "p1", tuple(range(24)))
    assert choose("cache_aware", registry)[0] == "p1"  # 24 of 40
    assert choose("cache_aware", registry, ask(prompt=60))[0] == "p0"  # 24 of 60 is less than half
    for i in range(40):
        registry.get("p1").prefill.put(str(i), Work())
    assert choose("cache_aware", registry)[0] == "p0"


def test_least_load_weighs_the_queue_against_kv_usage():
    registry = cluster(2, 2)
    busy(registry, "p0", 0.5)
    assert choose("least_load", registry)[0] == "p1"
    report(registry, "p1", blocks_free=100)  # k = 0.9 costs 1.35 s
    assert choose("least_load", registry)[0] == "p0"
    report(registry, "d0", running=8, context_tokens=800)
    assert choose("least_load", registry)[1] == "d1"


def test_dynamo_adds_uncached_prompt_blocks_and_held_blocks():
    registry = cluster(2, 2)
    report(registry, "p1", blocks_free=992)  # 8 blocks held
    assert choose("Dynamo", registry)[0] == "p0"
    holds(registry, "p1", tuple(range(36)))  # saves 9 blocks
    assert choose("Dynamo", registry)[0] == "p1"
    report(registry, "d0", blocks_free=990)
    assert choose("Dynamo", registry)[1] == "d1"


def test_dynamo_prefills_where_it_decodes_if_little_is_new():
    registry = cluster(1, 1, decode_role=Role.BOTH)
    assert choose("Dynamo", registry) == ("p0", "d0")
    holds(registry, "d0", tuple(range(20)))
    assert choose("Dynamo", registry) == ("d0", "d0")
    assert choose("Dynamo", registry, ask(prompt=5000)) == ("p0", "d0")
    other = cluster(1, 1, decode_role=Role.BOTH)
    report(other, "p0", waiting_tokens=50_000)
    assert choose("Dynamo", other) == ("d0", "d0")  # prefill is busy, and the prompt short


def test_mooncake_takes_the_least_ttft_with_the_cache_counted():
    registry = cluster(2, 2)
    holds(registry, "p1", tuple(range(2000)))
    assert choose("Mooncake", registry, ask(prompt=2004))[0] == "p1"
    busy(registry, "p1", 10.0)
    assert choose("Mooncake", registry, ask(prompt=2004))[0] == "p0"
    report(registry, "d1", running=30, context_tokens=100_000)
    assert choose("Mooncake", registry)[1] == "d0"


def test_mooncake_fetches_the_longest_prefix_of_a_busy_node():
    registry = cluster(2, 2)
    holds(registry, "p1", tuple(range(2000)))
    busy(registry, "p1", 10.0)
    fetched = baseline("Mooncake").make(0).choose(ask(prompt=2004), registry)
    assert isinstance(fetched, Choice)
    assert fetched.prefill.id == "p0"
    assert fetched.fetch is not None
    assert (fetched.fetch.lender.id, fetched.fetch.tokens) == ("p1", 2000)
    assert fetched.prediction.cached_tokens == 2000
    holds(registry, "p0", tuple(range(1200)))
    plain = Mooncake(threshold=2.0).choose(ask(prompt=2004), registry)
    assert isinstance(plain, Choice)
    assert plain.fetch is None


def test_mooncake_rejects_what_would_miss_either_target():
    registry = cluster(1, 1)
    policy = baseline("Mooncake").make(0)
    slo = Slo(ttft_s=1.0, tpot_s=0.05)
    assert isinstance(policy.choose(ask(slo=slo), registry), Choice)
    busy(registry, "p0", 3.0)
    late = policy.choose(ask(slo=slo), registry)
    assert isinstance(late, Blocked)
    assert "TTFT" in late.items[0]
    other = cluster(1, 1)
    report(other, "d0", running=60, context_tokens=2_000_000)
    slow = policy.choose(ask(slo=slo, expected=1000.0), other)
    assert isinstance(slow, Blocked)
    assert "TPOT" in slow.items[0]
    assert isinstance(policy.choose(ask(expected=1000.0), other), Choice)  # no targets, nothing to miss


def test_mooncake_counts_those_that_leave_before_the_prompt_is_done():
    registry = cluster(1, 1)
    report(registry, "d0", running=60, context_tokens=2_000_000)
    slo = Slo(ttft_s=60.0, tpot_s=0.05)
    policy = baseline("Mooncake").make(0)
    assert isinstance(policy.choose(ask(slo=slo, expected=10.0), registry), Blocked)
    busy(registry, "p0", 30.0)  # by then none of them is there any more
    assert isinstance(policy.choose(ask(slo=slo, expected=10.0), registry), Choice)


def test_llm_d_packs_the_fullest_node_that_still_fits():
    registry = cluster(3, 3)
    busy(registry, "p0", 0.9)
    busy(registry, "p1", 0.3)
    slo = Slo(ttft_s=0.5, tpot_s=0.1)
    report(registry, "d1", running=20, context_tokens=200_000)
    report(registry, "d2", running=60, context_tokens=3_000_000)
    assert choose("llm-d headroom", registry, ask(slo=slo)) == ("p1", "d1")
    busy(registry, "p2", 5.0)
    assert choose("llm-d headroom", registry, ask(slo=Slo(ttft_s=0.1)))[0] == "p1"  # the least late
    assert choose("llm-d headroom", registry)[1] == "d0"  # no target: the fastest
