"""`baton demo`: a router, a prefill node and a decode node on this machine answer one question."""

from __future__ import annotations

import asyncio
import contextlib
import time

from rich.rule import Rule

from baton.cli.calls import connected
from baton.cli.generate import Answer, Options, show_all, stream
from baton.cli.running import Stopped, launched
from baton.cli.terminal import answers
from baton.cli.waterfall import waterfall
from baton.core.errors import InternalError
from baton.proto.v1.inference_pb2_grpc import InferenceStub
from baton.runtime.config import ClusterConfig
from baton.runtime.launcher import Launcher
from baton.runtime.logs import configure_logs

PROMPT = "What is the difference between a cache and a database? Answer in three short sentences."


def demo(config: ClusterConfig, prompt: str, max_tokens: int) -> None:
    """Start the deployment, ask, show the answer and where its time went, stop everything."""
    configure_logs(config.logging, "launcher")
    with contextlib.suppress(Stopped):
        asyncio.run(_demo(config, prompt, max_tokens))
        return
    raise KeyboardInterrupt


async def _demo(config: ClusterConfig, prompt: str, max_tokens: int) -> None:
    begun = time.monotonic()
    async with launched(config) as launcher:
        started_s = time.monotonic() - begun
        answers.print(f"[dim]{_processes(launcher)}: ready after {started_s:.1f} s[/]\n")
        answers.print(prompt, style="bold", markup=False, end="\n\n")
        answer = await asyncio.to_thread(_ask, launcher.endpoint, prompt, max_tokens)
        answers.print(Rule("where the time went", align="left"))
        answers.print(waterfall(answer.timings, answer.usage))
    if not answer.token_ids:
        raise InternalError("the answer was empty")


def _ask(endpoint: str, prompt: str, max_tokens: int) -> Answer:
    options = Options(max_tokens=max_tokens, temperature=0.0)
    request = options.request([{"role": "user", "content": prompt}])
    answer = Answer()
    with connected(endpoint) as channel:
        show_all(stream(InferenceStub(channel), request, answer, timeout_s=300), answer)
    return answer


def _processes(launcher: Launcher) -> str:
    return ", ".join(
        f"{member.start.name} (pid {member.child.pid})"
        for member in launcher.supervisor.members
        if member.child is not None
    )
