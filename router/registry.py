"""The Registry service: nodes announce themselves and keep their lease with load reports."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc

from baton.core.errors import DeadlineExceeded, InvalidArgument, Unavailable
from baton.proto.v1 import registry_pb2 as pb
from baton.proto.v1 import registry_pb2_grpc
from baton.router.membership import Member, Membership
from baton.runtime.codec_node import load_from_proto, registration_from_proto

FIRST_MESSAGE_S = 5.0


class RegistryService(registry_pb2_grpc.RegistryServicer):
    """lease_s: told to nodes. patience_s: silence after which a node counts as lost."""

    def __init__(self, membership: Membership, lease_s: float, patience_s: float) -> None:
        self._membership = membership
        self._lease_s = lease_s
        self._patience_s = patience_s

    async def Announce(  # type: ignore[override]  # the stubs know only generators
        self, request_iterator: Any, context: Any
    ) -> None:
        try:
            async with asyncio.timeout(FIRST_MESSAGE_S):
                first = await context.read()
        except TimeoutError:
            raise DeadlineExceeded("no registration came") from None
        if first is grpc.aio.EOF or first.WhichOneof("message") != "registration":  # type: ignore[attr-defined]
            raise InvalidArgument("the first message must be a registration", field="registration")
        member = await self._membership.join(registration_from_proto(first.registration))
        welcome = pb.Welcome(router_id=self._membership.router_id, lease_s=self._lease_s)
        await context.write(pb.AnnounceResponse(welcome=welcome))
        member.announcing += 1
        if member.expiry is not None:
            member.expiry.cancel()
        try:
            await self._serve(member, context)
        finally:
            member.announcing -= 1
            if not member.lost.is_set() and not member.announcing:
                # It may come back within its lease; its requests go on meanwhile over the Attach stream.
                why = "its announcement ended and did not come back"
                loop = asyncio.get_running_loop()
                member.expiry = loop.call_later(self._patience_s, member.link.lose, why)

    async def _serve(self, member: Member, context: Any) -> None:
        """Until the node hangs up. Unavailable: it counts as lost and should announce itself again."""
        tasks = [
            asyncio.ensure_future(work)
            for work in (self._reports(member, context), self._tell(member, context), member.lost.wait())
        ]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        if member.lost.is_set():
            raise Unavailable(f"lost: {member.lost_reason}", retry_after_s=0.1)

    async def _reports(self, member: Member, context: Any) -> None:
        while True:
            try:
                # Not wait_for: it forgets a cancellation that comes together with the message.
                async with asyncio.timeout(self._patience_s):
                    message = await context.read()
            except TimeoutError:
                member.link.lose(f"no load report for {self._patience_s:g} s")
                return
            if message is grpc.aio.EOF:  # type: ignore[attr-defined]
                return
            if message.WhichOneof("message") == "load":
                self._membership.report(member, load_from_proto(message.load))

    async def _tell(self, member: Member, context: Any) -> None:
        while True:
            pair = await member.told.get()
            told = pb.Incompatible(node_id=pair.other_id, items=pair.items)
            await context.write(pb.AnnounceResponse(incompatible=told))
