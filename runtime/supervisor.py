"""Keeps a deployment's child processes running: starts them, starts again those that die, stops them all."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import structlog

from baton.core.errors import BatonError, Unavailable
from baton.runtime.child import NodeStart, Ready, RouterStart
from baton.runtime.clock import Clock, monotonic_s
from baton.runtime.config import SuperviseConfig
from baton.runtime.process import Child, Program, describe_exit, spawn
from baton.runtime.restarts import RestartPolicy

log = structlog.get_logger(__name__)


@dataclass
class Member:
    """One place in the deployment; `child` changes with each restart."""

    program: Program
    start: NodeStart | RouterStart
    policy: RestartPolicy
    child: Child | None = None
    ready: Ready | None = None
    restarts: int = 0
    watch: asyncio.Task[None] | None = field(default=None, repr=False)


class Supervisor:
    """`start` members, `run` until one is given up, `stop` in every case."""

    def __init__(self, config: SuperviseConfig, clock: Clock = monotonic_s) -> None:
        self._config = config
        self._clock = clock
        self._given_up: asyncio.Future[None] | None = None
        self._stopping = False
        self.members: list[Member] = []

    async def start(self, program: Program, start: NodeStart | RouterStart) -> Member:
        """Start a child and wait until it is ready; BatonError says why it is not."""
        member = Member(program, start, RestartPolicy(self._config))
        self.members.append(member)
        await self._launch(member)
        member.watch = asyncio.create_task(self._watch(member), name=f"watch-{start.name}")
        return member

    async def run(self) -> None:
        """Until a member cannot be kept running: Unavailable says which and why."""
        await self._failure()

    async def stop(self) -> None:
        """End all children; nothing is left afterwards. Idempotent.

        Routers first: on SIGTERM each finishes what it has, for which the nodes must still work.
        """
        self._stopping = True
        watches = [member.watch for member in self.members if member.watch is not None]
        for watch in watches:
            watch.cancel()
        await asyncio.gather(*watches, return_exceptions=True)
        for kind in (RouterStart, NodeStart):
            group = [m.child for m in self.members if m.child is not None and isinstance(m.start, kind)]
            await asyncio.gather(*(child.stop(self._config.stop_grace_s) for child in group))

    def kill(self) -> None:
        """Ask for nothing: end all children at once (second Ctrl-C)."""
        for member in self.members:
            if member.child is not None and member.child.exit_code is None:
                member.child.kill()

    def _failure(self) -> asyncio.Future[None]:
        if self._given_up is None:
            self._given_up = asyncio.get_running_loop().create_future()
        return self._given_up

    async def _launch(self, member: Member) -> None:
        member.child = await spawn(member.program, member.start)
        member.ready = await member.child.ready(self._config.start_timeout_s)
        if isinstance(member.start, RouterStart):
            member.start = _pinned(member.start, member.ready)
        log.debug("ready", child=member.start.name, pid=member.child.pid, address=member.ready.address)

    async def _watch(self, member: Member) -> None:
        """Restart one member for as long as its policy allows."""
        assert member.child is not None
        code = await member.child.wait()
        while True:
            why = describe_exit(code)
            wait_s = member.policy.died(self._clock())
            if wait_s is None:
                log.error("a process died", child=member.start.name, why=why, restart=False)
                return self._give_up(f"{member.start.name} died ({why})")
            log.error("a process died", child=member.start.name, why=why, restart_in_s=wait_s)
            await asyncio.sleep(wait_s)
            member.restarts += 1
            try:
                await self._launch(member)
            except (BatonError, OSError) as error:  # the latter: no memory or descriptors for it just now
                log.error("a process could not be started again", child=member.start.name, error=str(error))
            code = await member.child.wait()

    def _give_up(self, why: str) -> None:
        failure = self._failure()
        if not failure.done():
            failure.set_exception(Unavailable(why))


def _pinned(start: RouterStart, ready: Ready) -> RouterStart:
    """A router that comes back must be found where it was: by clients, and by nodes that announce to it."""

    def port(address: str, default: int) -> int:
        return int(address.rpartition(":")[2]) if address else default

    return start.model_copy(
        update={
            "port": port(ready.address, start.port),
            "http_port": port(ready.http, start.http_port),
            "registry_port": port(ready.registry, start.registry_port),
            "metrics_port": port(ready.metrics, start.metrics_port),
        }
    )
