"""Asks other nodes for KV that they have cached of a prompt that waits here. Lives on the event loop.

What comes of it arrives as any hand-off does, at this node's sink. Only that nothing more will come is known
here: the call lasts as long as the loan, so it breaks with the node that lends.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import grpc
import structlog

from baton.core.errors import BatonError
from baton.core.node_effects import Key
from baton.core.prefix import chain, root_key
from baton.core.request import Request
from baton.prefill_node.link import Identity, Target
from baton.proto.v1 import prefill_node_pb2 as pb
from baton.proto.v1.prefill_node_pb2_grpc import PrefillNodeStub
from baton.runtime.grpc_channel import TransportOptions, channel
from baton.runtime.grpc_errors import from_rpc_error

log = structlog.get_logger(__name__)

MOST_CHANNELS = 32
CLOSE_S = 10.0  # for calls on a channel that is let go
INLINE_TOKENS = 4096  # so many are hashed on the event loop: a millisecond


@dataclass(frozen=True, slots=True)
class Lender:
    """Who has KV of a request's first `tokens` tokens. patience_s: see node.commands.Fetch."""

    target: Target
    tokens: int
    patience_s: float


class Fetcher:
    """address: how others reach this node. failed: called for a request for which nothing will come."""

    def __init__(
        self,
        identity: Identity,
        address: Callable[[], str],
        failed: Callable[[Key], None],
        options: TransportOptions,
    ) -> None:
        self._identity = identity
        self._address = address
        self._failed = failed
        self._options = options
        self._channels: OrderedDict[str, grpc.aio.Channel] = OrderedDict()  # by address, last used last
        self._asking: dict[Key, asyncio.Task[None]] = {}
        self._closing: set[asyncio.Task[None]] = set()

    def start(self, request: Request, lender: Lender) -> None:
        """The request is in the engine's mailbox."""
        key = (request.id, request.attempt)
        task = self._asking[key] = asyncio.get_running_loop().create_task(self._ask(key, request, lender))
        task.add_done_callback(lambda _: self._asking.pop(key, None))

    @property
    def asking(self) -> int:
        """Calls that are under way."""
        return len(self._asking)

    def over(self, key: Key) -> None:
        """The request waits no longer, for whatever reason."""
        if task := self._asking.get(key):
            task.cancel()

    async def close(self) -> None:
        tasks = (*self._asking.values(), *self._closing)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for known in self._channels.values():
            await known.close(None)

    async def _ask(self, key: Key, request: Request, lender: Lender) -> None:
        try:
            message = await self._message(request, lender)
            stub = PrefillNodeStub(self._channel(lender.target.address))
            await stub.Lend(message)
        except grpc.RpcError as error:
            self._none(key, lender, from_rpc_error(error))
        except Exception:
            log.exception("asking for KV broke on an error of our own", lender=lender.target.name)
            self._failed(key)

    def _none(self, key: Key, lender: Lender, error: BatonError) -> None:
        log.info("no KV was lent", lender=lender.target.name, request=key[0], reason=str(error))
        self._failed(key)

    async def _message(self, request: Request, lender: Lender) -> pb.LendRequest:
        identity = self._identity
        ids = request.token_ids[: lender.tokens]
        if len(ids) <= INLINE_TOKENS:
            keys = self._keys(request.salt, ids)
        else:
            keys = await asyncio.to_thread(self._keys, request.salt, ids)
        target = pb.DecodeTarget(
            node_id=identity.node_id, incarnation=identity.incarnation, address=self._address()
        )
        return pb.LendRequest(
            request_id=request.id,
            attempt=request.attempt,
            target=target,
            block_size=identity.layout.block_size,
            kv_dtype=identity.layout.dtype,
            keys=keys,
        )

    def _keys(self, salt: str, ids: Sequence[int]) -> list[bytes]:
        root = root_key(salt=salt, revision=self._identity.fingerprint.weights)
        return list(chain(root, ids, self._identity.layout.block_size))

    def _channel(self, address: str) -> grpc.aio.Channel:
        known = self._channels.get(address)
        if known is None:
            known = self._channels[address] = channel(address, self._options)
            if len(self._channels) > MOST_CHANNELS:
                _, oldest = self._channels.popitem(last=False)
                task = asyncio.get_running_loop().create_task(oldest.close(CLOSE_S))
                self._closing.add(task)
                task.add_done_callback(self._closing.discard)
        self._channels.move_to_end(address)
        return known
