"""What the router logs and counts of its decisions."""

from __future__ import annotations

import structlog
from prometheus_client import generate_latest

from baton.core.load import Role
from baton.router.driver import Driver
from baton.router.events import Cancelled, OperatorRole, Record
from baton.router.machine import RouterMachine
from baton.router.machine_config import RouterConfig
from baton.router.observe import Observer
from baton.router.planner import PlannerConfig
from baton.runtime.metrics import RouterMetrics

from .machine_kit import Bench, load, node, of


def told(records: list[Record]) -> tuple[list[dict[str, object]], str]:
    """Lines of the log from level info on, and the metrics."""
    metrics = RouterMetrics("m")
    driver = Driver(RouterMachine(RouterConfig()))
    Observer(metrics, driver)
    with structlog.testing.capture_logs() as lines:
        for record in records:
            driver.on_record(record)
    kept = [dict(line) for line in lines if line["log_level"] != "debug"]
    return kept, generate_latest(metrics.registry).decode()


def test_an_operators_change_of_role_is_logged_and_counted() -> None:
    bench = Bench()
    bench.join(node("a", Role.BOTH), node("b", Role.BOTH))
    (line,), metrics = told(of(Record, bench.step(OperatorRole("b", Role.DECODE))))
    assert (line["event"], line["log_level"]) == ("role change", "info")
    assert (line["node"], line["old"], line["role"]) == ("b", "both", "decode")
    assert "operator" in str(line["why"])
    assert 'baton_role_changes_total{model_name="m",new="decode",old="both"} 1.0' in metrics


def test_a_role_that_it_has_is_no_change() -> None:
    bench = Bench()
    bench.join(node("a", Role.BOTH))
    _, metrics = told(of(Record, bench.step(OperatorRole("a", Role.BOTH))))
    assert "baton_role_changes_total{" not in metrics


def test_the_planners_change_of_role_says_why() -> None:
    """One node of four computes prompts, and gets half as many again as it can do."""
    bench = Bench(RouterConfig(planner=PlannerConfig(every_s=1.0, patience=2, tau_s=5.0)))
    bench.join(node("p", Role.PREFILL), *(node(f"d{i}", Role.DECODE) for i in range(3)))
    slow = tuple((tokens, 0, 0.01 * tokens) for tokens in (100, 200, 400, 800) * 8)
    bench.report("p", load(Role.PREFILL, 2, prefill_samples=slow))
    for i in range(20):
        bench.now += 0.25
        bench.arrive(f"r{i}", prompt=36)
        bench.step(Cancelled(f"r{i}"))
        bench.report("p", load(Role.PREFILL, 3 + i))
        for name in ("d0", "d1", "d2"):
            bench.report(name, load(Role.DECODE, 3 + i))
        bench.run_until(bench.now)
    lines, metrics = told([record for record in of(Record, bench.all) if record.kind in ("plan", "node")])
    changes = [line for line in lines if line["event"] == "role change"]
    assert changes
    assert "pressure" in str(changes[0]["why"])
    assert "baton_role_changes_total{" in metrics
