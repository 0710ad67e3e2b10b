"""The search for degrees, roles and admission: its estimates, and what it finds where the answer is known."""

from __future__ import annotations

import math
from itertools import islice

import pytest

from baton.core.errors import InvalidArgument
from baton.core.request import Slo
from baton.sim.experiments.estimate import Ability, erlang_c, pools
from baton.sim.experiments.plan import Layout, layouts, make_plan
from baton.sim.experiments.setting import Setting, Split
from baton.sim.profiles import degrees, profile
from baton.sim.roofline import Device, ModelShape, roofline
from baton.sim.spec import Profile
from baton.sim.workload.arrival import NO_SLO, Arrival
from baton.sim.workload.arrivals import poisson

MODEL = ModelShape("toy", 1e9, 0.0, 10, 1024, 8, 8, 128, 2, 4096)
PROMPT_S = 0.1  # of a prompt of 1,000 tokens on one device
SLOW_LINK = Device("dev", 2e12 / 0.6 / PROMPT_S, 20e9, 1e12, 450e9, 50e9, reduce_s=6e-4)
KINDS = [roofline(SLOW_LINK, MODEL, degree) for degree in (1, 2, 4)]


def load(count: int = 100, prompt: int = 1000, output: int = 200, slo: Slo = NO_SLO) -> list[Arrival]:
    """Poisson."""
    return list(islice(poisson(5.0, lambda _: (prompt, output), 1, slo), count))


def mixed(layout: Layout) -> bool:
    return [(role, kind.gpus) for _, role, kind in layout.pools] == [("prefill", 2), ("decode", 1)]


def planned(slo: Slo, devices: int, kinds: list[Profile]):
    trace = load(slo=slo)
    field = layouts(trace, slo, kinds, devices)
    setting = Setting("toy", tuple(trace), slo, kinds[0], 1)
    return field, make_plan(setting, field, 8, 0.3, 1, lambda *_: None)


def test_only_a_mixture_keeps_both_targets() -> None:
    """One device computes a prompt too slowly; two sum up activations too slowly for tokens: 20 x 0.6 ms."""
    field, plan = planned(Slo(0.08, 0.010), 3, KINDS)
    assert all(mixed(layout) for layout in field.layouts)
    assert (plan.best.layout.split, plan.best.layout.devices) == (Split(1, 1), 3)
    assert plan.best.rate > 0.5
    assert any("toy@dev: prompts take 102 ms on an idle node" in why for why in field.unfit)
    assert any("toy@devx2: a decode step takes 13.8 ms even alone" in why for why in field.unfit)


def test_the_mixture_wins_where_all_of_two_could_serve_some() -> None:
    """Of 13.84 ms per token sums take 12 on two devices: a row or two are left, of one device 200."""
    field, plan = planned(Slo(0.098, 0.01384), 4, KINDS[:2])
    others = [layout for layout in field.layouts if not mixed(layout)]
    assert {tuple(kind.gpus for _, _, kind in layout.pools) for layout in others} >= {(2,), (2, 2)}
    assert mixed(plan.best.layout)
    for layout in others:
        assert layout.estimate.most / layout.devices < plan.best.per_device, "so no schedule does better"
    assert plan.left, "what could not win is told of, but not simulated"
    assert {each.admission for each in plan.tried} == {"defer", "reject"}


def test_what_was_found_meets_the_targets() -> None:
    _, plan = planned(Slo(0.08, 0.010), 3, KINDS)
    assert plan.best.ttft_p90_s <= 0.08
    assert plan.best.tpot_p90_s <= 0.010
    assert plan.best.rate <= plan.best.layout.estimate.most


def test_a_target_near_a_prompt_s_time_wants_fast_nodes_and_a_far_one_many() -> None:
    """The four devices of prefill as one node, two or four, where sums cost little."""
    device = Device("dev", 2e12 / 0.6 / PROMPT_S, 20e9, 1e12, 450e9, 50e9, reduce_s=6e-6)
    kinds = [roofline(device, MODEL, degree) for degree in (1, 2, 4)]

    def rates(ttft_s: float) -> list[float]:
        able = [Ability.of(kind, load(), Slo(ttft_s), 0.9) for kind in kinds]
        return [each.prompt_rate(round(4 / each.kind.gpus)) for each in able]

    one, two, four = rates(0.12)
    assert four > two > one
    one, two, four = rates(5.0)
    assert one > two > four


