"""The event-loop half of a node: who owns which request, and where every effect of the engine goes.

routers ◀── Attach streams ◀── Outbox ◀─┐                    ┌─▶ Exporter ──▶ decode nodes
routers ──▶ services ──▶ commands ──▶ EngineThread ──▶ effects ──▶ DecodeService ──▶ prefill nodes
                                                             └─▶ Announcer, event bus
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import structlog

from baton.core.errors import BatonError, ResourceExhausted, Unavailable
from baton.core.kvcache import KvEvents
from baton.core.load import LoadReport, Role
from baton.core.node_effects import (
    DropLink,
    Ended,
    Fence,
    Key,
    KvReady,
    Prefilled,
    SendCommitted,
    SendRefusal,
    SendRevoke,
    SendTicket,
    Started,
    TokensOut,
)
from baton.core.request import Request
from baton.decode_node.service import DecodeService
from baton.kv_transfer.api import Completion, Outcome
from baton.kv_transfer.handoff import Loan
from baton.node import commands as cmd
from baton.node import wire
from baton.node.core import Admitted, KvChange, Lent, LoadOut, Misbehaved, Out, SnapshotOut
from baton.node.engine_thread import EngineThread
from baton.node.lending import Lending
from baton.node.observe import NodeObserver
from baton.node.outbox import Outbox
from baton.prefill_node.exporter import Exporter
from baton.prefill_node.fetcher import Fetcher, Lender
from baton.prefill_node.link import Target
from baton.proto.v1 import node_pb2 as pb

log = structlog.get_logger(__name__)

OUTBOX_LIMIT = 1_000_000


@dataclass(frozen=True, slots=True)
class Owner:
    router_id: str
    prompt_tokens: int
    fetches: bool = False


class Shell:
    """Implements the ports that the services and the exporter call. All methods run on the event loop, but
    `emit`, which the engine thread calls."""

    def __init__(self, node_id: str, incarnation: str, max_requests: int, observer: NodeObserver) -> None:
        self.node_id = node_id
        self.incarnation = incarnation
        self.draining = False
        self.load: LoadReport | None = None
        self._max_requests = max_requests
        self._observer = observer
        self._owners: dict[Key, Owner] = {}
        self._arriving: dict[Key, bool] = {}  # being read; True: aborted meanwhile
        self._outboxes: dict[str, Outbox] = {}
        self._snapshots: dict[int, asyncio.Future[tuple[int, tuple[bytes, ...]]]] = {}
        self._tokens = itertools.count()
        self._turned = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self.on_load: Callable[[LoadReport], None] = lambda load: None
        self.on_kv: Callable[[KvEvents], None] = lambda events: None
        self.bus_seq: Callable[[], int] = lambda: 0
        self.on_fault: Callable[[BaseException], None] = lambda error: None
        self.on_transfer: Callable[[int, float], None] = lambda payload_bytes, seconds: None

    def wire(
        self, engine: EngineThread, exporter: Exporter, importer: DecodeService, fetcher: Fetcher
    ) -> None:
        """Once, before the engine starts."""
        self._engine = engine
        self._exporter = exporter
        self._importer = importer
        self._fetcher = fetcher
        self._lending = Lending(exporter, engine.post, engine.block_size)

    # ---- routers -----------------------------------------------------------------------------------------

    def attach(self, router_id: str) -> Outbox:
        """A router's stream begins. An older one of the same router is over."""
        known = self._outboxes.get(router_id)
        if known is not None:
            known.close("a newer stream of the same router took over")
        outbox = self._outboxes[router_id] = Outbox(router_id, OUTBOX_LIMIT)
        log.info("router attached", router=router_id)
        return outbox

    def detach(self, outbox: Outbox) -> None:
        """The stream broke: whatever the router had here is aborted."""
        if self._outboxes.get(outbox.router_id) is not outbox:
            return
        del self._outboxes[outbox.router_id]
        keys = [key for key, owner in self._owners.items() if owner.router_id == outbox.router_id]
        log.info("router detached", router=outbox.router_id, aborted=len(keys))
        self.abort(keys)

    def prefill(self, router_id: str, request: Request, target: Target, lender: Lender | None = None) -> None:
        """Take a request, or raise why not."""
        if self.draining:
            raise Unavailable(f"node {self.node_id} is draining")
        self._must_be_attached(router_id)
        if len(self._owners) >= self._max_requests:
            raise ResourceExhausted(
                f"node {self.node_id} holds {len(self._owners)} requests, its limit", retry_after_s=1.0
            )
        key = (request.id, request.attempt)
        if self._arriving.get(key):
            raise Unavailable("the router cancelled the request while it arrived")
        if key in self._owners:
            raise Unavailable(f"attempt {request.attempt} of request {request.id} is here already")
        in_place = target.node_id == self.node_id
        if in_place and target.incarnation != self.incarnation:
            raise Unavailable(f"node {self.node_id} was restarted")
        deadline_s = None if request.timeout_s is None else time.monotonic() + request.timeout_s
        if not in_place:
            self._exporter.start(request, router_id, target)
        self._owners[key] = Owner(router_id, request.prefill_tokens, lender is not None)
        fetch = None if lender is None else cmd.Fetch(lender.target.name, lender.tokens, lender.patience_s)
        self._engine.post(cmd.Add(request, deadline_s, in_place, fetch))
        if lender is not None:
            self._fetcher.start(request, lender)

    async def lend(self, key: Key, target: Target, keys: tuple[bytes, ...]) -> int:
        """Have what is cached of that prefix sent; see Lending. While draining, too: soon it will be gone."""
        return await self._lending.lend(key, target, keys)

    def fetch_failed(self, key: Key) -> None:
        self._engine.post(cmd.FetchFailed(key))

    def _must_be_attached(self, router_id: str) -> None:
        """Not FailedPrecondition: routers take that for two nodes that can never work together."""
        if router_id not in self._outboxes:
            raise Unavailable(f"router {router_id} has no Attach stream on node {self.node_id}")

    @contextmanager
    def arriving(self, key: Key) -> Iterator[None]:
        self._arriving.setdefault(key, False)
        try:
            yield
        finally:
            self._arriving.pop(key, None)

    def abort(self, keys: Sequence[Key]) -> None:
        for key in keys:
            if key in self._arriving:
                self._arriving[key] = True
        if keys:
            self._engine.post(cmd.AbortKeys(tuple(keys)))

    def set_role(self, role: Role) -> None:
        self._engine.post(cmd.SetRole(role))

    def set_draining(self, draining: bool) -> None:
        self.draining = draining
        self._engine.post(cmd.SetDraining(draining))

    async def snapshot(self) -> tuple[int, tuple[bytes, ...]]:
        """Keys of all findable blocks, and the number of the last KV event that is in them."""
        token = next(self._tokens)
        future = self._snapshots[token] = self._loop.create_future()
        self._engine.post(cmd.Snapshot(token))
        try:
            return await future
        finally:
            self._snapshots.pop(token, None)

    @property
    def attached(self) -> bool:
        """Whether any router has a stream here."""
        return bool(self._outboxes)

    async def emptied(self) -> None:
        """Return once nothing of any request is left here."""
        while not self._empty():
            self._turned.clear()
            await self._turned.wait()

    def _empty(self) -> bool:
        load = self.load
        held = (load.waiting, load.running, load.exporting, load.reserved) if load is not None else ()
        return not self._owners and not any(held)

    def close(self, reason: str) -> None:
        for outbox in self._outboxes.values():
            outbox.close(reason)

    # ---- the exporter's port -----------------------------------------------------------------------------

    def fail(self, key: Key, error: BatonError) -> None:
        self._engine.post(cmd.Fail(key, error))

    def export_ended(self, key: Key) -> None:
        self._lending.ended(key)
        self._engine.post(cmd.ExportEnded(key))

    def handed_off(self, key: Key, prefill_s: float, transfer_s: float, payload_bytes: int) -> None:
        owner = self._owners.pop(key, None)
        if owner is not None:
            self._tell(owner.router_id, [wire.handed_off(key, prefill_s, transfer_s, payload_bytes)])

    def lent(self, key: Key, tokens: int, transfer_s: float, payload_bytes: int) -> None:
        self._lending.sent(key, tokens)
        self._observer.lent(tokens)

    def wrote(self, transport: str, completion: Completion) -> None:
        self._observer.wrote(transport, completion)
        if completion.outcome is Outcome.APPLIED and completion.payload_bytes:
            self.on_transfer(completion.payload_bytes, completion.seconds)

    # ---- the decode service's port -----------------------------------------------------------------------

    def link_up(self, link: str, returned: bool) -> None:
        if returned:
            self._engine.post(cmd.LinkReturned(link))
        self._engine.post(cmd.LinkBeat(link))

    def link_beat(self, link: str) -> None:
        self._engine.post(cmd.LinkBeat(link))

    def link_lost(self, link: str) -> None:
        self._engine.post(cmd.LinkLost(link))

    def writer_dead(self, link: str) -> None:
        self._engine.post(cmd.WriterDead(link))

    def reserve(self, link: str, transfer_id: int, request: Request, router_id: str) -> None:
        self._must_be_attached(router_id)
        self._engine.post(cmd.Reserve(link, transfer_id, request, router_id))

    def offer(self, link: str, transfer_id: int, loan: Loan) -> None:
        self._engine.post(cmd.Offer(link, transfer_id, loan))

    def commit(self, link: str, transfer_id: int, tokens: int, output_ids: tuple[int, ...]) -> None:
        self._engine.post(cmd.Commit(link, transfer_id, tokens, output_ids))

    def abandon(self, link: str, transfer_id: int, *, revoked: bool) -> None:
        self._engine.post(cmd.Abandon(link, transfer_id, revoked))

    def fenced(self, link: str, transfer_id: int) -> None:
        self._engine.post(cmd.Fenced(link, transfer_id))

    # ---- effects -----------------------------------------------------------------------------------------

    def emit(self, outs: Sequence[Out]) -> None:
        """Called on the engine thread."""
        try:
            self._loop.call_soon_threadsafe(self._on_outs, outs)
        except RuntimeError:  # the loop is closed: the process is going down
            pass

    def _on_outs(self, outs: Sequence[Out]) -> None:
        events: defaultdict[str, list[pb.NodeEvent | TokensOut]] = defaultdict(list)
        for out in outs:
            try:
                self._on_out(out, events)
            except Exception as error:  # an effect that is lost leaves a request, or its blocks, for ever
                log.exception("an effect of the engine failed", effect=type(out).__name__)
                self.on_fault(error)
        for router_id, batch in events.items():
            self._tell(router_id, batch)
        self._turned.set()

    def _on_out(self, out: Out, events: defaultdict[str, list[pb.NodeEvent | TokensOut]]) -> None:
        match out:
            case Started(key) | TokensOut(key):
                owner = self._owners.get(key)
                if owner is not None:
                    events[owner.router_id].extend(wire.parts(out))
                    if isinstance(out, Started):
                        self._observer.started(out, owner.prompt_tokens, fetches=owner.fetches)
                if isinstance(out, Started):
                    self._fetcher.over(key)
            case Ended(key):
                owner = self._owners.pop(key, None)
                if owner is not None and not out.silent:
                    events[owner.router_id].append(wire.event(out))
                self._observer.ended(out)
                self._exporter.ended(key)
                self._fetcher.over(key)
            case KvReady():
                self._exporter.kv_ready(out)
            case Prefilled():
                self._exporter.prefilled(out)
            case SendTicket() | SendRefusal() | SendCommitted() | SendRevoke() | Fence() | DropLink():
                self._importer.carry_out(out)
            case Lent():
                self._lending.lent(out)
            case Misbehaved(link, error):
                log.error("a prefill node broke the hand-off protocol", link=link, error=str(error))
            case Admitted(key, router_id):
                self._admitted(key, router_id)
            case LoadOut(load):
                self.load = load
                self._observer.load(load)
                self.on_load(load)
            case KvChange(kv_events):
                self.on_kv(kv_events)
            case SnapshotOut(token, keys):
                future = self._snapshots.get(token)
                if future is not None and not future.done():  # the number now: whoever waits runs later
                    future.set_result((self.bus_seq(), keys))
            case BaseException():
                self.on_fault(out)

    def _admitted(self, key: Key, router_id: str) -> None:
        """A request whose router has gone by now has nobody to tell: it ends here."""
        if router_id in self._outboxes:
            self._owners[key] = Owner(router_id, 0)
        else:
            self.abort([key])

    def _tell(self, router_id: str, events: Sequence[pb.NodeEvent | TokensOut]) -> None:
        outbox = self._outboxes.get(router_id)
        if outbox is None:
            return
        outbox.put(events)
        if outbox.closed:  # it does not read: its stream may hang for as long as it likes
            self.detach(outbox)
