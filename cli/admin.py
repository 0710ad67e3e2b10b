"""`baton admin`: look at a running deployment and steer its nodes."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Annotated, Any

import typer
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message
from rich.table import Table

from baton.cli.deployments import find_endpoint
from baton.cli.routers import TIMEOUT_S, all_routers, merged
from baton.cli.terminal import answers, notes
from baton.core.errors import InvalidArgument
from baton.proto.v1 import admin_pb2 as pb
from baton.proto.v1.common_pb2 import Role

app = typer.Typer(no_args_is_help=True, help="Look at a running deployment and steer its nodes.")

Endpoint = Annotated[str | None, typer.Option(metavar="HOST:PORT", help="The router; BATON_ENDPOINT.")]
NodeId = Annotated[str, typer.Argument(help="As listed by `baton admin cluster`.")]


@app.command()
def cluster(
    endpoint: Endpoint = None,
    as_json: Annotated[bool, typer.Option("--json", help="Everything, as one JSON object.")] = False,
) -> None:
    """List the nodes with their load, as all routers see them together."""
    with all_routers(find_endpoint(endpoint)) as routers:
        states, missing = routers.states, routers.missing
    whole = merged(states)
    if missing:
        notes.print(missing)
    if as_json:
        print(json.dumps(_whole(whole, states)))
        return
    table = Table("node", "role", "state", "running", "waiting", "blocks used", "address", box=None)
    for node in sorted(whole.nodes, key=lambda node: node.registration.node_id):
        who = node.registration
        table.add_row(who.node_id, role_of(node), node.state, *figures(node), who.address)
    answers.print(table)
    for router_id, state in states.items():
        answers.print(f"{state.queued} queued, {state.in_flight} in flight at router {router_id}")


def figures(node: pb.NodeState) -> tuple[str, str, str]:
    """Running, waiting, blocks used. Of a lost node nobody knows them any more."""
    load = node.load
    if node.state == "lost":
        return ("-", "-", "-")
    return str(load.running), str(load.waiting), f"{load.blocks_total - load.blocks_free}/{load.blocks_total}"


def _whole(whole: pb.GetClusterResponse, states: dict[str, pb.GetClusterResponse]) -> dict[str, Any]:
    """All routers' view together, and in `routers` what is each one's own."""
    parts = [
        {"router_id": router_id, "queued": state.queued, "in_flight": state.in_flight}
        for router_id, state in states.items()
    ]
    return plain(whole) | {"routers": parts}


def plain(message: Message) -> dict[str, Any]:
    """What is set of a message, by field name. Unlike protobuf's JSON, which writes 64-bit integers as
    strings for the sake of languages without them, all numbers are numbers."""
    text = MessageToDict(message, preserving_proto_field_name=True)
    return {field.name: _value(field, value, text[field.name]) for field, value in message.ListFields()}


def _value(field: FieldDescriptor, value: Any, text: Any) -> Any:
    if field.type == FieldDescriptor.TYPE_MESSAGE:
        return [plain(each) for each in value] if isinstance(text, list) else plain(value)
    if field.cpp_type in (FieldDescriptor.CPPTYPE_INT64, FieldDescriptor.CPPTYPE_UINT64):
        return [int(each) for each in text] if isinstance(text, list) else int(text)
    return text


@app.command()
def drain(
    node_id: NodeId,
    endpoint: Endpoint = None,
    resume: Annotated[bool, typer.Option("--resume", help="Send it requests again.")] = False,
) -> None:
    """Send a node no new requests, from any router; those at hand finish."""
    request = pb.DrainNodeRequest(node_id=node_id, draining=not resume)
    with all_routers(find_endpoint(endpoint)) as routers:
        nodes = merged(routers.states).nodes
        for stub in routers.stubs.values():
            stub.DrainNode(request, timeout=TIMEOUT_S)
        routers.must_be_all()
    if resume:
        answers.print(f"{node_id} gets requests again")
    else:
        answers.print(f"{node_id} gets no new requests; those at hand finish")
        warn_of(last_of(nodes, node_id, frozenset()))


@app.command("set-role")
def set_role(
    node_id: NodeId,
    role: Annotated[str, typer.Argument(help="prefill, decode or both.")],
    endpoint: Endpoint = None,
) -> None:
    """Change what a node does, while it runs."""
    if role not in ("prefill", "decode", "both"):
        raise InvalidArgument(f"{role!r} is no role: prefill, decode or both")
    request = pb.SetNodeRoleRequest(node_id=node_id, role=Role.Value(f"ROLE_{role.upper()}"))
    with all_routers(find_endpoint(endpoint)) as routers:
        nodes = merged(routers.states).nodes
        for stub in routers.stubs.values():
            stub.SetNodeRole(request, timeout=TIMEOUT_S)
        routers.must_be_all()
    before = [role_of(node) for node in nodes if node.registration.node_id == node_id]
    answers.print(f"{node_id}: {before[0] if before else '?'} becomes {role}")
    warn_of(last_of(nodes, node_id, phases(role)))


def role_of(node: pb.NodeState) -> str:
    return Role.Name(node.load.role).removeprefix("ROLE_").lower()


def phases(role: str) -> frozenset[str]:
    """What a node of this role serves."""
    return frozenset({"prefill", "decode"} if role == "both" else {role})


def last_of(nodes: Iterable[pb.NodeState], node_id: str, kept: frozenset[str]) -> list[str]:
    """Phases that only this node serves, and that it will not serve any more. kept: those that it will."""
    mine: set[str] = set()
    others: set[str] = set()
    for node in nodes:
        if node.state == "up":
            (mine if node.registration.node_id == node_id else others).update(phases(role_of(node)))
    return sorted(mine - kept - others)


def warn_of(lost: list[str]) -> None:
    for phase in lost:
        notes.print(f"[yellow]warning[/]: it was the last {phase} node: nothing can be served without one")


@app.command()
def config(endpoint: Endpoint = None) -> None:
    """Print the configuration in force, as JSON."""
    from baton.cli.calls import connected
    from baton.proto.v1.admin_pb2_grpc import AdminStub

    with connected(find_endpoint(endpoint)) as channel:
        answer = AdminStub(channel).GetConfig(pb.GetConfigRequest(), timeout=TIMEOUT_S)
    print(json.dumps(json.loads(answer.json), indent=2))
