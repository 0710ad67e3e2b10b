"""What the driver itself promises to whoever submits."""

from __future__ import annotations

from typing import Any

from baton.core.errors import Unavailable
from baton.core.request import Request, SamplingParams
from baton.router.driver import Driver
from baton.router.machine import RouterMachine
from baton.router.machine_config import RouterConfig


class Outlet:
    def __init__(self) -> None:
        self.told: list[str] = []

    def deliver(self, effect: Any) -> None:
        self.told.append("deliver")

    def complete(self, effect: Any) -> None:
        self.told.append("complete")

    def reject(self, effect: Any) -> None:
        self.told.append("reject")


async def test_an_abandoned_request_ends_once() -> None:
    """Regression: the cancellation that followed told the client's stream a second end."""
    machine = RouterMachine(RouterConfig())
    driver = Driver(machine)
    outlets = [Outlet(), Outlet()]
    for index, outlet in enumerate(outlets):
        driver.submit(Request(f"r{index}", (1, 2, 3), SamplingParams(), max_tokens=4), None, outlet)
    assert machine.queued == 2
    driver.abandon_all(Unavailable("the router stops"))
    assert [outlet.told for outlet in outlets] == [["reject"], ["reject"]]
    assert machine.queued == driver.open_requests == 0
    assert driver.idle.is_set()
    driver.close()
