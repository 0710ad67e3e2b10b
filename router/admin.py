"""The Admin service: what operators see and set."""

from __future__ import annotations

from typing import Any

from baton.core.errors import InvalidArgument, NotFound
from baton.core.load import Role
from baton.proto.v1 import admin_pb2 as pb
from baton.proto.v1 import admin_pb2_grpc, registry_pb2
from baton.router.driver import Driver
from baton.router.events import OperatorDrain, OperatorRole
from baton.router.machine import NodeStatus
from baton.router.membership import Membership
from baton.runtime import checks, codec
from baton.runtime.codec_node import load_to_proto, registration_to_proto


class AdminService(admin_pb2_grpc.AdminServicer):
    """config_json: the configuration in force. sharing: router processes on the port that it is served on."""

    def __init__(self, driver: Driver, membership: Membership, config_json: str, *, sharing: int = 1) -> None:
        self._sharing = sharing
        self._driver = driver
        self._membership = membership
        self._config_json = config_json

    async def GetCluster(self, request: pb.GetClusterRequest, context: Any) -> pb.GetClusterResponse:
        machine = self._driver.machine
        return pb.GetClusterResponse(
            router_id=self._membership.router_id,
            nodes=[self._state(status) for status in machine.nodes(self._driver.now())],
            queued=machine.queued,
            in_flight=machine.in_flight,
            sharing=self._sharing,
        )

    async def DrainNode(self, request: pb.DrainNodeRequest, context: Any) -> pb.DrainNodeResponse:
        self._driver.post(OperatorDrain(self._known(request.node_id), request.draining))
        return pb.DrainNodeResponse()

    async def SetNodeRole(self, request: pb.SetNodeRoleRequest, context: Any) -> pb.SetNodeRoleResponse:
        role: Role = codec.role_from_proto(request.role)
        self._driver.post(OperatorRole(self._known(request.node_id), role))
        return pb.SetNodeRoleResponse()

    async def GetConfig(self, request: pb.GetConfigRequest, context: Any) -> pb.GetConfigResponse:
        return pb.GetConfigResponse(json=self._config_json)

    def _known(self, node_id: str) -> str:
        if not node_id:
            raise InvalidArgument("must be given", field="node_id")
        checks.printable("node_id", node_id)
        if node_id not in self._membership.members:
            raise NotFound(f"no node {node_id!r} is a member", field="node_id")
        return node_id

    def _state(self, status: NodeStatus) -> pb.NodeState:
        member = self._membership.members.get(status.info.node_id)
        if member is not None and member.facts.incarnation == status.info.incarnation:
            registration = registration_to_proto(member.facts)
        else:  # lost: the machine remembers it, its registration has gone
            registration = registry_pb2.Registration(
                node_id=status.info.node_id, incarnation=status.info.incarnation, address=status.info.address
            )
        return pb.NodeState(
            registration=registration,
            load=load_to_proto(status.load),
            state=status.state,
            in_flight=status.in_flight,
            cached_blocks=status.cached_blocks,
            incompatible=[
                registry_pb2.Incompatible(node_id=other, items=items) for other, items in status.incompatible
            ],
            report_age_s=max(0.0, status.report_age_s),
        )
