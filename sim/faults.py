"""What goes wrong in a run, and when: a plan of values, carried out on a world."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from baton.core.errors import Unavailable
from baton.core.load import Role
from baton.router.events import Cancelled, OperatorDrain, OperatorRole
from baton.sim.exporter import exporter_of
from baton.sim.hub import ROUTER, Hub
from baton.sim.node import SimNode

if TYPE_CHECKING:
    from baton.sim.world import World


@dataclass(frozen=True, slots=True)
class Kill:
    """The process dies; another takes its name after `restart_s` (None: none does). silent: its machine goes
    with it, so that nothing closes its streams, and peers notice only after the network's `detect_s`."""

    at_s: float
    node_id: str
    restart_s: float | None = None
    silent: bool = False


@dataclass(frozen=True, slots=True)
class Slow:
    """Its steps take `pace` times as long from then on."""

    at_s: float
    node_id: str
    pace: float


@dataclass(frozen=True, slots=True)
class Apart:
    """These nodes can reach each other, but neither the router nor any other node, for `for_s`."""

    at_s: float
    node_ids: tuple[str, ...]
    for_s: float


@dataclass(frozen=True, slots=True)
class Stale:
    """Its load reports come `delay_s` late from then on."""

    at_s: float
    node_id: str
    delay_s: float


@dataclass(frozen=True, slots=True)
class TakeRole:
    """An operator changes its role."""

    at_s: float
    node_id: str
    role: Role


@dataclass(frozen=True, slots=True)
class Drain:
    at_s: float
    node_id: str
    draining: bool = True


@dataclass(frozen=True, slots=True)
class Cancel:
    """The client of arrival `number` goes away, if it still waits."""

    at_s: float
    number: int


Fault = Kill | Slow | Apart | Stale | TakeRole | Drain | Cancel


def carry_out(world: World, fault: Fault) -> None:
    """Now. Of nodes that do not run at the moment nothing is heard."""
    hub, router = world.hub, world.router
    match fault:
        case Kill(_, node_id, restart_s, silent):
            if node_id in hub.nodes:
                _kill(hub, hub.nodes.pop(node_id), silent=silent)
                if restart_s is not None:
                    hub.clock.at(hub.clock.now + restart_s, world.start_node, node_id)
        case Slow(_, node_id, pace):
            if node_id in hub.nodes:
                hub.nodes[node_id].engine.set_pace(pace)
        case Stale(_, node_id, delay_s):
            hub.report_delays[node_id] = delay_s
        case Apart(_, node_ids, for_s):
            _part(hub, node_ids, for_s)
        case TakeRole(_, node_id, role):
            if node_id in router.members:
                router.post(OperatorRole(node_id, role))
        case Drain(_, node_id, draining):
            if node_id in router.members:
                router.post(OperatorDrain(node_id, draining))
        case Cancel(_, number):
            for name in [name for name, one in world.clients.open.items() if one.number == number]:
                router.post(Cancelled(name))


# ---- death -----------------------------------------------------------------------------------------------


def _kill(hub: Hub, node: SimNode, *, silent: bool) -> None:
    node.stop()
    clock = hub.clock
    notice_s = hub.network.spec.detect_s if silent else hub.network.spec.latency_s
    clock.at(clock.now + notice_s, _noticed, hub, node, f"process {node.incarnation} is gone")


def _noticed(hub: Hub, node: SimNode, why: str) -> None:
    """Its peers' streams break."""
    hub.flows.stop_all(node.node_id)
    hub.inbox.lost(node.node_id, node.incarnation, why)
    for other in hub.nodes.values():
        other.lending.broke(f"{node.node_id}/{node.incarnation}")
    for out in list(node.exporter.links.values()):
        peer = hub.nodes.get(out.stream.target)
        if peer is not None and peer.incarnation == out.stream.target_incarnation:
            peer.importer.lost(out.stream, dead=True)
    for link in list(node.importer.links.values()):
        exporter = exporter_of(hub, link.stream.source, link.stream.source_incarnation)
        if exporter is not None:
            exporter.down(link.stream, Unavailable(why))


# ---- partitions ------------------------------------------------------------------------------------------


def _part(hub: Hub, node_ids: Sequence[str], for_s: float) -> None:
    others = [ROUTER, *(name for name in hub.nodes if name not in node_ids)]
    for node in list(hub.nodes.values()):
        node.tell_all()
    for name in node_ids:
        for other in others:
            hub.flows.stop_between(name, other)
    hub.network.part(node_ids, others)
    clock = hub.clock
    if for_s > hub.network.spec.detect_s:
        clock.at(clock.now + hub.network.spec.detect_s, _broken, hub, tuple(node_ids), tuple(others))
    clock.at(clock.now + for_s, _whole, hub, tuple(node_ids))


def _broken(hub: Hub, one: Sequence[str], other: Sequence[str]) -> None:
    """It lasts: all streams between the two sides break, at both ends."""
    for name in one:
        node = hub.nodes.get(name)
        if node is not None:
            hub.inbox.lost(name, node.incarnation, "unreachable")
            node.detach()
        for far in other:
            hub.network.drop(name, far)
            _break_links(hub, name, far)
            _break_links(hub, far, name)


def _break_links(hub: Hub, source: str, target: str) -> None:
    writer, reader = hub.nodes.get(source), hub.nodes.get(target)
    if writer is None:
        return
    for link in [link for link in writer.exporter.links.values() if link.stream.target == target]:
        stream = link.stream
        if reader is not None and reader.incarnation == stream.target_incarnation:
            reader.importer.lost(stream, dead=False)
        writer.exporter.down(stream, Unavailable(f"the link to {target} broke"))


def _whole(hub: Hub, node_ids: Sequence[str]) -> None:
    """All reach all again; nodes that the router gave up announce themselves anew."""
    hub.network.join()
    for name in node_ids:
        if (node := hub.nodes.get(name)) is not None and not node.attached:
            node.attach()