@pytest.mark.parametrize(("servers", "load_"), [(1, 0.3), (3, 2.5), (8, 4.0)])
def test_erlang_s_formula(servers: int, load_: float) -> None:
    last = load_**servers / math.factorial(servers) / (1 - load_ / servers)
    expected = last / (sum(load_**k / math.factorial(k) for k in range(servers)) + last)
    assert erlang_c(servers, load_) == pytest.approx(expected)


def test_waits_are_those_of_a_queue_with_one_server() -> None:
    """M/M/1: a wait is longer than t with probability rho exp(-(mu - lambda) t)."""
    able = Ability.of(KINDS[0], load(), Slo(1.0), 0.9)
    able.__dict__.update(burst=1.0, spread=1.0, prompt_s=0.1, sampled_s=(0.1,))
    assert able.in_time(1, 6.0) == pytest.approx(1 - 0.6 * math.exp(-(10 - 6) * 0.9))
    assert able.in_time(1, 10.0) == 0.0


def test_what_holds_a_layout_back() -> None:
    def by(kinds: tuple[Profile, Profile], counts: tuple[int, int], slo: Slo, **lengths: int) -> str:
        first, second = (Ability.of(kind, load(**lengths), slo, 0.9) for kind in kinds)
        return pools(first, counts[0], second, counts[1]).by

    one, two = KINDS[:2]
    assert by((two, one), (1, 1), Slo(0.08, 0.010)) == "prefill: queue within TTFT"
    assert by((one, one), (1, 4), Slo(60.0, 0.010)) == "prefill: arithmetic"
    assert by((one, one), (8, 1), Slo(60.0, 0.010), output=2000) == "decode: reading KV, 68 rows (TPOT)"
    assert "(KV memory)" in by((one, one), (64, 1), Slo(60.0, 1.0), prompt=2000, output=2000)
    assert "all-reduces" in by((one, two), (8, 1), Slo(60.0, 0.0139), output=2000)
    thin = roofline(Device("dev", 1e18, 20e9, 1e12, 450e9, 1e6, 6e-6), MODEL)
    assert by((thin, thin), (1, 1), Slo(60.0, 0.1)) == "hand-offs: NICs"


def test_pools_may_differ_and_use_no_more_than_there_is() -> None:
    kinds = degrees("llama-3.1-8b@h100").profiles
    field = layouts(load(), Slo(1.0, 0.05), kinds, 8)
    assert all(layout.devices <= 8 for layout in field.layouts)
    pairs = {(layout.prefill.gpus, layout.second.gpus) for layout in field.layouts if layout.split.decode}
    assert pairs == {(p, d) for p in (1, 2, 4, 8) for d in (1, 2, 4, 8) if p + d <= 8}
    per_device = [layout.estimate.rate / layout.devices for layout in field.layouts]
    assert per_device == sorted(per_device, reverse=True)
    assert all(layout.estimate.rate <= layout.estimate.most for layout in field.layouts)


def test_candidates_are_of_all_shapes() -> None:
    field = layouts(load(), Slo(1.0, 0.05), degrees("llama-3.1-8b@h100").profiles, 8)
    families = field.families()
    assert {tuple(role for _, role, _ in layout.pools) for layout in families[:3]} == {
        ("prefill", "decode"),
        ("both",),
        ("prefill", "both"),
    }
    assert len({layout.family for layout in families}) == len(families)


def test_what_cannot_be_planned_is_said() -> None:
    eight, seventy = profile("llama-3.1-8b@h100"), profile("llama-3.1-70b@h100")
    with pytest.raises(InvalidArgument, match=r"llama-3\.1-70b and llama-3\.1-8b are different models"):
        layouts(load(), Slo(1.0), [eight, seventy], 8)
    with pytest.raises(InvalidArgument, match=r"2 are too few: a node of llama-3\.1-70b@h100x4 takes 4"):
        layouts(load(), Slo(1.0), [seventy], 2)
    with pytest.raises(InvalidArgument, match="no profile meets the targets"):
        layouts(load(), Slo(0.001), [eight], 8)


def test_slow_tokens_are_found_out_before_a_simulation() -> None:
    field = layouts(load(), Slo(1.0, 0.012), degrees("llama-3-70b@h100").profiles, 16)
    assert all(layout.second.gpus == 8 for layout in field.layouts), "two and four read weights too slowly"
    assert {layout.prefill.gpus for layout in field.layouts} == {2, 4, 8}
