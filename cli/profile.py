"""`baton profile`: measure a running deployment's nodes, for the simulator."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
import uvloop
from rich.progress import Progress

from baton.cli.deployments import find_endpoint
from baton.cli.routers import Routers, all_routers, merged
from baton.cli.terminal import answers, notes
from baton.core.errors import FailedPrecondition
from baton.proto.v1 import admin_pb2 as pb
from baton.runtime import codec

if TYPE_CHECKING:
    from baton.bench.profile.beside import Gate, Nodes

ADMIN_TIMEOUT_S = 5.0
SHOWN = ("prefill", "decode", "context_s", "nic_bytes_s", "write_s", "noise", "client_s", "beside")
LIMITS = ("max_batch_tokens", "chunk_tokens", "max_running", "max_waiting")

Endpoint = Annotated[str | None, typer.Option(metavar="HOST:PORT", help="The router; BATON_ENDPOINT.")]
Out = Annotated[Path, typer.Option("--out", "-o", help="The file to write.")]
Rounds = Annotated[int, typer.Option(min=1, help="How often everything is measured.")]
Name = Annotated[str, typer.Option(help="Of the profile; default: the model's name and its weights' format.")]


def profile(
    endpoint: Endpoint = None, out: Out = Path("profile.yaml"), rounds: Rounds = 3, name: Name = ""
) -> None:
    """Measure prefill by length, decode by batch and context, transfers; write them as a profile.

    The deployment should be idle. Of nodes that share this host it is also measured how they hold each other
    up; those that are not needed drain meanwhile. The file is for `baton simulate`, `baton plan` and
    `baton bench --twin`.
    """
    from baton.bench.profile.write import entry, write
    from baton.kv_transfer.select import host_id

    address = find_endpoint(endpoint)
    with all_routers(address) as routers:
        routers.must_be_all()
        stub = next(iter(routers.stubs.values()))
        config = json.loads(stub.GetConfig(pb.GetConfigRequest(), timeout=ADMIN_TIMEOUT_S).json or "{}")
        states = [state for state in merged(routers.states).nodes if state.state == "up"]
        if not states:
            raise FailedPrecondition(f"{address} has no node")
        node, engine = states[0].registration, config.get("engine", {})
        if missing := [key for key in LIMITS if key not in engine]:
            raise FailedPrecondition(f"{address} does not tell its settings: engine.{missing[0]} is missing")
        limits = {key: int(engine[key]) for key in LIMITS}
        nodes = neighbours(states, host_id())
        with gated(routers, [state.registration.node_id for state in states]) as gate:
            samples = uvloop.run(_measured(address, node, limits, rounds, nodes, gate))
    found = re.sub(r"[^\w.-]+", "-", name or f"{node.model.name}-{node.model.fingerprint.quantization}")
    content = entry(samples, _facts(node, limits, engine, 0 if nodes is None else len(states)))
    write(out, found, content)
    answers.print(f"{found}: {out}")
    for key in SHOWN:
        if key in content:
            answers.print(f"  {key}: {content[key]}")


def neighbours(states: Sequence[Any], host: str) -> Nodes | None:
    """The nodes of this host, by use; None: no two are here, or none for prompts or none for decode."""
    from baton.bench.profile.beside import Nodes

    here = [state for state in states if state.registration.host_id == host]
    roles = {state.registration.node_id: codec.role_from_proto(state.load.role) for state in here}
    prefill = tuple(name for name, role in roles.items() if role.prefills)
    decode = tuple(name for name, role in roles.items() if role.decodes)
    decode = tuple(name for name in decode if name not in prefill[:1]) or decode
    return Nodes(prefill, decode) if prefill and decode and len(here) > 1 else None


@contextmanager
def gated(routers: Routers, names: Sequence[str]) -> Iterator[Gate]:
    """A gate over these nodes, all of which take requests again in the end."""
    drained: set[str] = set()

    def gate(open_to: Sequence[str]) -> None:
        for name in names:
            if (name not in open_to) != (name in drained):
                request = pb.DrainNodeRequest(node_id=name, draining=name not in open_to)
                for stub in routers.stubs.values():
                    stub.DrainNode(request, timeout=ADMIN_TIMEOUT_S)
                drained.symmetric_difference_update({name})

    try:
        yield gate
    finally:
        gate(names)


async def _measured(
    address: str, node: Any, limits: dict[str, int], rounds: int, nodes: Nodes | None, gate: Gate
) -> Any:
    from baton.bench.profile.ask import Shape
    from baton.bench.profile.measure import Profiler
    from baton.runtime.client.aio import AsyncClient

    shape = Shape(
        node.model.vocab_size, node.model.max_model_len, limits["chunk_tokens"], limits["max_running"] // 2
    )
    with Progress(console=notes, transient=True, disable=not notes.is_terminal) as progress:
        task = progress.add_task("", total=1.0)
        async with AsyncClient(address) as client:
            profiler = Profiler(
                client, shape, lambda what, share: progress.update(task, description=what, completed=share)
            )
            return await profiler.measure(rounds, nodes, gate)


def _facts(node: Any, limits: dict[str, int], engine: dict[str, Any], sharing: int) -> Any:
    """sharing: so many nodes share this host; 0: that is not known."""
    from baton.bench.load.measure import machine
    from baton.bench.profile.write import NodeFacts

    model, layout = node.model, node.layout
    cores = len(os.sched_getaffinity(0))
    threads = engine["threads"] or max(1, cores // max(1, sharing))
    kind = f"{model.fingerprint.quantization}, {model.fingerprint.dtype}, {threads} threads per node"
    return NodeFacts(
        f"{model.name}, {kind}",
        node.kv_bytes_per_token,
        layout.num_blocks,
        {"block_size": layout.block_size, "max_model_len": model.max_model_len, **limits},
        f"baton profile on {machine()['processor']}, {machine()['cores']} cores",
        cores if sharing else 0,
        threads,
    )
