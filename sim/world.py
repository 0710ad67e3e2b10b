"""A seeded cluster in one process: the router's own machine, the nodes' own schedulers, modelled time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from random import Random

from baton.core.load import Role
from baton.router.events import Arrived
from baton.router.machine import RouterMachine
from baton.router.machine_config import RouterConfig
from baton.router.policy import Chooser
from baton.sim.check import check_node, leftovers
from baton.sim.clients import START_S, Clients, ClientSpec, Open
from baton.sim.clock import Clock
from baton.sim.failure import SimulationError
from baton.sim.faults import Fault, carry_out
from baton.sim.flows import Flows
from baton.sim.hub import Hub
from baton.sim.network import Network
from baton.sim.node import SimNode
from baton.sim.results import RequestResult, Summary, summarise
from baton.sim.router import SimRouter, Watcher
from baton.sim.spec import ClusterSpec
from baton.sim.workload.arrival import Arrival


@dataclass(frozen=True, slots=True)
class Checks:
    """every: invariants of all nodes are checked after every so many events; 1: after every one, where
    something happened; 0: never. settle_s: how long after the last
    answer nothing may be left on nodes. limit_s: simulated seconds after the last arrival by which all have
    ended."""

    every: int = 1
    settle_s: float = 15.0
    limit_s: float = 3600.0


@dataclass(frozen=True, slots=True)
class Options:
    """leaps: steps of a node whose batch stays the same are taken together; the results are the same."""

    clients: ClientSpec = field(default_factory=ClientSpec)
    checks: Checks = field(default_factory=Checks)
    leaps: bool = True
    faults: tuple[Fault, ...] = ()


@dataclass(slots=True)
class Results:
    """requests: in the order in which they ended. busy: share of its time that each node's engine ran."""

    requests: list[RequestResult]
    seconds: float
    events: int
    busy: dict[str, float] = field(default_factory=dict)
    roles: list[tuple[float, str, str]] = field(default_factory=list)  # (when, node id, role it took)

    def summary(self) -> Summary:
        return summarise(self.requests)


class World:
    """`run` once. policy: None: what `router` names."""

    def __init__(
        self,
        cluster: ClusterSpec,
        seed: int = 0,
        router: RouterConfig | None = None,
        policy: Chooser | None = None,
        options: Options | None = None,
        watch: Watcher | None = None,
    ) -> None:
        self.cluster = cluster
        self.seed = seed
        options = options or Options()
        self.checks = options.checks
        config = router or RouterConfig()
        clock = self.clock = Clock()
        network = Network(clock, cluster.network, Random(f"{seed}/network"))
        hub = Hub(clock, network, Flows(clock), cluster, seed, leaps=options.leaps, beat_s=config.lease_s / 3)
        self.hub = hub
        self.clients = Clients(options.clients, cluster.network.client_s, self._again)
        self.router = SimRouter(hub, RouterMachine(config, policy), self.clients, watch)
        hub.inbox = self.router
        self._lives: dict[str, int] = {}
        self._specs = {node.node_id: node for node in cluster.nodes}
        self._arrivals: Iterator[Arrival] = iter(())
        self._more = False
        self._number = 0
        self._last_s = 0.0
        for node in cluster.nodes:
            self.start_node(node.node_id)
        for fault in options.faults:
            self.clock.at(START_S + fault.at_s, carry_out, self, fault)

    # ---- nodes -------------------------------------------------------------------------------------------

    def start_node(self, node_id: str, role: Role | None = None) -> SimNode:
        """A new process takes up the node's name."""
        assert node_id not in self.hub.nodes, f"{node_id} runs already"
        life = self._lives[node_id] = self._lives.get(node_id, 0) + 1
        node = SimNode(self.hub, self._specs[node_id], life, role)
        self.hub.nodes[node_id] = node
        self.hub.roles.append((self.clock.now, node_id, node.core.role.value))
        node.attach()
        return node

    # ---- the run -----------------------------------------------------------------------------------------

    def run(self, arrivals: Iterable[Arrival]) -> Results:
        """Until all of them have ended and nothing is left of them. Times of arrivals count from START_S on.

        SimulationError: an invariant broke; it names the seed and the event.
        """
        self._arrivals = iter(arrivals)
        self._more = True
        try:
            self._next_arrival()
            while self._more:
                self._step()
            while self.clients.open or self.clients.waiting:
                self._step()
                late_s = self.clock.now - self._last_s
                assert late_s < self.checks.limit_s, "requests that never end"
            self._settle()
        except Exception as error:
            raise SimulationError(
                f"seed {self.seed}, event {self.clock.fired} at {self.clock.now:.6f} s: {error!r}"
            ) from error
        return self._results()

    def _step(self) -> None:
        assert self.clock.step(), "nothing happens any more"
        every = self.checks.every
        if every == 1:
            self._check_touched()
        elif every and self.clock.fired % every == 0:
            self.check()

    def _check_touched(self) -> None:
        touched, self.hub.touched = self.hub.touched, set()
        for name in touched:
            if (node := self.hub.nodes.get(name)) is not None:
                check_node(node)
        self.router.machine.check()

    def check(self) -> None:
        """Raise AssertionError unless all invariants hold now."""
        for node in self.hub.nodes.values():
            check_node(node)
        self.router.machine.check()

    def _settle(self) -> None:
        """What is under way comes to its end; then nothing may be left."""
        until_s = self.clock.now + self.checks.settle_s
        names = list(self.hub.nodes)  # of those that may have something left
        while (next_s := self.clock.next()) is not None and next_s <= until_s:
            while names and self._empty(names[-1:]):
                names.pop()
            if not names:
                if self._empty(self.hub.nodes):
                    break
                names = list(self.hub.nodes)
            self._step()
        machine = self.router.machine
        assert machine.queued == machine.in_flight == 0, "the router's machine remembers requests"
        left = [what for node in self.hub.nodes.values() for what in leftovers(node)]
        assert not left, "; ".join(left[:8])
        if self.checks.every:
            self.check()

    def _empty(self, names: Iterable[str]) -> bool:
        nodes = (self.hub.nodes.get(name) for name in names)
        return not any(leftovers(node) for node in nodes if node is not None)

    # ---- arrivals ----------------------------------------------------------------------------------------

    def _next_arrival(self) -> None:
        arrival = next(self._arrivals, None)
        if arrival is None:
            self._more = False
            return
        number, self._number = self._number, self._number + 1
        when = START_S + arrival.at_s + self.cluster.network.client_s
        assert when >= self._last_s, "arrivals are not in order"
        self._last_s = when
        self.clock.at(when, self._arrive, Open(arrival, number))

    def _arrive(self, one: Open) -> None:
        self._next_arrival()
        self._ask(one)

    def _again(self, pause_s: float, one: Open) -> None:
        pause_s += 2 * self.cluster.network.client_s
        self.clock.at(self.clock.now + pause_s, self._ask_again, one)

    def _ask_again(self, one: Open) -> None:
        self.clients.waiting -= 1
        self._ask(one)

    def _ask(self, one: Open) -> None:
        timeout_s = self.clients.spec.timeout_s
        deadline_s = None if timeout_s is None else self.clock.now + timeout_s
        self.router.post(Arrived(self.clients.request(one), deadline_s))

    def _results(self) -> Results:
        busy = {name: node.engine.busy_s / self.clock.now for name, node in self.hub.nodes.items()}
        return Results(self.clients.results, self.clock.now, self.clock.fired, busy, self.hub.roles)
