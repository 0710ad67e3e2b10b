"""Probes over real HTTP."""

from __future__ import annotations

import asyncio
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest

from baton.core.errors import FailedPrecondition
from baton.runtime.health import Health, HealthServer
from baton.runtime.metrics import NodeMetrics


def get(address: str, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://{address}{path}", timeout=30) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


@pytest.fixture
def served() -> Iterator[tuple[Health, str]]:
    health = Health(stall_s=0.5)
    server = HealthServer(health, NodeMetrics("m").registry, "127.0.0.1")
    yield health, server.address
    server.close()


def test_live_and_ready_are_two_things(served: tuple[Health, str]) -> None:
    health, address = served
    assert get(address, "/health/live") == (200, "ok\n")
    assert get(address, "/health/ready") == (503, "starting\n")
    health.set_ready()
    assert get(address, "/health/ready") == (200, "ok\n")
    health.set_not_ready("draining")
    assert get(address, "/health/ready") == (503, "draining\n")
    assert get(address, "/health/live")[0] == 200


def test_a_failed_check_is_told(served: tuple[Health, str]) -> None:
    health, address = served
    health.set_ready()
    health.add_check(lambda: "the engine is gone")
    assert get(address, "/health/live") == (503, "the engine is gone\n")
    assert get(address, "/health/ready") == (503, "the engine is gone\n")


async def test_a_loop_that_hangs_is_not_alive(served: tuple[Health, str]) -> None:
    health, address = served
    health.watch_loop()
    await _alive(address)
    time.sleep(0.6)  # noqa: ASYNC251 - hanging the loop is the point
    assert get(address, "/health/live")[0] == 503
    await _alive(address)
    await health.stop()


async def _alive(address: str) -> None:
    """Sooner or later: a busy machine may hold up the loop as well."""
    for _ in range(100):
        if (await asyncio.to_thread(get, address, "/health/live"))[0] == 200:
            return
        await asyncio.sleep(0.02)
    pytest.fail("never alive")


def test_metrics_are_served_and_other_paths_are_not(served: tuple[Health, str]) -> None:
    _, address = served
    status, text = get(address, "/metrics")
    assert status == 200
    assert "vllm:kv_cache_usage_perc" in text
    assert get(address, "/")[0] == 404


def test_a_taken_port_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(FailedPrecondition, match=f"127.0.0.1:{port}") as caught:
            HealthServer(Health(), NodeMetrics("m").registry, "127.0.0.1", port)
    assert caught.value.field == "metrics_port"
