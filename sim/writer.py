"""KV writes of a simulated node: a fixed cost each, then their bytes at the rate that the links give."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from baton.kv_transfer.writes import Completion, Outcome, Write
from baton.sim.clock import Entry
from baton.sim.flows import Flow
from baton.sim.hub import Hub
from baton.sim.link import OutLink
from baton.sim.spec import Profile


@dataclass(slots=True)
class Writer:
    """completed: called once for each write, when the target's word is back."""

    hub: Hub
    node_id: str
    profile: Profile
    completed: Callable[[OutLink, Completion], None]
    stopped: bool = False
    _under_way: dict[int, dict[int, Flow | Entry]] = field(default_factory=dict)  # by transfer, by write

    def submit(self, link: OutLink, write: Write) -> None:
        clock, spec = self.hub.clock, self.profile
        writes = self._under_way.setdefault(write.transfer_id, {})
        lead_s = spec.write_s + self.hub.network.spec.latency_s
        payload = (write.end - write.start) * spec.kv_bytes_per_token
        writes[write.write_id] = clock.at(clock.now + lead_s, self._begin, link, write, clock.now, payload)

    def cancel(self, transfer_id: int) -> None:
        """Stop the transfer's writes; their completions still come."""
        for under_way in list(self._under_way.get(transfer_id, {}).values()):
            if isinstance(under_way, Flow):
                self.hub.flows.stop(under_way)
            elif under_way[2] is not None:
                link, write, begun_s, _ = under_way[3]
                self.hub.clock.cancel(under_way)
                self._landed(link, write, begun_s, 0)

    def _begin(self, link: OutLink, write: Write, begun_s: float, payload: int) -> None:
        if self.stopped:
            return

        def done(whole: bool) -> None:
            self._landed(link, write, begun_s, payload if whole else 0)

        flow = self.hub.flows.start(self.node_id, link.stream.target, payload, done)
        self._under_way[write.transfer_id][write.write_id] = flow

    def _landed(self, link: OutLink, write: Write, begun_s: float, payload: int) -> None:
        """At the target now (0: given up); the completion is known here after the way back."""
        clock, target = self.hub.clock, self.hub.nodes.get(link.stream.target)
        outcome, why = Outcome.CANCELLED, ""
        if payload:
            outcome, why = Outcome.FAILED, "the target does not take it"
            if target is not None and target.incarnation == link.stream.target_incarnation:
                outcome = target.importer.landed(link.stream, write)
        applied = payload if outcome is Outcome.APPLIED else 0
        completion = Completion(write.write_id, write.transfer_id, outcome, applied, clock.now - begun_s, why)
        clock.at(clock.now + self.hub.network.spec.latency_s, self._back, link, completion)

    def _back(self, link: OutLink, completion: Completion) -> None:
        writes = self._under_way[completion.transfer_id]
        del writes[completion.write_id]
        if not writes:
            del self._under_way[completion.transfer_id]
        self.completed(link, completion)
