"""The decode side of all hand-offs of a simulated node: messages of writers in, the sink's effects back out,
as `decode_node.service` does. Watches that no KV lands where it must not, and none is missing at a commit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from baton.core.errors import Unavailable
from baton.core.node_effects import DropLink, Fence, SendCommitted, SendRefusal, SendRevoke, SendTicket
from baton.kv_transfer.handoff import Ticket
from baton.kv_transfer.handoff_sink import HandoffSink
from baton.kv_transfer.writes import Outcome, Write
from baton.node import commands as cmd
from baton.sim.exporter import exporter_of
from baton.sim.hub import Hub
from baton.sim.link import Grant, InLink, Stream

ImportEffect = SendTicket | SendRefusal | SendCommitted | SendRevoke | Fence | DropLink


@dataclass(slots=True)
class Importer:
    hub: Hub
    node_id: str
    incarnation: str
    block_size: int
    sink: HandoffSink
    post: Callable[[cmd.Command], None]
    links: dict[str, InLink] = field(default_factory=dict)
    stopped: bool = False

    # ---- writers -----------------------------------------------------------------------------------------

    def hello(self, stream: Stream) -> None:
        known = self.links.get(stream.link)
        if known is not None:
            known.stream.alive = False
            self.post(cmd.LinkReturned(stream.link))
            known.stream = stream
        else:
            self.links[stream.link] = InLink(stream)
        self.post(cmd.LinkBeat(stream.link))

    def hear(self, stream: Stream, what: str, arguments: tuple[Any, ...]) -> None:
        link = stream.link
        if what == "reserve":
            transfer_id, request, router_id = arguments
            self.post(cmd.Reserve(link, transfer_id, request, router_id))
        elif what == "offer":
            transfer_id, loan = arguments
            self.post(cmd.Offer(link, transfer_id, loan))
        elif what == "commit":
            transfer_id, tokens, output_ids = arguments
            self._check_whole(link, transfer_id, tokens)
            self.post(cmd.Commit(link, transfer_id, tokens, output_ids))
        elif what == "abandon":
            transfer_id, revoked = arguments
            if (known := self.links.get(link)) is not None:
                known.opened.pop(transfer_id, None)
            self.post(cmd.Abandon(link, transfer_id, revoked))
        else:
            self.post(cmd.LinkBeat(link))

    def landed(self, stream: Stream, write: Write) -> Outcome:
        """Bytes of a write have come. A transfer that is not open takes none."""
        link = self.links.get(stream.link)
        grant = None if link is None else link.opened.get(write.transfer_id)
        if grant is None:
            return Outcome.FAILED
        grant.land(write)
        return Outcome.APPLIED

    def lost(self, stream: Stream, *, dead: bool) -> None:
        """A writer's stream broke. dead: its process is known to be gone."""
        link = self.links.get(stream.link)
        if link is None or link.stream is not stream or self.stopped:
            return
        stream.alive = False
        self.post(cmd.LinkLost(stream.link))
        if dead:
            del self.links[stream.link]
            self.post(cmd.WriterDead(stream.link))

    def stop(self) -> None:
        self.stopped = True
        for link in self.links.values():
            link.stream.alive = False

    def _check_whole(self, name: str, transfer_id: int, tokens: int) -> None:
        link = self.links.get(name)
        grant = None if link is None else link.opened.get(transfer_id)
        if grant is not None:  # else it was fenced meanwhile: the sink refuses it
            assert grant.tokens == tokens, f"a commit of {tokens} tokens, {grant.tokens} of them applied"

    # ---- effects of the sink -----------------------------------------------------------------------------

    def carry_out(self, effect: ImportEffect) -> None:
        link = self.links.get(effect.link)
        match effect:
            case SendTicket(name, transfer_id, cached_tokens, blocks):
                if link is not None:
                    link.opened[transfer_id] = Grant(cached_tokens, blocks, self.block_size)
                    here = f"{self.node_id}/{self.incarnation}"
                    self._say(link, "ticket", Ticket(here, transfer_id, cached_tokens, blocks))
            case SendRefusal(_, transfer_id, error):
                self._say(link, "refused", transfer_id, error)
            case SendCommitted(_, transfer_id):
                if link is not None:
                    link.opened.pop(transfer_id, None)
                self._say(link, "committed", transfer_id)
            case SendRevoke(_, transfer_id):
                self._say(link, "revoke", transfer_id)
            case Fence(name, transfer_id):
                if link is None or transfer_id not in link.opened or self.hub.network.spec.fenced:
                    if link is not None:
                        link.opened.pop(transfer_id, None)
                    if self.sink.awaits_fence(name, transfer_id):
                        self.post(cmd.Fenced(name, transfer_id))
            case DropLink():
                if link is not None:
                    self._drop(link)

    def _say(self, link: InLink | None, what: str, *arguments: Any) -> None:
        if link is None or not link.stream.alive:
            return
        stream = link.stream
        self.hub.network.send(self.node_id, stream.source, _tell, self.hub, stream, what, arguments)

    def _drop(self, link: InLink) -> None:
        """End the stream; its writer hears of it, and may come back."""
        stream = link.stream
        stream.alive = False
        self.hub.network.send(self.node_id, stream.source, _tell_down, self.hub, stream)


def _tell(hub: Hub, stream: Stream, what: str, arguments: tuple[Any, ...]) -> None:
    exporter = exporter_of(hub, stream.source, stream.source_incarnation)
    if exporter is not None:
        getattr(exporter, what)(stream, *arguments)


def _tell_down(hub: Hub, stream: Stream) -> None:
    exporter = exporter_of(hub, stream.source, stream.source_incarnation)
    if exporter is not None:
        name = f"{stream.target}/{stream.target_incarnation}"
        exporter.down(stream, Unavailable(f"decode node {name} closed the hand-off link"))
