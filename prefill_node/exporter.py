"""Carries out what the hand-off source decides: links, messages, writes. Lives on the event loop.

router ─start─▶ Exporter ─effects of HandoffSource─▶ Link (messages), Connection (writes)
engine ─kv_ready, prefilled, ended─▶   │
                                       └─▶ port: fail, export_ended (to the engine), handed_off (to router)
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

import structlog

from baton.core.errors import BatonError, Unavailable
from baton.core.node_effects import Key, KvReady, Prefilled
from baton.core.request import Request
from baton.kv_transfer import handoff
from baton.kv_transfer.api import Completion, KvTransport
from baton.kv_transfer.handoff_source import HandoffSource
from baton.prefill_node.link import Identity, Link, Target
from baton.proto.v1 import decode_node_pb2 as pb
from baton.runtime import codec
from baton.runtime.grpc_channel import TransportOptions

log = structlog.get_logger(__name__)

HELLO_TRIES = 6
HELLO_PAUSE_S = 0.5  # doubled each time


class ExportPort(Protocol):
    """What an exporter tells the rest of its node."""

    def fail(self, key: Key, error: BatonError) -> None: ...

    def export_ended(self, key: Key) -> None: ...

    def handed_off(self, key: Key, prefill_s: float, transfer_s: float, payload_bytes: int) -> None: ...

    def lent(self, key: Key, tokens: int, transfer_s: float, payload_bytes: int) -> None:
        """A loan is in the other node's prefix cache. Its `export_ended` follows."""

    def wrote(self, transport: str, completion: Completion) -> None: ...


@dataclass(slots=True)
class Pending:
    """A request, or a loan of blocks, whose link is not up yet, with the latest news of its KV."""

    key: Key
    request: Request | None = None
    router_id: str = ""
    loan: handoff.Loan | None = None
    blocks: tuple[int, ...] = ()
    ready: KvReady | None = None
    prefilled: Prefilled | None = None


@dataclass(slots=True)
class LinkState:
    link: Link
    task: asyncio.Task[None]
    up: bool = False
    pending: dict[Key, Pending] | None = None
    owed: bool = False  # its peer may keep blocks out of use until this node says Hello again
    tries: int = 0  # Hellos that failed since


