"""What a router's scheduling machine is told of the configuration."""

from __future__ import annotations

from pathlib import Path

import pytest

from baton.cli.router import machine_config
from baton.router.planner import PlannerConfig
from baton.runtime.config import ConfigError, load_config

FILE = """
router:
  order: fcfs
  queue_limit: 7
  max_node_wait_s: 0.5
  slo: {ttft_s: 2.0, tpot_s: 0.1}
  admission: {policy: reject, least_chance: 0.6}
  planner: {enabled: true, every_s: 2.0, patience: 4, pause_s: 10.0, horizon_s: 60.0}
"""


def test_targets_order_admission_and_planner_reach_the_machine(tmp_path: Path) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_text(FILE)
    router = load_config(path).router
    machine = machine_config(router, 0)
    assert (machine.ttft_s, machine.tpot_s, machine.order) == (2.0, 0.1, "fcfs")
    assert (machine.max_queued, machine.max_node_wait_s) == (7, 0.5)
    assert (machine.admission, machine.least_chance) == ("reject", 0.6)
    assert machine.planner == PlannerConfig(every_s=2.0, patience=4, pause_s=10.0, horizon_s=60.0)
    assert machine_config(router, 1).planner is None, "two planners would work against each other"


def test_by_default_there_are_no_targets_and_roles_stay() -> None:
    machine = machine_config(load_config().router, 0)
    assert (machine.ttft_s, machine.tpot_s, machine.planner) == (None, None, None)
    assert (machine.order, machine.admission) == ("slack", "defer")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("router.slo.ttft_s", "0"),
        ("router.slo.tpot_s", "-1"),
        ("router.order", "lifo"),
        ("router.max_node_wait_s", "-1"),
        ("router.admission.policy", "sometimes"),
        ("router.admission.least_chance", "1.5"),
        ("router.planner.patience", "0"),
    ],
)
def test_nonsense_is_refused_by_name(key: str, value: str) -> None:
    with pytest.raises(ConfigError, match=key):
        load_config(flags={key: value})
