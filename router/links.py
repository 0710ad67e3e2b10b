"""The router's way to one node: a channel, its Attach stream, and the calls that effects become."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Iterator
from functools import partial
from typing import Any

import grpc
import structlog

from baton.core.errors import BatonError, DeadlineExceeded, InternalError, Unavailable
from baton.proto.v1 import node_pb2, node_pb2_grpc, prefill_node_pb2, prefill_node_pb2_grpc
from baton.router.convert import node_events
from baton.router.driver import Driver
from baton.router.events import Dispatch, Event, NodeFailed, SetDrain, SetRole, TokensMade
from baton.runtime import codec
from baton.runtime.codec_node import Registration
from baton.runtime.grpc_channel import TransportOptions, channel
from baton.runtime.grpc_errors import from_rpc_error

log = structlog.get_logger(__name__)

ATTACH_TIMEOUT_S = 5.0
DISPATCH_TIMEOUT_S = 10.0
CALL_TIMEOUT_S = 5.0
ORPHAN_PAUSE_S = 0.5
MAX_ORPHANS = 4096
INLINE_TOKENS = 2**15  # a prompt up to this length becomes a message on the event loop: a millisecond

Key = tuple[str, int]


class NodeLink:
    """One incarnation of one node. `on_lost(link, reason)` is called once, when the Attach stream breaks or
    `close` is called; after that the link is dead for good."""

    def __init__(
        self,
        facts: Registration,
        router_id: str,
        driver: Driver,
        on_lost: Callable[[NodeLink, str], None],
        transport: TransportOptions,
    ) -> None:
        self.facts = facts
        self.lost = False
        self._router_id = router_id
        self._driver = driver
        self._on_lost = on_lost
        self._channel = channel(facts.address, transport)
        self.node = node_pb2_grpc.NodeStub(self._channel)
        self._prefill = prefill_node_pb2_grpc.PrefillNodeStub(self._channel)
        self._tasks: set[asyncio.Task[None]] = set()
        self._dispatching: dict[Key, asyncio.Task[None]] = {}
        self._aborts: list[Key] = []
        self._orphans: dict[Key, float] = {}  # when the node was told to end it

    async def attach(self) -> None:
        """Open the Attach stream; returns once the node has taken it. Unavailable: it cannot be reached."""
        call = self.node.Attach(node_pb2.AttachRequest(router_id=self._router_id))
        try:
            async with asyncio.timeout(ATTACH_TIMEOUT_S):
                await call.initial_metadata()
                # A call that failed at once has empty metadata as well.
                if call.done():
                    raise Unavailable(f"its Attach ended: {await call.details()}")
        except BaseException as error:
            call.cancel()
            self.lost = True
            await self._channel.close(None)
            if not isinstance(error, (TimeoutError, grpc.RpcError, BatonError)):
                raise
            raise Unavailable(
                f"cannot attach to node {self.facts.node_id} at {self.facts.address}: "
                f"{error or f'no answer in {ATTACH_TIMEOUT_S:g} s'}"
            ) from None
        self._start(self._read(call))

    # -- the driver's side ----------------------------------------------------------------------------------

    def dispatch(self, effect: Dispatch, decode: NodeLink, lender: NodeLink | None = None) -> None:
        """lender: the node of `effect.fetch`, if it is still there."""
        key, facts = (effect.request.id, effect.request.attempt), decode.facts
        target = prefill_node_pb2.DecodeTarget(
            node_id=facts.node_id, incarnation=facts.incarnation, address=facts.address
        )
        message = prefill_node_pb2.PrefillRequest(router_id=self._router_id, decode=target)
        if effect.fetch is not None and lender is not None:
            facts = lender.facts
            message.fetch.node_id, message.fetch.incarnation = facts.node_id, facts.incarnation
            message.fetch.address, message.fetch.tokens = facts.address, effect.fetch.tokens
            message.fetch.patience_s = effect.fetch.patience_s
        self._dispatching[key] = self._start(self._dispatch(key, effect, message))

    def cancel(self, request_id: str, attempt: int) -> None:
        """Aborts of one turn of the event loop go out as one call."""
        if not self._aborts:
            asyncio.get_running_loop().call_soon(self._flush_aborts)
        self._aborts.append((request_id, attempt))

    def set_role(self, effect: SetRole) -> None:
        request = node_pb2.SetRoleRequest(role=codec.role_to_proto(effect.role))
        self._start(self._tell("SetRole", lambda: self.node.SetRole(request, timeout=CALL_TIMEOUT_S)))

    def set_drain(self, effect: SetDrain) -> None:
        self._start(self._drain(effect.draining, tuple(self._dispatching.values())))

    def lose(self, reason: str) -> None:
        """The node counts as dead from now on. Idempotent."""
        if self.lost:
            return
        self.lost = True
        self._on_lost(self, reason)
        current = asyncio.current_task()
        for task in self._tasks:
            if task is not current:
                task.cancel()

    async def close(self) -> None:
        """Free the channel, after `lose`."""
        self.lose("closed")
        await self._channel.close(None)

    # -- tasks ----------------------------------------------------------------------------------------------

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _read(self, call: Any) -> None:
        node_id, post_all = self.facts.node_id, self._driver.post_all
        reason = "its Attach stream ended"
        try:
            while (message := await call.read()) is not grpc.aio.EOF:  # type: ignore[attr-defined]
                post_all(self._adopted(node_events(node_id, message)))
        except grpc.RpcError as error:
            reason = f"its Attach stream broke: {from_rpc_error(error)}"
        except BatonError as error:
            reason = f"it sent an invalid event: {error}"
        except Exception:  # ours; without its stream the node is of no use, and must not be given requests
            log.exception("the events of a node broke their reader", node=node_id)
            reason = "reading its events failed"
        finally:
            call.cancel()
        self.lose(reason)

    def _adopted(self, events: Iterable[Event]) -> Iterator[Event]:
        """All events; a node that makes tokens for nobody is told to stop.

        Where an abort reached it before the hand-off of its request did, that would run to its end.
        """
        for event in events:
            if isinstance(event, TokensMade) and not self._driver.knows(event.request_id):
                self._end_orphan((event.request_id, event.attempt))
            yield event

    def _end_orphan(self, key: Key) -> None:
        now = self._driver.now()
        if now - self._orphans.get(key, -ORPHAN_PAUSE_S) >= ORPHAN_PAUSE_S:
            self._orphans.pop(key, None)
            self._orphans[key] = now
            if len(self._orphans) > MAX_ORPHANS:
                del self._orphans[next(iter(self._orphans))]
            self.cancel(*key)

    async def _dispatch(self, key: Key, effect: Dispatch, message: prefill_node_pb2.PrefillRequest) -> None:
        request = effect.request
        limit_s = request.timeout_s
        timeout_s = DISPATCH_TIMEOUT_S if limit_s is None else min(DISPATCH_TIMEOUT_S, max(limit_s, 0.001))
        try:
            if request.prefill_tokens <= INLINE_TOKENS:
                codec.request_to_proto(request, message.request)
            else:  # other streams go on meanwhile
                await asyncio.to_thread(codec.request_to_proto, request, message.request)
            await self._prefill.Prefill(message, timeout=timeout_s)
        except grpc.RpcError as rpc_error:
            error = from_rpc_error(rpc_error)
            if isinstance(error, DeadlineExceeded) and timeout_s == DISPATCH_TIMEOUT_S:
                error = Unavailable(f"node {self.facts.node_id} did not answer in {timeout_s:g} s")
            if isinstance(error, DeadlineExceeded | Unavailable):
                self.cancel(*key)  # it may have taken the request all the same
            self._driver.post(NodeFailed(*key, self.facts.node_id, error))
        except Exception:  # ours; nobody else would ever end the attempt
            log.exception("a request could not be sent", node=self.facts.node_id, request=key[0])
            self._driver.post(NodeFailed(*key, self.facts.node_id, InternalError("it could not be sent")))
        finally:
            self._dispatching.pop(key, None)

    async def _drain(self, draining: bool, before: tuple[asyncio.Task[None], ...]) -> None:
        """It must not overtake the requests that were sent before it: the node would refuse them."""
        if before:
            await asyncio.wait(before)
        request = node_pb2.DrainRequest(draining=draining)
        await self._tell("Drain", lambda: self.node.Drain(request, timeout=CALL_TIMEOUT_S))

    def _flush_aborts(self) -> None:
        keys, self._aborts = self._aborts, []
        now = [key for key in keys if key not in self._dispatching]
        if now and not self.lost:
            self._start(self._abort(now))
        for key in keys:
            if (task := self._dispatching.get(key)) is not None:
                # An abort must not overtake the request that it is for.
                task.add_done_callback(partial(self._abort_later, key))

    def _abort_later(self, key: Key, _: asyncio.Task[None]) -> None:
        if not self.lost:
            self.cancel(*key)

    async def _abort(self, keys: list[Key]) -> None:
        items = [node_pb2.AbortItem(request_id=request_id, attempt=attempt) for request_id, attempt in keys]
        request = node_pb2.AbortRequest(items=items)
        await self._tell("Abort", lambda: self.node.Abort(request, timeout=CALL_TIMEOUT_S))

    async def _tell(self, what: str, call: Callable[[], Any]) -> None:
        """Try twice: a node that cannot be told is about to be lost, which ends the same things."""
        for last in (False, True):
            try:
                await call()
                return
            except grpc.RpcError as error:
                if last:
                    log.warning(
                        "node did not take a call", node=self.facts.node_id, call=what, error=str(error)
                    )
                await asyncio.sleep(0.05)