class Exporter:
    """All hand-offs of a prefill node."""

    def __init__(
        self,
        source: HandoffSource,
        identity: Identity,
        transports: Mapping[str, KvTransport],
        port: ExportPort,
        options: TransportOptions,
    ) -> None:
        self._source = source
        self._identity = identity
        self._transports = transports
        self._port = port
        self._options = options
        self._links: dict[str, LinkState] = {}
        self._where: dict[Key, str] = {}  # every request started and not yet released -> its link's name
        self._prefill_s: dict[Key, float] = {}
        self._loans: dict[Key, handoff.Loan] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._hellos: dict[str, asyncio.TimerHandle] = {}  # links to be made for their Hello's sake
        self._polled = asyncio.Event()
        loop = asyncio.get_running_loop()
        for transport in transports.values():
            transport.set_waker(lambda: _soon(loop, self._poll))

    def start(self, request: Request, router_id: str, target: Target) -> None:
        """A request was accepted whose KV goes to `target`. Ends with one `export_ended`."""
        self._add(target, Pending((request.id, request.attempt), request, router_id))

    def lend(self, key: Key, loan: handoff.Loan, blocks: tuple[int, ...], target: Target) -> None:
        """Cached KV goes to `target`, who asked for it. key: what it is called here. Ends with one
        `export_ended`."""
        self._loans[key] = loan
        self._add(target, Pending(key, loan=loan, blocks=blocks))

    def kv_ready(self, effect: KvReady) -> None:
        pending = self._pending(effect.key)
        if pending is not None:
            pending.ready = effect
        else:
            self._run(self._source.kv_ready(_now(), effect.key, effect.tokens, effect.blocks))

    def prefilled(self, effect: Prefilled) -> None:
        pending = self._pending(effect.key)
        if pending is not None:
            pending.prefilled = effect
            return
        self._prefill_s[effect.key] = effect.prefill_s
        self._run(self._source.prefilled(_now(), effect.key, effect.tokens, effect.blocks, effect.output_ids))

    def ended(self, key: Key) -> None:
        """The request is over on this node, whyever. Unknown keys are not ours."""
        name = self._where.get(key)
        state = self._links.get(name) if name else None
        if state is not None and state.pending is not None and state.pending.pop(key, None) is not None:
            self._released(key)
        else:
            self._run(self._source.abort(_now(), key))

    async def close(self) -> None:
        for state in self._links.values():
            state.task.cancel()
        await asyncio.gather(*(state.task for state in self._links.values()), return_exceptions=True)
        for timer in (self._timer, *self._hellos.values()):
            if timer is not None:
                timer.cancel()

    # ---- links -------------------------------------------------------------------------------------------

    def _add(self, target: Target, one: Pending) -> None:
        state = self._links.get(target.name) or self._open(target)
        self._where[one.key] = target.name
        if state.up:
            self._begin(state, one)
        else:
            assert state.pending is not None
            state.pending[one.key] = one

    def _open(self, target: Target) -> LinkState:
        link = Link(target, self._identity, self._transports, self._options)
        state = LinkState(link, asyncio.create_task(self._keep(target.name, link)), pending={})
        self._links[target.name] = state
        return state

    async def _keep(self, name: str, link: Link) -> None:
        error: BatonError = Unavailable(f"hand-off link to {name} failed")
        try:
            error = await link.run(lambda: self._on_up(name), lambda message: self._on_message(name, message))
        except Exception:
            log.exception("hand-off link broke on an error of our own", decode=name)
        finally:
            self._on_down(name, error)
        while not self._source.settled(name):
            self._polled.clear()
            await self._polled.wait()
        self._gone(name)

    def _on_up(self, name: str) -> None:
        state = self._links[name]
        state.up, state.owed, state.tries = True, False, 0
        pending, state.pending = state.pending or {}, None
        for one in pending.values():
            self._begin(state, one)

    def _on_down(self, name: str, error: BatonError) -> None:
        """Whatever was on the link has failed; until its writes are over, new requests wait for a new one."""
        log.info("hand-off link down", decode=name, reason=str(error))
        state = self._links[name]
        state.up, state.owed = False, state.owed or state.up
        pending, state.pending = state.pending or {}, {}
        for key in pending:
            self._port.fail(key, error)
            self._released(key)
        self._run(self._source.link_lost(_now(), name))

    def _gone(self, name: str) -> None:
        """The old link's writes are over: those who waited get a new one, and so does a peer that lives:
        only another Hello tells it so."""
        state = self._links.pop(name)
        if state.pending:
            self._reopen(state)
        elif state.owed and state.tries < HELLO_TRIES:
            pause_s = HELLO_PAUSE_S * 2.0**state.tries
            self._hellos[name] = asyncio.get_running_loop().call_later(pause_s, self._reopen, state)

    def _reopen(self, old: LinkState) -> None:
        if (timer := self._hellos.pop(old.link.target.name, None)) is not None:
            timer.cancel()
        new = self._links.get(old.link.target.name) or self._open(old.link.target)
        if not new.up:
            new.pending = {**(new.pending or {}), **(old.pending or {})}
            new.owed, new.tries = old.owed, old.tries + 1

    def _begin(self, state: LinkState, one: Pending) -> None:
        layout = state.link.peer_layout
        assert layout is not None
        peer = handoff.PeerPool(block_size=layout.block_size, num_blocks=layout.num_blocks)
        now, name = _now(), state.link.target.name
        if one.loan is not None:
            self._run(self._source.lend(now, name, peer, one.key, one.loan, one.blocks))
            return
        assert one.request is not None
        self._run(self._source.start(now, name, peer, one.request, one.router_id))
        if one.ready is not None:
            self.kv_ready(one.ready)
        if one.prefilled is not None:
            self.prefilled(one.prefilled)

    def _pending(self, key: Key) -> Pending | None:
        name = self._where.get(key)
        if name is None:
            return None
        state = self._links.get(name)
        return state.pending.get(key) if state is not None and state.pending is not None else None

    def _on_message(self, name: str, message: pb.HandoffResponse) -> None:
        now, source = _now(), self._source
        match message.WhichOneof("message"):
            case "ticket":
                ticket = message.ticket
                self._run(
                    source.ticket(
                        now,
                        handoff.Ticket(
                            name, ticket.transfer.transfer_id, ticket.cached_tokens, tuple(ticket.blocks)
                        ),
                    )
                )
            case "refused":
                fault = codec.fault_from_proto(message.refused.fault)
                self._run(source.refused(now, name, message.refused.transfer.transfer_id, fault))
            case "committed":
                self._run(source.committed(now, name, message.committed.transfer_id))
            case "revoke":
                self._run(source.revoke(now, name, message.revoke.transfer_id))

    # ---- effects -----------------------------------------------------------------------------------------

    def _poll(self) -> None:
        for transport in self._transports.values():
            for completion in transport.poll():
                self._port.wrote(transport.kind, completion)
                self._run(self._source.completion(_now(), completion))
        self._end_broken()
        self._polled.set()

    def _end_broken(self) -> None:
        """A link that no KV can go over is of no use: the next request gets a new one."""
        for name, state in self._links.items():
            connection = state.link.connection
            if state.up and connection is not None and connection.broken:
                state.link.end(Unavailable(f"the KV connection to {name} broke"))

    def _run(self, effects: Iterable[handoff.SourceEffect]) -> None:
        for effect in effects:
            self._carry_out(effect)
        self._rearm()

    def _carry_out(self, effect: handoff.SourceEffect) -> None:
        match effect:
            case handoff.SubmitWrite(link, write):
                connection = self._links[link].link.connection
                assert connection is not None
                connection.submit(write)
            case handoff.CancelWrites(link, transfer_id):
                state = self._links.get(link)
                if state is not None and state.link.connection is not None:
                    state.link.connection.cancel(transfer_id)
            case handoff.Release(key):
                self._released(key)
            case handoff.HandedOff(key, transfer_s, payload_bytes) if key in self._loans:
                self._port.lent(key, self._loans[key].tokens, transfer_s, payload_bytes)
            case handoff.HandedOff(key, transfer_s, payload_bytes):
                self._port.handed_off(key, self._prefill_s.get(key, 0.0), transfer_s, payload_bytes)
            case handoff.TransferFailed(key, error):
                self._port.fail(key, error)
            case _:
                self._say(effect)

    def _say(self, effect: handoff.SourceEffect) -> None:
        match effect:
            case handoff.SendReserve(link, transfer_id, router_id, request):
                message = pb.HandoffRequest(
                    reserve=pb.Reserve(
                        transfer_id=transfer_id,
                        router_id=router_id,
                        request=codec.request_to_proto(request),
                    )
                )
            case handoff.SendOffer(link, transfer_id, loan):
                lent = pb.Loan(
                    request_id=loan.key[0], attempt=loan.key[1], tokens=loan.tokens, last_key=loan.last_key
                )
                message = pb.HandoffRequest(reserve=pb.Reserve(transfer_id=transfer_id, loan=lent))
            case handoff.SendCommit(link, transfer_id, tokens, output_ids):
                message = pb.HandoffRequest(
                    commit=pb.Commit(
                        transfer=self._ref(link, transfer_id), tokens=tokens, output_ids=output_ids
                    )
                )
            case handoff.SendAbandon(link, transfer_id):
                message = pb.HandoffRequest(abandon=self._ref(link, transfer_id))
            case handoff.SendRevoked(link, transfer_id):
                message = pb.HandoffRequest(revoked=self._ref(link, transfer_id))
            case _:
                raise TypeError(f"unknown effect {effect}")
        state = self._links.get(link)
        if state is not None:
            state.link.send(message)

    def _ref(self, link: str, transfer_id: int) -> pb.TransferRef:
        return pb.TransferRef(transfer_id=transfer_id, incarnation=link.rpartition("/")[2])

    def _released(self, key: Key) -> None:
        self._where.pop(key, None)
        self._prefill_s.pop(key, None)
        self._loans.pop(key, None)
        self._port.export_ended(key)

    def _rearm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        wakeup = self._source.next_wakeup()
        if wakeup is not None:
            self._timer = asyncio.get_running_loop().call_later(max(0.0, wakeup - _now()), self._expire)

    def _expire(self) -> None:
        self._timer = None
        self._run(self._source.expire(_now()))


def _now() -> float:
    return time.monotonic()


def _soon(loop: asyncio.AbstractEventLoop, callback: Callable[[], None]) -> None:
    """From any thread; nothing when the loop is closed already."""
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(callback)
