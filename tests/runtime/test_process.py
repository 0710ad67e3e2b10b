"""Child processes: ready or not, stopped, killed, restarted; gone when their launcher is, however it ends."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from baton.core.errors import DeadlineExceeded, FailedPrecondition, Unavailable
from baton.core.load import Role
from baton.runtime import supervisor as supervisor_module
from baton.runtime.child import NodeStart, Ready, RouterStart
from baton.runtime.config import ClusterConfig, SuperviseConfig
from baton.runtime.process import Child, Program, spawn
from baton.runtime.restarts import RestartPolicy
from baton.runtime.supervisor import Supervisor, _pinned
from tests.patience import Patience

HERE = Path(__file__).parent


def program(mode: str, *args: str) -> Program:
    return Program((str(HERE / "standin.py"), mode, *args))


def start_message(name: str = "n-0") -> NodeStart:
    return NodeStart(
        role=Role.DECODE, index=0, node_id=name, config=ClusterConfig(), registries=("h:1",), threads=2
    )


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def gone_within(pid: int, seconds: float) -> bool:
    patience = Patience(seconds)
    while alive(pid):
        if not patience.lasts():
            return False
        time.sleep(0.01)
    return True


def open_fds() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.fixture
async def supervisor() -> AsyncIterator[Supervisor]:
    made = Supervisor(SuperviseConfig(backoff_s=0.05, max_restarts=2, stop_grace_s=0.5))
    yield made
    await made.stop()


async def started(mode: str, *args: str) -> Child:
    return await spawn(program(mode, *args), start_message())


async def test_a_child_gets_its_message_and_says_where_it_is() -> None:
    child = await started("serves")
    ready = await child.ready(60)
    assert ready == Ready(address=f"n-0:{child.pid}")
    assert await child.stop(30) == -signal.SIGTERM
    assert not alive(child.pid)


async def test_a_failure_is_told_with_the_setting_to_blame() -> None:
    child = await started("fails")
    with pytest.raises(FailedPrecondition, match=r"^model: no such model") as caught:
        await child.ready(60)
    assert caught.value.field == "model"
    assert child.exit_code is not None


async def test_a_child_that_dies_before_it_is_ready() -> None:
    child = await started("dies-early")
    with pytest.raises(Unavailable, match=r"ended before it was ready \(exit code 7\)"):
        await child.ready(60)


async def test_a_child_that_says_nothing_is_ended() -> None:
    child = await started("silent")
    with pytest.raises(DeadlineExceeded, match=r"within 0\.2 s"):
        await child.ready(0.2)
    assert not alive(child.pid)


async def test_a_child_that_says_rubbish_is_ended() -> None:
    child = await started("rubbish")
    with pytest.raises(Unavailable, match="unreadable"):
        await child.ready(60)
    assert not alive(child.pid)


async def test_who_ignores_sigterm_is_killed_with_all_it_started(tmp_path: Path) -> None:
    child = await started("with-grandchild", str(tmp_path / "pid"))
    await child.ready(60)
    grandchild = int((tmp_path / "pid").read_text())
    assert await child.stop(0.2) == -signal.SIGKILL
    assert gone_within(grandchild, 10)


async def test_no_descriptor_is_left_open() -> None:
    child = await started("serves")
    await child.ready(60)
    await child.stop(30)
    before = open_fds()
    for mode in ("serves", "dies-early"):
        child = await started(mode)
        try:
            await child.ready(60)
        except Unavailable:
            pass
        await child.stop(30)
    assert open_fds() == before


async def test_a_dead_child_is_started_again(supervisor: Supervisor, tmp_path: Path) -> None:
    member = await supervisor.start(program("dies-once", str(tmp_path / "died")), start_message())
    async with asyncio.timeout(60):
        while member.ready != Ready(address="127.0.0.1:2"):  # noqa: ASYNC110 - nothing tells of it
            await asyncio.sleep(0.02)
    assert member.restarts == 1
    assert member.child is not None
    assert alive(member.child.pid)


async def test_a_start_that_the_kernel_refuses_is_tried_again(
    supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: the member's watch died of it, so nobody started the process again or gave it up."""
    member = await supervisor.start(program("serves"), start_message())

    async def refused(*_: object) -> Child:
        monkeypatch.setattr(supervisor_module, "spawn", spawn)
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(supervisor_module, "spawn", refused)
    first = member.child
    assert first is not None
    first.kill()
    async with asyncio.timeout(60):
        while member.child is first:  # noqa: ASYNC110 - nothing tells of it
            await asyncio.sleep(0.02)
    assert member.restarts == 2


async def test_a_child_that_keeps_dying_is_given_up(supervisor: Supervisor) -> None:
    member = await supervisor.start(program("dies-later"), start_message())
    with pytest.raises(Unavailable, match=r"decode-0 died \(exit code 3\)"):
        await asyncio.wait_for(supervisor.run(), 30)
    assert member.restarts == 2


async def test_a_killed_child_stops_the_deployment_where_restart_is_off() -> None:
    supervisor = Supervisor(SuperviseConfig(restart=False))
    kept = await supervisor.start(program("serves"), start_message())
    killed = await supervisor.start(program("serves"), start_message("n-1"))
    assert kept.child is not None
    assert killed.child is not None
    os.kill(killed.child.pid, signal.SIGKILL)
    with pytest.raises(Unavailable, match="SIGKILL"):
        await asyncio.wait_for(supervisor.run(), 30)
    await supervisor.stop()
    assert not alive(kept.child.pid)


def test_children_die_with_a_killed_launcher() -> None:
    launcher = subprocess.Popen(
        [sys.executable, str(HERE / "launcher_standin.py")], stdout=subprocess.PIPE, text=True
    )
    assert launcher.stdout is not None
    pids = [int(line) for line in launcher.stdout]
    launcher.stdout.close()
    assert len(pids) == 2
    assert all(alive(pid) for pid in pids)
    launcher.kill()
    launcher.wait()
    assert all(gone_within(pid, 10) for pid in pids)


def test_backoff_doubles_and_old_deaths_are_forgotten() -> None:
    policy = RestartPolicy(SuperviseConfig(backoff_s=1.0, max_restarts=3, window_s=100.0))
    assert [policy.died(t) for t in (0.0, 1.0, 2.0)] == [1.0, 2.0, 4.0]
    assert policy.died(3.0) is None
    assert policy.died(500.0) == 1.0
    assert RestartPolicy(SuperviseConfig(restart=False)).died(0.0) is None


def test_a_restarted_router_keeps_its_ports() -> None:
    start = RouterStart(index=0, config=ClusterConfig(), port=0)
    pinned = _pinned(start, Ready(address="127.0.0.1:5", registry="[::1]:6", metrics=""))
    assert (pinned.port, pinned.registry_port, pinned.metrics_port) == (5, 6, 0)
