"""`baton serve`: keep a deployment up until told to stop."""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import Any

from baton.cli.deployments import announced
from baton.cli.running import Stopped, launched
from baton.cli.terminal import answers
from baton.runtime.config import ClusterConfig
from baton.runtime.launcher import Launcher
from baton.runtime.logs import configure_logs
from baton.runtime.supervisor import Member


def serve(config: ClusterConfig, *, as_json: bool) -> None:
    """Return after SIGINT or SIGTERM; Unavailable when a process cannot be kept running."""
    configure_logs(config.logging, "launcher")
    with contextlib.suppress(Stopped):
        asyncio.run(_serve(config, as_json))


async def _serve(config: ClusterConfig, as_json: bool) -> None:
    async with launched(config) as launcher:
        found = announced(launcher.endpoint, config.name) if launcher.endpoint else contextlib.nullcontext()
        with found:
            if as_json:
                print(json.dumps(summary(config, launcher)), flush=True)
            else:
                answers.print(in_words(config, launcher))
            await launcher.run()


def summary(config: ClusterConfig, launcher: Launcher) -> dict[str, Any]:
    """What was started, for programs."""

    def process(member: Member) -> dict[str, Any]:
        assert member.child is not None
        assert member.ready is not None
        return {"name": member.start.name, "pid": member.child.pid} | member.ready.model_dump(
            exclude={"ready"}
        )

    return {
        "endpoint": launcher.endpoint,
        "model": config.name,
        "processes": [process(member) for member in launcher.supervisor.members],
    }


def in_words(config: ClusterConfig, launcher: Launcher) -> str:
    """What was started, for people."""
    shape = ", ".join(
        f"{nodes.size} {name}"
        for name, nodes in (("prefill", config.prefill), ("decode", config.decode), ("both", config.both))
        if nodes.size
    )
    where = f" at {launcher.endpoint}" if launcher.endpoint else f" to {', '.join(config.registries)}"
    return f"[bold green]ready[/]: {config.name}{where} ({shape or 'no nodes here'}); Ctrl-C stops it"
