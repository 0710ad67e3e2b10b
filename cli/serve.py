"""`baton serve`: keep a deployment up until told to stop."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from typing import Any

from baton.cli.deployments import announced
from baton.cli.running import Stopped, launched
from baton.cli.terminal import answers, notes
from baton.runtime.config import ClusterConfig
from baton.runtime.launcher import Launcher
from baton.runtime.logs import configure_logs
from baton.runtime.supervisor import Member


def quiet_on_a_terminal(config: ClusterConfig) -> ClusterConfig:
    """A person at a terminal gets warnings and errors only, unless a level was asked for somewhere."""
    if "level" in config.logging.model_fields_set or not sys.stderr.isatty():
        return config
    return config.model_copy(update={"logging": config.logging.model_copy(update={"level": "warning"})})


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
            if missing := missing_role(config):
                notes.print(f"[yellow]warning[/]: nothing can be served until a {missing} node joins")
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
        "http": http_url(launcher),
        "model": config.name,
        "processes": [process(member) for member in launcher.supervisor.members],
    }


def missing_role(config: ClusterConfig) -> str:
    """The phase that no node started here serves, where a router here would need one; "" if none."""
    if config.router.processes == 0 or config.both.size:
        return ""
    absent = [n for n, nodes in (("prefill", config.prefill), ("decode", config.decode)) if not nodes.size]
    return " and a ".join(absent)


def http_url(launcher: Launcher) -> str:
    """What OpenAI's clients want as base URL; "" where there is no HTTP here."""
    return f"http://{launcher.http_endpoint}/v1" if launcher.http_endpoint else ""


def in_words(config: ClusterConfig, launcher: Launcher) -> str:
    """What was started, for people."""
    shape = ", ".join(
        f"{nodes.size} {name}"
        for name, nodes in (("prefill", config.prefill), ("decode", config.decode), ("both", config.both))
        if nodes.size
    )
    places = [place for place in (launcher.endpoint, http_url(launcher)) if place]
    where = f" at {' and '.join(places)}" if places else f" to {', '.join(config.registries)}"
    return f"[bold green]ready[/]: {config.name}{where} ({shape or 'no nodes here'}); Ctrl-C stops it"
