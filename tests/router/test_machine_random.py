"""The machine in a hostile world: hypothesis picks what happens; the world's oracle judges the effects."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from baton.router.events import Complete, Dispatch
from baton.router.machine import RouterMachine
from baton.router.machine_config import RouterConfig

from .world import World


def small_config() -> RouterConfig:
    return RouterConfig(max_queued=6, lease_s=1.0, no_node_wait_s=2.0, max_retries=3, forget_s=5.0)


class HostileWorld(RuleBasedStateMachine):
    @initialize(seed=st.integers(0, 2**32))
    def begin(self, seed: int) -> None:
        self.world = World(RouterMachine(small_config()), Random(seed))
        for _ in range(3):
            self.world.join()

    @rule()
    def node_joins(self) -> None:
        self.world.join()

    @rule()
    def node_is_lost(self) -> None:
        self.world.lose()

    @rule()
    def node_reports(self) -> None:
        self.world.report()

    @rule(count=st.integers(1, 3))
    def requests_arrive(self, count: int) -> None:
        for _ in range(count):
            self.world.arrive()

    @rule()
    def client_gives_up(self) -> None:
        self.world.cancel()

    @rule(count=st.integers(1, 8))
    def nodes_speak(self, count: int) -> None:
        for _ in range(count):
            self.world.progress()

    @rule()
    def something_comes_twice(self) -> None:
        self.world.repeat()

    @rule()
    def node_gives_up(self) -> None:
        self.world.fail()

    @rule()
    def operator_acts(self) -> None:
        self.world.operate()

    @rule()
    def time_passes(self) -> None:
        self.world.pass_time()

    @invariant()
    def wakeups_are_in_the_future(self) -> None:
        if hasattr(self, "world"):
            due = self.world.machine.next_wakeup()
            assert due is None or due >= self.world.now - 1e-9

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.world.settle()


TestHostileWorld = HostileWorld.TestCase
TestHostileWorld.settings = settings(
    max_examples=60, stateful_step_count=60, deadline=None, suppress_health_check=list(HealthCheck)
)


@pytest.mark.parametrize("seed", range(12))
def test_long_random_run_leaves_nothing_behind(seed: int) -> None:
    world = World(RouterMachine(small_config()), Random(seed))
    world.run(1500)
    effects = [effect for step in world.effects_by_step for effect in step]
    assert sum(isinstance(e, Complete) for e in effects) > 20, "the world is too hostile to test anything"
    assert any(isinstance(e, Dispatch) and e.request.output_ids for e in effects), "no retry was seen"
    world.settle()
