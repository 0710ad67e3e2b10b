"""Which nodes belong to this router, and what model they serve together."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from dataclasses import dataclass, field, replace

import structlog

from baton.core.errors import FailedPrecondition
from baton.core.load import LoadReport
from baton.core.model import PROTOCOL_VERSION, Fingerprint, ModelInfo
from baton.router.convert import node_info
from baton.router.driver import Driver
from baton.router.events import NodeJoined, NodeLost, NodeReported, Pair
from baton.router.kv_watch import watch_kv
from baton.router.links import NodeLink
from baton.runtime.codec_node import Registration
from baton.runtime.grpc_channel import TransportOptions

log = structlog.get_logger(__name__)

MAX_REFUSED = 64  # nodes
REFUSED_S = 2.0  # a refused node that is still there tries again sooner


@dataclass(slots=True, eq=False)
class Member:
    """One incarnation of a node. told: incompatible peers that its Announce stream has yet to tell it.
    announcing: how many such streams it has; expiry: when it counts as lost for having none."""

    facts: Registration
    link: NodeLink
    told: asyncio.Queue[Pair] = field(default_factory=asyncio.Queue)
    announcing: int = 0
    expiry: asyncio.TimerHandle | None = None
    lost: asyncio.Event = field(default_factory=asyncio.Event)
    lost_reason: str = ""
    watch: asyncio.Task[None] | None = None


@dataclass(frozen=True, slots=True)
class _Refusal:
    reason: str
    last_s: float


class Membership:
    """Nodes by id. A node joins once its Attach stream is up, and is lost once that breaks or its lease runs
    out; an Announce stream that breaks and comes back in between changes nothing.

    expected: what the fingerprint of every node must be; None: that of the first to come, for as long as
    this process lives. tokenizer: digest of the router's own vocabulary, "" where unknown.
    """

    def __init__(
        self,
        driver: Driver,
        router_id: str,
        transport: TransportOptions,
        *,
        tokenizer: str = "",
        expected: Fingerprint | None = None,
    ) -> None:
        self.members: dict[str, Member] = {}
        self._refused: dict[str, _Refusal] = {}  # by node id, the latest last
        self.router_id = router_id
        self._driver = driver
        self._transport = transport
        self._tokenizer = tokenizer
        self._served = expected
        self._model: ModelInfo | None = None
        self._joining: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._closing: set[asyncio.Task[None]] = set()
        self._stopping = False
        driver.on_pair = self._tell_pair

    def model(self, name: str) -> ModelInfo | None:
        """What can be asked of any of the nodes: the smallest of their limits. None before the first came;
        with all of them gone, what the last of them could do."""
        models = [member.facts.model for member in self.members.values()]
        if models:
            self._model = replace(
                models[0],
                max_model_len=min(model.max_model_len for model in models),
                vocab_size=min(model.vocab_size for model in models),
            )
        return self._model and replace(self._model, name=name)

    async def join(self, facts: Registration) -> Member:
        """FailedPrecondition: does not fit (the items are named). Unavailable: cannot be reached."""
        async with self._joining[facts.node_id]:
            old = self.members.get(facts.node_id)
            if old is not None and old.facts.incarnation == facts.incarnation:
                old.facts = facts
                self.report(old, facts.load)
                return old
            self._check(facts)
            if old is not None:
                old.link.lose(f"replaced by its incarnation {facts.incarnation}")
            link = NodeLink(facts, self.router_id, self._driver, self._lost, self._transport)
            await link.attach()
            member = Member(facts, link)
            self.members[facts.node_id] = member
            self._driver.ports[facts.node_id] = link
            self._refused.pop(facts.node_id, None)
            self._served = self._served or facts.model.fingerprint
            self._driver.post(NodeJoined(node_info(facts)))
            member.watch = asyncio.get_running_loop().create_task(watch_kv(link, self._driver))
            log.info("node joined", node=facts.node_id, role=facts.load.role.value, address=facts.address)
            return member

    def report(self, member: Member, load: LoadReport) -> None:
        self._driver.post(NodeReported(member.facts.node_id, member.facts.incarnation, load))

    def check_pairs(self) -> None:
        """FailedPrecondition: no nodes could serve a request, and some that would come do not fit."""
        since = self._driver.now() - REFUSED_S
        reasons = [refusal.reason for refusal in self._refused.values() if refusal.last_s > since]
        if reasons and not self._driver.machine.ready():
            raise FailedPrecondition("no two nodes fit together: " + "; ".join(reasons))

    async def close(self) -> None:
        self._stopping = True
        for member in list(self.members.values()):
            member.link.lose("the router stops")
        await asyncio.gather(*self._closing, return_exceptions=True)

    def _check(self, facts: Registration) -> None:
        mine = facts.model.fingerprint
        wanted = self._served or mine
        wanted = replace(
            wanted, protocol=str(PROTOCOL_VERSION), tokenizer=self._tokenizer or wanted.tokenizer
        )
        if items := mine.differing(wanted):
            raise FailedPrecondition(self._refuse(facts.node_id, tuple(items)))

    def _refuse(self, node_id: str, items: tuple[str, ...]) -> str:
        """Once per reason: it will try again and again. Its would-be peers are told too."""
        reason = f"node {node_id} does not fit what this router serves: {'; '.join(items)}"
        known = self._refused.pop(node_id, None)
        if known is None or known.reason != reason:
            log.warning("node refused", node=node_id, items=items)
            for one, member in self.members.items():
                member.told.put_nowait(Pair(one, node_id, items))
        self._refused[node_id] = _Refusal(reason, self._driver.now())
        if len(self._refused) > MAX_REFUSED:
            del self._refused[next(iter(self._refused))]
        return reason

    def _lost(self, link: NodeLink, reason: str) -> None:
        facts = link.facts
        member = self.members.get(facts.node_id)
        if member is None or member.link is not link:
            return  # it never became a member, or another incarnation took its place
        self.model("")  # remember its limits
        del self.members[facts.node_id]
        del self._driver.ports[facts.node_id]
        member.lost_reason = reason
        member.lost.set()
        if member.watch is not None:
            member.watch.cancel()
        tell = log.debug if self._stopping else log.warning
        tell("node lost", node=facts.node_id, reason=reason)
        self._driver.post(NodeLost(facts.node_id, facts.incarnation, reason))
        task = asyncio.get_running_loop().create_task(link.close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    def _tell_pair(self, pair: Pair) -> None:
        log.warning("nodes do not fit each other", node=pair.node_id, other=pair.other_id, items=pair.items)
        for one, other in ((pair.node_id, pair.other_id), (pair.other_id, pair.node_id)):
            if (member := self.members.get(one)) is not None:
                member.told.put_nowait(Pair(one, other, pair.items))
