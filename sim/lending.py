"""KV that simulated nodes fetch from each other: who asks whom, as in `prefill_node.fetcher` and
`node.lending`. What comes of it is a hand-off like any other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from baton.core.node_effects import Key
from baton.core.prefix import chain, root_key
from baton.core.request import Request
from baton.kv_transfer.handoff import Loan
from baton.node import commands as cmd
from baton.node.core import Lent
from baton.router.events import Fetch
from baton.sim.build import FINGERPRINT
from baton.sim.exporter import Exporter
from baton.sim.hub import Hub

if TYPE_CHECKING:
    from baton.sim.node import SimNode


@dataclass(frozen=True, slots=True)
class Asked:
    """key: of the request there."""

    key: Key
    keys: tuple[bytes, ...]
    node_id: str
    incarnation: str


@dataclass(slots=True)
class Lending:
    """Both sides of one node."""

    hub: Hub
    node_id: str
    incarnation: str
    block_size: int
    exporter: Exporter
    post: Callable[[cmd.Command], None]
    _asked: dict[Key, Asked] = field(default_factory=dict)  # of this node, by the loan's name
    _asking: dict[Key, str] = field(default_factory=dict)  # the lender's link, by request

    def ask(self, request: Request, fetch: Fetch, incarnation: str) -> None:
        """The request is in the engine's mailbox."""
        root = root_key(salt=request.salt, revision=FINGERPRINT.weights)
        keys = tuple(chain(root, request.token_ids[: fetch.tokens], self.block_size))
        asked = Asked((request.id, request.attempt), keys, self.node_id, self.incarnation)
        self._asking[asked.key] = f"{fetch.node_id}/{incarnation}"
        self.hub.network.send(self.node_id, fetch.node_id, _ask, self.hub, fetch.node_id, incarnation, asked)

    def over(self, key: Key) -> None:
        """The request waits no longer."""
        self._asking.pop(key, None)

    def broke(self, link: str) -> None:
        """That node's process is gone, and with it all calls to it."""
        for key in [key for key, lender in self._asking.items() if lender == link]:
            del self._asking[key]
            self.post(cmd.FetchFailed(key))

    def asked(self, one: Asked) -> None:
        name = f"loan {one.node_id}/{one.incarnation} {one.key[0]}", one.key[1]
        self._asked[name] = one
        self.post(cmd.Lend(name, one.keys))

    def lent(self, out: Lent) -> None:
        """The engine's answer."""
        if out.error is not None:
            self.ended(out.key)
            return
        one = self._asked[out.key]
        blocks = len(out.blocks)
        loan = Loan(one.key, blocks * self.block_size, one.keys[blocks - 1])
        self.exporter.lend(out.key, loan, out.blocks, one.node_id, one.incarnation)

    def sent(self, key: Key) -> None:
        """A hand-off was committed; of a loan or, then that is no matter, of a request."""
        self._asked.pop(key, None)

    def ended(self, key: Key) -> None:
        """It is over; likewise."""
        if one := self._asked.pop(key, None):
            _refuse(self.hub, self.node_id, one)


def _ask(hub: Hub, node_id: str, incarnation: str, asked: Asked) -> None:
    """At the lender's host."""
    lender: SimNode | None = hub.nodes.get(node_id)
    if lender is not None and lender.incarnation == incarnation:
        lender.lending.asked(asked)
    else:
        _refuse(hub, node_id, asked)


def _refuse(hub: Hub, node_id: str, asked: Asked) -> None:
    hub.network.send(node_id, asked.node_id, _refused, hub, asked)


def _refused(hub: Hub, asked: Asked) -> None:
    asker: SimNode | None = hub.nodes.get(asked.node_id)
    if asker is not None and asker.incarnation == asked.incarnation:
        asker.lending.post(cmd.FetchFailed(asked.key))
