"""The prefill side of all hand-offs of a simulated node: carries out what `HandoffSource` decides, over
modelled streams and links, as `prefill_node.exporter` does over real ones."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from baton.core.errors import BatonError, Unavailable
from baton.core.node_effects import Key, KvReady, Prefilled
from baton.core.request import Request
from baton.kv_transfer import handoff
from baton.kv_transfer.handoff import Loan, PeerPool, Ticket
from baton.kv_transfer.handoff_source import HandoffSource
from baton.kv_transfer.writes import Completion, Outcome
from baton.sim.clock import Entry
from baton.sim.hub import ROUTER, Hub
from baton.sim.link import OutLink, Stream, Waiting
from baton.sim.spec import Profile
from baton.sim.writer import Writer

if TYPE_CHECKING:
    from baton.sim.node import SimNode

HELLO_TRIES = 6
HELLO_PAUSE_S = 0.5  # doubled each time


@dataclass(slots=True)
class ExportPort:
    """What the exporter tells the rest of its node."""

    fail: Callable[[Key, BatonError], None]
    ended: Callable[[Key], None]
    handed_off: Callable[[Key, float, float, int], None]
    wrote: Callable[[int, float], None]


@dataclass(slots=True)
class Exporter:
    hub: Hub
    node_id: str
    incarnation: str
    profile: Profile
    source: HandoffSource
    port: ExportPort
    writer: Writer = field(init=False)
    links: dict[str, OutLink] = field(default_factory=dict)
    stopped: bool = False
    _where: dict[Key, OutLink] = field(default_factory=dict)
    _prefill_s: dict[Key, float] = field(default_factory=dict)
    _timer: Entry | None = None
    _timer_s: float = 0.0

    @property
    def busy(self) -> bool:
        """A hand-off is not over."""
        return bool(self._where)

    def __post_init__(self) -> None:
        self.writer = Writer(self.hub, self.node_id, self.profile, self._completed)

    # ---- the node's word -----------------------------------------------------------------------------------

    def start(self, request: Request, target: str, incarnation: str) -> None:
        """A request was accepted whose KV goes to that process. Ends with one `port.ended`."""
        self._add(target, incarnation, Waiting((request.id, request.attempt), request))

    def lend(self, key: Key, loan: Loan, blocks: tuple[int, ...], target: str, incarnation: str) -> None:
        """Cached KV goes to that process, which asked for it. Ends with one `port.ended`."""
        self._add(target, incarnation, Waiting(key, loan=loan, blocks=blocks))

    def kv_ready(self, effect: KvReady) -> None:
        if (waiting := self._waiting(effect.key)) is not None:
            waiting.ready = effect
        else:
            now = self.hub.clock.now
            self._run(self.source.kv_ready(now, effect.key, effect.tokens, effect.blocks))

    def prefilled(self, effect: Prefilled) -> None:
        if (waiting := self._waiting(effect.key)) is not None:
            waiting.prefilled = effect
            return
        self._prefill_s[effect.key] = effect.prefill_s
        now = self.hub.clock.now
        self._run(self.source.prefilled(now, effect.key, effect.tokens, effect.blocks, effect.output_ids))

    def ended(self, key: Key) -> None:
        """The request is over on this node, whyever. Unknown keys are not ours."""
        link = self._where.get(key)
        if link is None:
            return
        if link.waiting is not None and link.waiting.pop(key, None) is not None:
            self._released(key)
        else:
            self._run(self.source.abort(self.hub.clock.now, key))

    def stop(self) -> None:
        self.stopped = self.writer.stopped = True
        self.hub.clock.cancel(self._timer)
        for link in self.links.values():
            link.stream.alive = False
            self.hub.clock.cancel(link.beat)

    # ---- links -------------------------------------------------------------------------------------------

    def _add(self, target: str, incarnation: str, one: Waiting) -> None:
        link = self.links.get(f"{target}/{incarnation}") or self._open(target, incarnation)
        self._where[one.key] = link
        if link.waiting is None:
            self._begin(link, one)
        else:
            link.waiting[one.key] = one

    def _open(self, target: str, incarnation: str) -> OutLink:
        stream = Stream(self.node_id, self.incarnation, target, incarnation)
        link = self.links[f"{target}/{incarnation}"] = OutLink(f"{target}/{incarnation}", stream)
        self.hub.network.send(self.node_id, target, _hello, self.hub, stream, self)
        return link

    def answered(self, stream: Stream, peer: PeerPool | None) -> None:
        """The peer's Hello; None: there is no such process."""
        link = self._link(stream)
        if link is None or self.stopped:
            return
        if peer is None:
            self.down(stream, Unavailable(f"decode node {link.name} cannot be reached"))
            return
        link.peer = peer
        link.up, link.owed, link.tries = True, False, 0
        waiting, link.waiting = link.waiting or {}, None
        for one in waiting.values():
            self._begin(link, one)

    def down(self, stream: Stream, error: BatonError) -> None:
        """Whatever was on the link has failed; until its writes are over, new requests wait for a new one."""
        link = self._link(stream)
        if link is None or self.stopped:
            return
        stream.alive = False
        link.up, link.owed = False, link.owed or link.up
        waiting, link.waiting = link.waiting or {}, {}
        for key in waiting:
            self.port.fail(key, error)
            self._released(key)
        self._run(self.source.link_lost(self.hub.clock.now, link.name))
        self._settle(link)

    def _settle(self, link: OutLink) -> None:
        """Once the old link's writes are over: those who waited get a new one, and so does a living peer."""
        if link.up or link.stream.alive or not self.source.settled(link.name):
            return
        if self.links.get(link.name) is not link:
            return
        del self.links[link.name]
        if link.waiting:
            self._reopen(link)
        elif link.owed and link.tries < HELLO_TRIES:
            self.hub.clock.at(self.hub.clock.now + HELLO_PAUSE_S * 2.0**link.tries, self._reopen, link)

    def _reopen(self, old: OutLink) -> None:
        if self.stopped:
            return
        new = self.links.get(old.name) or self._open(old.stream.target, old.stream.target_incarnation)
        if not new.up and new.waiting is not None:
            new.waiting = {**new.waiting, **(old.waiting or {})}
            for key in old.waiting or {}:
                self._where[key] = new
            new.owed, new.tries = old.owed, old.tries + 1

    def _begin(self, link: OutLink, one: Waiting) -> None:
        assert link.peer is not None
        link.exports += 1
        if link.beat is None:
            self._arm_beat(link)
        now = self.hub.clock.now
        if one.loan is not None:
            self._run(self.source.lend(now, link.name, link.peer, one.key, one.loan, one.blocks))
            return
        assert one.request is not None
        self._run(self.source.start(now, link.name, link.peer, one.request, ROUTER))
        if one.ready is not None:
            self.kv_ready(one.ready)
        if one.prefilled is not None:
            self.prefilled(one.prefilled)

    def _arm_beat(self, link: OutLink) -> None:
        link.beat = self.hub.clock.at(self.hub.clock.now + self.hub.cluster.lease_s / 4, self._beat, link)

    def _beat(self, link: OutLink) -> None:
        """A sign of life prolongs leases of transfers: with none under way it says nothing."""
        link.beat = None
        if link.exports and link.up:
            self._say(link, "beat")
            self._arm_beat(link)

    def _link(self, stream: Stream) -> OutLink | None:
        link = self.links.get(f"{stream.target}/{stream.target_incarnation}")
        return link if link is not None and link.stream is stream else None

    def _waiting(self, key: Key) -> Waiting | None:
        link = self._where.get(key)
        return None if link is None or link.waiting is None else link.waiting.get(key)

    # ---- the peer's word -----------------------------------------------------------------------------------

    def ticket(self, stream: Stream, ticket: Ticket) -> None:
        if self._hears(stream):
            self._run(self.source.ticket(self.hub.clock.now, ticket))

    def refused(self, stream: Stream, transfer_id: int, error: BatonError) -> None:
        if self._hears(stream):
            name = f"{stream.target}/{stream.target_incarnation}"
            self._run(self.source.refused(self.hub.clock.now, name, transfer_id, error))

    def committed(self, stream: Stream, transfer_id: int) -> None:
        if self._hears(stream):
            name = f"{stream.target}/{stream.target_incarnation}"
            self._run(self.source.committed(self.hub.clock.now, name, transfer_id))

    def revoke(self, stream: Stream, transfer_id: int) -> None:
        if self._hears(stream):
            name = f"{stream.target}/{stream.target_incarnation}"
            self._run(self.source.revoke(self.hub.clock.now, name, transfer_id))

    def _hears(self, stream: Stream) -> bool:
        return stream.alive and not self.stopped

    # ---- effects -----------------------------------------------------------------------------------------

    def _run(self, effects: Iterable[handoff.SourceEffect]) -> None:
        self.hub.touched.add(self.node_id)
        for effect in effects:
            self._carry_out(effect)
        wakeup = self.source.next_wakeup()
        if wakeup is not None and (self._timer is None or wakeup < self._timer_s):
            self.hub.clock.cancel(self._timer)
            self._timer_s = wakeup
            self._timer = self.hub.clock.at(wakeup, self._expire)

    def _expire(self) -> None:
        self._timer = None
        self._run(self.source.expire(self.hub.clock.now))

    def _carry_out(self, effect: handoff.SourceEffect) -> None:
        match effect:
            case handoff.SubmitWrite(link, write):
                self.writer.submit(self.links[link], write)
            case handoff.SendReserve(link, transfer_id, router_id, request):
                self._say(self.links[link], "reserve", transfer_id, request, router_id)
            case handoff.SendOffer(link, transfer_id, loan):
                self._say(self.links[link], "offer", transfer_id, loan)
            case handoff.SendCommit(link, transfer_id, tokens, output_ids):
                self._say(self.links[link], "commit", transfer_id, tokens, output_ids)
            case handoff.HandedOff(key, transfer_s, payload_bytes):
                self.port.handed_off(key, self._prefill_s.get(key, 0.0), transfer_s, payload_bytes)
            case handoff.Release(key):
                self._where[key].exports -= 1
                self._released(key)
            case handoff.SendAbandon(link, transfer_id):
                self._say(self.links.get(link), "abandon", transfer_id, False)
            case handoff.SendRevoked(link, transfer_id):
                self._say(self.links.get(link), "abandon", transfer_id, True)
            case handoff.CancelWrites(_, transfer_id):
                self.writer.cancel(transfer_id)
            case handoff.TransferFailed(key, error):
                self.port.fail(key, error)

    def _say(self, link: OutLink | None, what: str, *arguments: object) -> None:
        if link is not None and link.stream.alive:
            self.hub.network.send(
                self.node_id, link.stream.target, _say, self.hub, link.stream, what, arguments
            )

    def _released(self, key: Key) -> None:
        self._where.pop(key, None)
        self._prefill_s.pop(key, None)
        self.port.ended(key)

    def _completed(self, link: OutLink, completion: Completion) -> None:
        if self.stopped:
            return
        if completion.outcome is Outcome.APPLIED and completion.payload_bytes:
            self.port.wrote(completion.payload_bytes, completion.seconds)
        self._run(self.source.completion(self.hub.clock.now, completion))
        self._settle(link)


def _hello(hub: Hub, stream: Stream, exporter: Exporter) -> None:
    """At the target's host: is there such a process?"""
    node = hub.nodes.get(stream.target)
    peer = None
    if node is not None and node.incarnation == stream.target_incarnation and stream.alive:
        node.importer.hello(stream)
        peer = PeerPool(node.spec.profile.block_size, node.spec.profile.num_blocks)
    hub.network.send(stream.target, stream.source, exporter.answered, stream, peer)


def _say(hub: Hub, stream: Stream, what: str, arguments: tuple[object, ...]) -> None:
    node = hub.nodes.get(stream.target)
    if stream.alive and node is not None and node.incarnation == stream.target_incarnation:
        node.importer.hear(stream, what, arguments)


def exporter_of(hub: Hub, node_id: str, incarnation: str) -> Exporter | None:
    """Of that process, if it still runs."""
    node: SimNode | None = hub.nodes.get(node_id)
    return node.exporter if node is not None and node.incarnation == incarnation else None
