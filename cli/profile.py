"""`baton profile`: measure a running deployment's nodes, for the simulator."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Annotated, Any

import typer
import uvloop
from rich.progress import Progress

from baton.cli.calls import connected
from baton.cli.deployments import find_endpoint
from baton.cli.terminal import answers, notes
from baton.core.errors import FailedPrecondition
from baton.proto.v1 import admin_pb2 as pb
from baton.proto.v1.admin_pb2_grpc import AdminStub

ADMIN_TIMEOUT_S = 5.0
LIMITS = ("max_batch_tokens", "chunk_tokens", "max_running", "max_waiting")

Endpoint = Annotated[str | None, typer.Option(metavar="HOST:PORT", help="The router; BATON_ENDPOINT.")]
Out = Annotated[Path, typer.Option("--out", "-o", help="The file to write.")]
Rounds = Annotated[int, typer.Option(min=1, help="How often everything is measured.")]
Name = Annotated[str, typer.Option(help="Of the profile; default: the model's name and its weights' format.")]


def profile(
    endpoint: Endpoint = None, out: Out = Path("profile.yaml"), rounds: Rounds = 3, name: Name = ""
) -> None:
    """Measure prefill by length, decode by batch and context, transfers; write them as a profile.

    The deployment should be idle. The file is for `baton simulate`, `baton plan` and `baton bench --twin`.
    """
    from baton.bench.profile.write import entry, write

    address = find_endpoint(endpoint)
    with connected(address) as channel:
        stub = AdminStub(channel)
        cluster = stub.GetCluster(pb.GetClusterRequest(), timeout=ADMIN_TIMEOUT_S)
        config = json.loads(stub.GetConfig(pb.GetConfigRequest(), timeout=ADMIN_TIMEOUT_S).json or "{}")
    if not cluster.nodes:
        raise FailedPrecondition(f"{address} has no node")
    node, engine = cluster.nodes[0].registration, config.get("engine", {})
    if missing := [key for key in LIMITS if key not in engine]:
        raise FailedPrecondition(f"{address} does not tell its settings: engine.{missing[0]} is missing")
    limits = {key: int(engine[key]) for key in LIMITS}
    samples = uvloop.run(_measured(address, node, limits, rounds))
    found = re.sub(r"[^\w.-]+", "-", name or f"{node.model.name}-{node.model.fingerprint.quantization}")
    content = entry(samples, _facts(node, limits, engine))
    write(out, found, content)
    answers.print(f"{found}: {out}")
    for key in ("prefill", "decode", "context_s", "nic_bytes_s", "write_s", "noise", "client_s"):
        answers.print(f"  {key}: {content[key]}")


async def _measured(address: str, node: Any, limits: dict[str, int], rounds: int) -> Any:
    from baton.bench.profile.measure import Profiler, Shape
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
            return await profiler.measure(rounds)


def _facts(node: Any, limits: dict[str, int], engine: dict[str, Any]) -> Any:
    from baton.bench.load.measure import machine
    from baton.bench.profile.write import NodeFacts

    model, layout = node.model, node.layout
    kind = (
        f"{model.fingerprint.quantization}, {model.fingerprint.dtype}, {engine['threads']} threads per node"
    )
    return NodeFacts(
        f"{model.name}, {kind}",
        node.kv_bytes_per_token,
        layout.num_blocks,
        {"block_size": layout.block_size, "max_model_len": model.max_model_len, **limits},
        f"baton profile on {machine()['processor']}, {machine()['cores']} cores",
    )
