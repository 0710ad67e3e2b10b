"""The Node service: what every node offers to routers, whatever its role."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable

import grpc

from baton.node.shell import Shell
from baton.proto.v1 import node_pb2 as pb
from baton.proto.v1 import registry_pb2
from baton.proto.v1.node_pb2_grpc import NodeServicer
from baton.runtime import checks, codec

MAX_ABORTS = 65536


class NodeService(NodeServicer):
    """registration: makes the node's registration, with its current load. drain: called when the node is to
    start (True) or to stop draining."""

    def __init__(
        self,
        shell: Shell,
        registration: Callable[[], registry_pb2.Registration],
        drain: Callable[[bool], Awaitable[None]],
    ) -> None:
        self._shell = shell
        self._registration = registration
        self._drain = drain

    async def Describe(
        self, request: pb.DescribeRequest, context: grpc.aio.ServicerContext
    ) -> pb.DescribeResponse:
        return pb.DescribeResponse(registration=self._registration())

    async def Attach(
        self, request: pb.AttachRequest, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[pb.AttachResponse]:
        outbox = self._shell.attach(checks.printable("router_id", request.router_id, least=1))
        try:
            await context.send_initial_metadata(())  # tells the router that requests may come now
            async for message in outbox.messages():
                yield message
        finally:
            self._shell.detach(outbox)

    async def Abort(self, request: pb.AbortRequest, context: grpc.aio.ServicerContext) -> pb.AbortResponse:
        checks.count("items", request.items, MAX_ABORTS)
        self._shell.abort([(item.request_id, item.attempt) for item in request.items])
        return pb.AbortResponse()

    async def SetRole(
        self, request: pb.SetRoleRequest, context: grpc.aio.ServicerContext
    ) -> pb.SetRoleResponse:
        self._shell.set_role(codec.role_from_proto(request.role))
        return pb.SetRoleResponse()

    async def Drain(self, request: pb.DrainRequest, context: grpc.aio.ServicerContext) -> pb.DrainResponse:
        await self._drain(request.draining)
        return pb.DrainResponse()

    async def KvSnapshot(
        self, request: pb.KvSnapshotRequest, context: grpc.aio.ServicerContext
    ) -> pb.KvSnapshotResponse:
        bus_seq, keys = await self._shell.snapshot()
        load = self._shell.load
        return pb.KvSnapshotResponse(
            incarnation=self._shell.incarnation,
            bus_seq=bus_seq,
            block_size=load.block_size if load else 0,
            keys=keys,
        )
