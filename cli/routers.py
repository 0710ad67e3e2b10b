"""All router processes behind one address.

Routers that share a client port share nothing else, and the kernel picks one for each connection. So whoever
wants all of them connects until all have answered.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from baton.core.errors import Unavailable
from baton.proto.v1 import admin_pb2 as pb

if TYPE_CHECKING:
    from baton.proto.v1.admin_pb2_grpc import AdminStub

TIMEOUT_S = 10.0
FIND_S = 5.0


@dataclass
class Routers:
    """What was found, by router id: each one's service, and its view when it was found. sharing: how many
    there should be."""

    stubs: dict[str, AdminStub] = field(default_factory=dict)
    states: dict[str, pb.GetClusterResponse] = field(default_factory=dict)
    sharing: int = 1

    @property
    def missing(self) -> str:
        """What to say of those that did not answer, if any."""
        if len(self.stubs) >= self.sharing:
            return ""
        return f"only {len(self.stubs)} of {self.sharing} routers answered within {FIND_S:g} s"

    def must_be_all(self) -> None:
        if self.missing:
            raise Unavailable(self.missing)


@contextlib.contextmanager
def all_routers(endpoint: str) -> Iterator[Routers]:
    """Connect to every router at the address: its client port, or the registry's of a single one."""
    found = Routers()
    end = time.monotonic() + FIND_S
    with contextlib.ExitStack() as connections:
        while not found.stubs or (found.missing and time.monotonic() < end):
            _find_one(endpoint, found, connections)
        yield found


def _find_one(endpoint: str, found: Routers, connections: contextlib.ExitStack) -> None:
    from baton.cli.calls import connected
    from baton.proto.v1.admin_pb2_grpc import AdminStub

    with contextlib.ExitStack() as attempt:
        stub = AdminStub(attempt.enter_context(connected(endpoint)))
        state = stub.GetCluster(pb.GetClusterRequest(), timeout=TIMEOUT_S)
        if state.router_id not in found.stubs:
            found.stubs[state.router_id], found.states[state.router_id] = stub, state
            found.sharing = max(1, state.sharing)
            connections.push(attempt.pop_all())


def merged(states: dict[str, pb.GetClusterResponse]) -> pb.GetClusterResponse:
    """One view: counts summed, nodes as the router that heard of them last saw them. A node's state is that
    of all routers, or all that there are."""
    whole = pb.GetClusterResponse(
        router_id=", ".join(states),
        queued=sum(state.queued for state in states.values()),
        in_flight=sum(state.in_flight for state in states.values()),
        sharing=max((state.sharing for state in states.values()), default=1),
    )
    by_node: dict[str, list[pb.NodeState]] = {}
    for state in states.values():
        for node in state.nodes:
            by_node.setdefault(node.registration.node_id, []).append(node)
    for nodes in by_node.values():
        last = min(nodes, key=lambda node: node.report_age_s)
        node = whole.nodes.add()
        node.CopyFrom(last)
        node.state = "/".join(dict.fromkeys(each.state for each in nodes))
        node.in_flight = sum(each.in_flight for each in nodes)
    return whole
