"""A simulated node process: NodeCore in a modelled engine, and where its effects go, as in `node.shell`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

from baton.core.errors import BatonError, Unavailable
from baton.core.load import LoadReport, Role
from baton.core.node_effects import (
    DropLink,
    Ended,
    Fence,
    FetchOver,
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
from baton.kv_transfer.handoff_source import HandoffSource
from baton.node import commands as cmd
from baton.node.core import Admitted, KvChange, Lent, Misbehaved, Out
from baton.router.events import Fetch, HandedOff, KvChanged, TokensMade
from baton.sim.build import node_core, node_info, tried
from baton.sim.engine import Engine
from baton.sim.events import node_event
from baton.sim.exporter import Exporter, ExportPort
from baton.sim.hosted_engine import HostedEngine
from baton.sim.hub import ROUTER, Hub
from baton.sim.importer import Importer
from baton.sim.lending import Lending
from baton.sim.reporter import Reporter
from baton.sim.spec import NodeSpec


class SimNode:
    """One incarnation. owners: requests whose events go to the router, and whether their first token is out.

    Where steps are taken in leaps, later tokens are told with the end, or when somebody may miss them: when
    they come means nothing to the router's machine, but for the last.
    """

    def __init__(self, hub: Hub, spec: NodeSpec, life: int, role: Role | None = None) -> None:
        self.hub = hub
        self.spec = spec
        self.node_id = spec.node_id
        self.incarnation = f"{spec.node_id}.{life}"
        self.draining = False
        self.attached = True
        self.core = node_core(spec, hub.cluster, role or spec.role)
        self.info = node_info(spec, self.incarnation, self.core)
        dice = hub.dice(self.incarnation)
        source = HandoffSource(spec.profile.block_size, first_id=1 + dice.getrandbits(48))
        beside = spec.profile.beside
        self.engine = (
            HostedEngine(hub, self.core, spec, dice, self._on_outs, beside)
            if spec.host and beside is not None
            else Engine(hub, self.core, spec, dice, self._on_outs)
        )
        self.reporter = Reporter(hub, self.engine, self._report)
        port = ExportPort(self._fail, self._export_ended, self._handed_off, self.reporter.transferred)
        self.exporter = Exporter(hub, spec.node_id, self.incarnation, spec.profile, source, port)
        block_size = spec.profile.block_size
        self.importer = Importer(
            hub, spec.node_id, self.incarnation, block_size, self.core.sink, self.engine.post
        )
        self.lending = Lending(
            hub, spec.node_id, self.incarnation, block_size, self.exporter, self.engine.post
        )
        self.owners: dict[Key, bool] = {}
        self._tried = tried(spec) if hub.cluster.calibrated else ((), ())
        self._held: dict[Key, list[TokensOut]] = {}
        self._events: list[Any] = []
        self._effects: dict[type, Callable[[Any], None]] = {
            Started: self._started,
            TokensOut: self._tell,
            Ended: self._ended,
            KvReady: self.exporter.kv_ready,
            Prefilled: self.exporter.prefilled,
            Admitted: self._admitted,
            KvChange: self._kv_changed,
            Misbehaved: self._misbehaved,
            Lent: self.lending.lent,
            FetchOver: lambda out: None,
        }
        for kind in (SendTicket, SendRefusal, SendCommitted, SendRevoke, Fence, DropLink):
            self._effects[kind] = self.importer.carry_out
        hub.flows.rates[spec.node_id] = spec.profile.nic_bytes_s

    # ---- the router's calls --------------------------------------------------------------------------------

    def prefill(
        self, request: Request, target: str, incarnation: str, fetch: Fetch | None = None, lender: str = ""
    ) -> None:
        """Take a request, or raise why not. lender: the incarnation of the node to fetch from."""
        if self.draining:
            raise Unavailable(f"node {self.node_id} is draining")
        key = request.id, request.attempt
        if key in self.owners:
            raise Unavailable(f"attempt {request.attempt} of request {request.id} is here already")
        in_place = target == self.node_id
        if in_place and incarnation != self.incarnation:
            raise Unavailable(f"node {self.node_id} was restarted")
        now = self.hub.clock.now
        deadline_s = None if request.timeout_s is None else now + request.timeout_s
        if not in_place:
            self.exporter.start(request, target, incarnation)
        self.owners[key] = False
        wanted = None
        if fetch is not None:
            wanted = cmd.Fetch(f"{fetch.node_id}/{lender}", fetch.tokens, fetch.patience_s)
        self.engine.post(cmd.Add(request, deadline_s, in_place, wanted))
        if fetch is not None:
            self.lending.ask(request, fetch, lender)

    def abort(self, key: Key) -> None:
        self._held.pop(key, None)
        self.engine.post(cmd.AbortKeys((key,)))

    def set_role(self, role: Role) -> None:
        self.hub.roles.append((self.hub.clock.now, self.node_id, role.value))
        self.engine.post(cmd.SetRole(role))

    def set_draining(self, draining: bool) -> None:
        self.draining = draining
        self.engine.post(cmd.SetDraining(draining))

    def attach(self) -> None:
        """Announce this process to the router."""
        self.attached = True
        info = replace(self.info, load=self.core.load())
        self.hub.network.send(self.node_id, ROUTER, self.hub.inbox.joined, info)

    def detach(self) -> None:
        """The router's stream broke: whatever it had here is aborted."""
        self.attached = False
        if self.owners:
            self.engine.post(cmd.AbortKeys(tuple(sorted(self.owners))))

    def stop(self) -> None:
        """The process dies. What it said before is on its way."""
        self.engine.stop()
        self.tell_all()
        self.reporter.stop()
        self.exporter.stop()
        self.importer.stop()

    # ---- effects -----------------------------------------------------------------------------------------

    def _on_outs(self, outs: Sequence[Out]) -> None:
        effects = self._effects
        for out in outs:
            effects[type(out)](out)
        self.reporter.changed()
        if self._events:
            self._send_events()

    def _send_events(self) -> None:
        events, self._events = self._events, []
        if events:
            self.hub.network.send(
                self.node_id, ROUTER, self.hub.inbox.events, self.node_id, self.incarnation, events
            )

    def tell_all(self) -> None:
        """Whatever tokens have not been told yet."""
        self.engine.settle()
        for key in list(self._held):
            self._tell_held(key)
        self._send_events()

    def _started(self, out: Started) -> None:
        self.lending.over(out.key)
        self._tell(out)

    def _tell(self, out: Started | TokensOut) -> None:
        first_is_out = self.owners.get(out.key)
        if first_is_out is None:
            return
        if isinstance(out, TokensOut):
            if first_is_out and self.hub.leaps:
                self._held.setdefault(out.key, []).append(out)
                return
            self.owners[out.key] = True
        self._events.append(node_event(self.node_id, out))

    def _tell_held(self, key: Key) -> None:
        outs = self._held.pop(key, None)
        if outs:
            ids = tuple(chain.from_iterable([out.token_ids for out in outs]))
            self._events.append(TokensMade(*key, self.node_id, outs[0].index, ids))

    def _admitted(self, out: Admitted) -> None:
        self.owners[out.key] = True
        if not self.attached:  # its router has gone by now: nobody to tell
            self.engine.post(cmd.AbortKeys((out.key,)))

    def _ended(self, out: Ended) -> None:
        if self.owners.pop(out.key, None) is not None:
            self._tell_held(out.key)
            if not out.silent:
                self._events.append(node_event(self.node_id, out))
        self.exporter.ended(out.key)
        self.lending.over(out.key)

    def _kv_changed(self, out: KvChange) -> None:
        events = out.events
        self._events.append(
            KvChanged(self.node_id, self.incarnation, tuple(events.stored), tuple(events.removed))
        )

    def _misbehaved(self, out: Misbehaved) -> None:
        raise AssertionError(f"{out.link} broke the hand-off protocol: {out.error}")

    # ---- the exporter's port -----------------------------------------------------------------------------

    def _fail(self, key: Key, error: BatonError) -> None:
        self.engine.post(cmd.Fail(key, error))

    def _export_ended(self, key: Key) -> None:
        self.lending.ended(key)
        self.engine.post(cmd.ExportEnded(key))

    def _handed_off(self, key: Key, prefill_s: float, transfer_s: float, payload_bytes: int) -> None:
        if key in self.owners:
            del self.owners[key]
            self._events.append(HandedOff(*key, self.node_id, prefill_s, transfer_s, payload_bytes))
            self._send_events()
        else:
            self.lending.sent(key)

    def _report(self, samples: tuple[tuple[int, float], ...]) -> None:
        load, most = self.core.load(), self.hub.cluster.report_samples
        tried, self._tried = self._tried, ((), ())
        load = replace(
            load,
            age_s=self.engine.age_s,
            prefill_samples=tried[0] + load.prefill_samples[-most:],
            decode_samples=tried[1] + load.decode_samples[-most:],
            transfer_samples=samples[-most:],
        )
        delay_s = self.hub.report_delays.get(self.node_id, 0.0)
        if delay_s:
            self.hub.clock.at(self.hub.clock.now + delay_s, self._send_report, load)
        else:
            self._send_report(load)

    def _send_report(self, load: LoadReport) -> None:
        inbox = self.hub.inbox
        self.hub.network.send(self.node_id, ROUTER, inbox.reported, self.node_id, self.incarnation, load)
