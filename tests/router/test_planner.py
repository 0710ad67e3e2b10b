"""The planner: what it moves, when, and that it keeps still."""

from __future__ import annotations

import math
from dataclasses import replace
from random import Random

import pytest

from baton.core.load import Role
from baton.router.events import HandedOff, Record, SetRole
from baton.router.machine_config import RouterConfig
from baton.router.planner import Move, Planner, PlannerConfig, Situation, Split, after, best_move, pressure

from .machine_kit import Bench, load, node, of

CONFIG = PlannerConfig()
CALM = Situation(Split(4, 4), 2.0, 0.05, 1.0, 0.5, 100.0, 50.0, 5.0)
PROMPTS = replace(CALM, prompts=3.9)
ROWS = replace(CALM, rows=210.0, prompts=1.0)
TO_PREFILL, TO_DECODE = Move(Role.DECODE, Role.PREFILL), Move(Role.PREFILL, Role.DECODE)


@pytest.mark.parametrize(
    ("situation", "move"),
    [
        (CALM, None),
        (PROMPTS, TO_PREFILL),
        (ROWS, TO_DECODE),
        (replace(PROMPTS, rows=195.0), None),  # both pools are full: nothing helps
        (replace(PROMPTS, split=Split(1, 1), rows=20.0, prompts=0.9), Move(Role.DECODE, Role.BOTH)),
    ],
)
def test_what_moves(situation: Situation, move: Move | None) -> None:
    assert best_move(situation, CONFIG) == move


def test_a_queue_that_takes_most_of_the_target_counts_though_the_load_is_low() -> None:
    """Long prompts that vary: a load of 0.6, but a wait as long as the target."""
    busy = Situation(Split(1, 5), 0.6, 0.3, 8.0, 1.0, 20.0, 50.0, 1.0)
    assert pressure(busy, busy.split) > 1.0
    assert best_move(busy, CONFIG) == TO_PREFILL
    assert best_move(replace(busy, ttft_s=None), CONFIG) is None


def test_the_giver_is_judged_at_what_its_others_then_have() -> None:
    """Decode at 0.7 of 2 nodes would be at 1.4 of one: prefill gets none of them."""
    tight = Situation(Split(2, 2), 1.9, 0.05, 1.0, 0.5, 70.0, 50.0, 5.0)
    assert best_move(tight, CONFIG) != TO_PREFILL
    assert pressure(tight, after(tight.split, TO_PREFILL)) >= 1.4


def test_a_drain_that_costs_more_than_the_move_brings_is_not_begun() -> None:
    assert best_move(replace(PROMPTS, drain_s=1e4), CONFIG) is None


def test_pools_cannot_be_emptied() -> None:
    for split in (Split(0, 4), Split(4, 0), Split(-1, 5)):
        assert pressure(CALM, split) == math.inf
    assert pressure(CALM, Split(0, 0, 8)) < math.inf


def test_a_move_needs_several_looks_and_then_rest() -> None:
    planner = Planner(CONFIG)
    looks = [planner.look(5.0 * i, PROMPTS) for i in range(12)]
    assert [i for i, move in enumerate(looks) if move] == [2, 10]
    planner = Planner(CONFIG)
    mixed = [planner.look(5.0 * i, PROMPTS if i % 2 else CALM) for i in range(20)]
    assert not any(mixed)


@pytest.mark.parametrize("seed", range(30))
def test_under_a_steady_load_nothing_moves_back(seed: int) -> None:
    """Whatever the load and the split it begins with, with figures that vary by a tenth from look to look."""
    dice = Random(seed)
    nodes = dice.randrange(2, 17)
    first = dice.randrange(1, nodes)
    truth = Situation(
        split=Split(first, nodes - first),
        prompts=dice.uniform(0.1, 0.9) * nodes / 2,
        prompt_s=dice.choice([0.02, 0.2, 2.0]),
        variation=dice.uniform(0.0, 5.0),
        ttft_s=dice.choice([None, 0.5, 5.0]),
        rows=dice.uniform(0.1, 0.9) * 50 * nodes / 2,
        rows_each=50.0,
        drain_s=5.0,
    )
    planner, split, moves = Planner(CONFIG), truth.split, []
    for i in range(400):
        noisy = replace(
            truth,
            split=split,
            prompts=truth.prompts * dice.uniform(0.95, 1.05),
            rows=truth.rows * dice.uniform(0.95, 1.05),
        )
        if move := planner.look(5.0 * i, noisy):
            moves.append((i, move))
            split = after(split, move)
    assert len(moves) < nodes
    assert not any(Move(move.new, move.old) in [m for _, m in moves] for _, move in moves), moves
    assert pressure(truth, split) <= pressure(truth, truth.split)


def prompts_only(bench: Bench, seconds: float) -> None:
    """Six long prompts a second for two prefill nodes that can do five; answers of one token."""
    for _ in range(int(6 * seconds)):
        name = f"{bench.now:.3f}"
        bench.arrive(name, prompt=400, max_tokens=1)
        bench.run_until(bench.now + 1 / 6)
        for dispatch in bench.dispatches(name):
            bench.tokens(name, dispatch.prefill_node, 0, 1)
            bench.finished(name, dispatch.prefill_node, 1)
        for seq, name in enumerate(("p0", "p1", "d0", "d1", "d2")):
            known = bench.machine._state.registry.get(name)
            assert known is not None
            wanted = known.wanted_role or known.load.role
            bench.report(name, load(wanted, 100 + known.load.seq + seq))


def test_the_machine_moves_the_emptiest_node_and_takes_no_decode_to_it_from_then_on() -> None:
    bench = Bench(RouterConfig(planner=PlannerConfig(every_s=1.0, patience=2, tau_s=5.0)))
    for name, role in (
        ("p0", Role.PREFILL),
        ("p1", Role.PREFILL),
        ("d0", Role.DECODE),
        ("d1", Role.DECODE),
        ("d2", Role.DECODE),
    ):
        bench.join(node(name, role))
        slow = tuple((tokens, 0, 0.001 * tokens) for tokens in (100, 200, 400, 800) * 8)
        bench.report(name, load(role, 2, prefill_samples=slow))
    bench.arrive("stays", max_tokens=50)
    [stays] = bench.dispatches("stays")
    bench.tokens("stays", stays.prefill_node, 0, 1)
    bench.step(HandedOff("stays", 0, stays.prefill_node, 0.1, 0.1, 1))
    prompts_only(bench, 20.0)
    changed = of(SetRole, bench.all)
    assert changed
    assert all(effect.role is not Role.DECODE and effect.node_id != stays.decode_node for effect in changed)
    plans = [record.data for record in of(Record, bench.all) if record.kind == "plan"]
    assert [plan["node"] for plan in plans] == [effect.node_id for effect in changed]
    bench.tokens("stays", stays.decode_node, 1, *range(2, 51))
    bench.finished("stays", stays.decode_node, 50)
    assert bench.text("stays") == [1, *range(2, 51)]


def test_without_a_planner_roles_stay() -> None:
    bench = Bench()
    bench.one_of_each()
    assert ("plan", "") not in bench.machine._state.timers
