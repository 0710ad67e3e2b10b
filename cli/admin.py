"""`baton admin`: look at a running deployment and steer its nodes."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer
from google.protobuf.json_format import MessageToDict
from rich.table import Table

from baton.cli.deployments import find_endpoint
from baton.cli.terminal import answers
from baton.core.errors import InvalidArgument
from baton.proto.v1 import admin_pb2 as pb
from baton.proto.v1.common_pb2 import Role

if TYPE_CHECKING:
    from baton.proto.v1.admin_pb2_grpc import AdminStub

app = typer.Typer(no_args_is_help=True, help="Look at a running deployment and steer its nodes.")

Endpoint = Annotated[str | None, typer.Option(metavar="HOST:PORT", help="The router; BATON_ENDPOINT.")]
NodeId = Annotated[str, typer.Argument(help="As listed by `baton admin cluster`.")]
TIMEOUT_S = 10.0


@contextlib.contextmanager
def admin(endpoint: str | None) -> Iterator[AdminStub]:
    """The router's Admin service."""
    from baton.cli.calls import connected
    from baton.proto.v1.admin_pb2_grpc import AdminStub

    with connected(find_endpoint(endpoint)) as channel:
        yield AdminStub(channel)


@app.command()
def cluster(
    endpoint: Endpoint = None,
    as_json: Annotated[bool, typer.Option("--json", help="Everything, as one JSON object.")] = False,
) -> None:
    """List the nodes with their load."""
    with admin(endpoint) as stub:
        state = stub.GetCluster(pb.GetClusterRequest(), timeout=TIMEOUT_S)
    if as_json:
        print(json.dumps(MessageToDict(state, preserving_proto_field_name=True)))
        return
    table = Table("node", "role", "state", "running", "waiting", "blocks used", "address", box=None)
    for node in state.nodes:
        load = node.load
        role = Role.Name(load.role).removeprefix("ROLE_").lower()
        used = f"{load.blocks_total - load.blocks_free}/{load.blocks_total}"
        who = node.registration
        table.add_row(who.node_id, role, node.state, str(load.running), str(load.waiting), used, who.address)
    answers.print(table)
    answers.print(f"{state.queued} queued, {state.in_flight} in flight at router {state.router_id}")


@app.command()
def drain(
    node_id: NodeId,
    endpoint: Endpoint = None,
    resume: Annotated[bool, typer.Option("--resume", help="Send it requests again.")] = False,
) -> None:
    """Send a node no new requests; those at hand finish."""
    with admin(endpoint) as stub:
        request = pb.DrainNodeRequest(node_id=node_id, draining=not resume)
        stub.DrainNode(request, timeout=TIMEOUT_S)


@app.command("set-role")
def set_role(
    node_id: NodeId,
    role: Annotated[str, typer.Argument(help="prefill, decode or both.")],
    endpoint: Endpoint = None,
) -> None:
    """Change what a node does, while it runs."""
    if role not in ("prefill", "decode", "both"):
        raise InvalidArgument(f"{role!r} is no role: prefill, decode or both")
    with admin(endpoint) as stub:
        request = pb.SetNodeRoleRequest(node_id=node_id, role=Role.Value(f"ROLE_{role.upper()}"))
        stub.SetNodeRole(request, timeout=TIMEOUT_S)


@app.command()
def config(endpoint: Endpoint = None) -> None:
    """Print the configuration in force, as JSON."""
    with admin(endpoint) as stub:
        print(stub.GetConfig(pb.GetConfigRequest(), timeout=TIMEOUT_S).json)
