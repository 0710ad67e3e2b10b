"""The nodes a router knows: who they are, what they last said, what this router has on them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from baton.core.fitted_cost import ANY_TOKENS, FittedCost
from baton.core.load import LoadReport, Role
from baton.core.model import Fingerprint
from baton.core.request import TPOT_SHARE
from baton.core.residuals import Residuals
from baton.router.board import Board
from baton.router.events import NodeInfo
from baton.router.holders import Holders
from baton.router.ledger import Ledger
from baton.router.prefix_view import NodePrefixes, PromptChains

LEARN_ALL, LEARN_EVERY = 256, 8
LEAST_SHARE = 0.1  # of a step goes to prompts, however tight decode's targets are
MEMORY_S = 60.0  # older requests tell nothing of how far predictions are off: the load may be another
UNNAMED_S = 0.25  # a prompt was sent this long before: it is in a report that does not name it, too
OVERHEAD_S = 0.005  # of messages: no prediction of a first token is better than that


class Health(Enum):
    UP = "up"
    SUSPECT = "suspect"  # silent for a lease: nothing new, what it has goes on
    LOST = "lost"


class Node:
    """One incarnation of a node. `prefill` and `decode` hold this router's attempts by leg.

    number: order of arrival. mark: to be called with the node after each change of what its place among
    others depends on (`touch`)."""

    def __init__(
        self, info: NodeInfo, now: float, cost: FittedCost, number: int, mark: Callable[[Node], None]
    ) -> None:
        self.id = info.node_id
        self.info = info
        self.load = info.load
        self.number = number
        self._mark = mark
        self._rows: int | None = None  # of decode; None: to be counted anew
        self.reported_s = now  # when it was last heard of
        self.loaded_s = now  # when `load` came
        self.health = Health.UP
        self.gone = False  # its stream broke: only a new registration brings it back
        self.draining = False
        self.wanted_role: Role | None = None
        self.full = False  # it refused for lack of room, and has not reported since
        self.cost = cost
        self.prefill = Ledger(self.touch)
        self.decode = Ledger(self.touch)
        self.sending_until_s = self.receiving_until_s = now  # its link, were it never to wait for work
        self.no_loans: dict[str, float] = {}  # by incarnation: gave it nothing, not to be asked until then
        self.ttft_errors = Residuals()
        self.tpot_errors = Residuals()
        self.prefixes = NodePrefixes(info.block_size, info.fingerprint.weights)

    def touch(self) -> None:
        self._rows = None
        self._mark(self)

    @property
    def state(self) -> str:
        if self.health is not Health.UP:
            return str(self.health.value)
        return "draining" if self.draining or self.load.draining else "up"

    @property
    def serving(self) -> bool:
        """Whether it may be given new requests, if there is room."""
        return self.health is Health.UP and not (self.draining or self.load.draining)

    @property
    def may_prefill(self) -> bool:
        """While a role change is under way, only what both roles allow."""
        wanted = self.wanted_role
        return self.load.role is not Role.DECODE and self.serving and (wanted is None or wanted.prefills)

    @property
    def may_decode(self) -> bool:
        wanted = self.wanted_role
        return self.load.role is not Role.PREFILL and self.serving and (wanted is None or wanted.decodes)

    @property
    def in_flight(self) -> int:
        """This router's requests that are on the node now, each counted once."""
        fewer, more = sorted((self.prefill, self.decode), key=len)
        return len(more) + sum(1 for key in fewer if key not in more)

    @property
    def prefill_free_s(self) -> float:
        """When (machine clock) it will have done the prompt work that a newcomer would find there: what it
        reported last, and what we have sent since."""
        load, reported_s = self.load, 0.0
        if load.waiting_tokens:
            reported_s = self.cost.queue_s(load.waiting_tokens, load.waiting_work) / self.prefill_share
        return self.prefill.free_s(self.loaded_s + reported_s)

    @property
    def prefill_share(self) -> float:
        """Of its time that goes to prompts, where it keeps what it decodes inside their tightest target."""
        if not self.decodes or (tightest_s := self.decode.tightest_s) is None:
            return 1.0
        if not (rows := self.decode_rows):
            return 1.0
        step_s = self.cost.decode_mean_s(rows, self.context_tokens)
        return max(LEAST_SHARE, 1.0 - step_s / (TPOT_SHARE * tightest_s))

    def prefill_queue_s(self, now: float) -> float:
        """Predicted seconds of prompt work ahead of a newcomer."""
        return max(self.prefill.behind_s, self.prefill_free_s - now)

    @property
    def idle(self) -> bool:
        """Nothing runs or waits there, of any router."""
        return not (self.prefill_requests or self.decode_rows or self.load.waiting)

    @property
    def prefill_requests(self) -> int:
        return max(self.prefill.working, self.load.waiting + self.prefill.recent)

    @property
    def decode_rows(self) -> int:
        """Requests that a newcomer's decode would share the node with."""
        if self._rows is None:
            load, ledger = self.load, self.decode
            said = load.reserved + load.running + (0 if load.role is Role.BOTH else load.waiting)
            self._rows = max(len(ledger), said + ledger.recent)
        return self._rows

    @property
    def decode_load(self) -> float:
        """What decode nodes are ordered by: seconds of a step that a newcomer would be in, and of waiting for
        a place in it."""
        rows, limit = self.decode_rows, self.load.max_running
        step_s = self.cost.decode_mean_s(rows + 1, self.context_tokens)
        return step_s * (1 + max(0, rows + 1 - limit)) if limit else step_s

    def decode_at(self, after_s: float, expected_tokens: float, damping: float) -> tuple[int, int]:
        """(rows, context tokens) that a newcomer finds when its KV is there: those that run now have left in
        part by then, at the rate at which requests of `expected_tokens` do; those that are to come count
        already. damping: how much of that is believed."""
        rows, running = self.decode_rows, self.load.running
        context = self.context_tokens
        if not rows or not running:
            return rows, context
        stay_s = expected_tokens * self.cost.decode_mean_s(running, self.load.context_tokens)
        gone = damping * min(1.0, after_s / stay_s) if stay_s > 0.0 else 0.0
        return max(0, rows - round(gone * running)), round(context - gone * self.load.context_tokens)

    @property
    def decodes(self) -> bool:
        """Whether it decodes by the role that it reported last."""
        return self.load.role.decodes

    @property
    def context_tokens(self) -> int:
        return self.load.context_tokens + self.decode.recent_tokens

    @property
    def blocks_free(self) -> int:
        """KV blocks a newcomer would find free."""
        return max(0, self.load.blocks_free - self.decode.recent_blocks)

    def blocks_for(self, tokens: int) -> int:
        return -(-tokens // self.info.block_size)

    def learn_ttft(self, measured_s: float, predicted_s: float, now: float) -> None:
        """From a dispatch to its first token."""
        self.ttft_errors.add(measured_s + OVERHEAD_S, predicted_s + OVERHEAD_S, now)

    def learn_tpot(self, measured_s: float, predicted_s: float, now: float) -> None:
        self.tpot_errors.add(measured_s, predicted_s, now)

    def report(self, load: LoadReport, now: float, lag_s: float) -> bool:
        """Take a report in. False: it is older than what is known, and only proves that the node lives."""
        self.reported_s = max(self.reported_s, now)
        if load.seq <= self.load.seq:
            return False
        self.load = load
        self.loaded_s = now - load.age_s
        self.full = False
        if self.wanted_role is load.role:
            self.wanted_role = None
        self.prefill.reported(self.loaded_s, UNNAMED_S, load.arrived)
        self.decode.reported(self.loaded_s, lag_s)
        self.cost.observe(load, self.loaded_s)
        self.ttft_errors.forget_before(now - MEMORY_S)
        self.tpot_errors.forget_before(now - MEMORY_S)
        self.touch()
        return True

    def lean_on(self, peers: FittedCost, now: float) -> None:
        """What nothing under way will tell of: the longer ago it was measured, the more the node is taken for
        one of its peers."""
        idle = not self.prefill_requests, not self.decode_rows, self.sending_until_s <= now
        self.cost.lean(peers, now, idle)
        self.touch()


@dataclass(frozen=True, slots=True)
class Mismatch:
    other_id: str
    items: tuple[str, ...]


class Registry:
    """Nodes by id, in the order they joined, and which of them cannot work together."""

    def __init__(self) -> None:
        self._nodes: dict[str, Node] = {}
        self._replaced: dict[str, dict[str, None]] = {}
        self._refused: dict[tuple[str, str], str] = {}
        self._numbers = self._reports = 0
        self._kinds: Counter[Fingerprint] = Counter()
        self.block_sizes: Counter[int] = Counter()
        self._kv_types: Counter[str] = Counter()
        self.board = Board()
        self.holders: Holders[Node] = Holders()
        self.average = FittedCost(of_many=True)  # over all nodes: where a newcomer's fit starts
        self._by_kind: dict[Fingerprint, FittedCost] = {}  # where there are several
        self._taught: tuple[float, ...] = (0.5, 0.5, 0.5)  # as many of each kind nodes were last told of

    def __iter__(self) -> Iterator[Node]:
        return iter(self._nodes.values())

    def __len__(self) -> int:
        return len(self._nodes)

    def get(self, node_id: str) -> Node | None:
        return self._nodes.get(node_id)

    def current(self, node_id: str, incarnation: str) -> Node | None:
        """The node, if that is the incarnation known now and its stream is not broken."""
        node = self._nodes.get(node_id)
        if node is None or node.gone or node.info.incarnation != incarnation:
            return None
        return node

    def superseded(self, info: NodeInfo) -> bool:
        """Whether a later incarnation of that node has joined already."""
        return info.incarnation in self._replaced.get(info.node_id, ())

    def add(self, info: NodeInfo, now: float) -> Node:
        """A new incarnation takes the place of the old one, which must hold nothing any more."""
        old = self._nodes.get(info.node_id)
        if old is not None:
            known = self._replaced.setdefault(info.node_id, {})
            known[old.info.incarnation] = None
            while len(known) > 8:  # stale registrations are seconds old, not generations
                del known[next(iter(known))]
        for pair in [pair for pair in self._refused if info.node_id in pair]:
            del self._refused[pair]
        if old is not None:
            self._leave(old)
        self._numbers += 1
        cost = FittedCost(self.average.as_prior(), step_tokens=info.step_tokens or ANY_TOKENS)
        if info.step_tokens and info.load.role is not Role.DECODE:  # of those usually the same
            self.average.step_tokens = cost.step_tokens
        cost.start_from(self.average)
        node = self._nodes[info.node_id] = Node(info, now, cost, self._numbers, self.board.mark)
        self._count(info, 1)
        node.touch()
        return node

    def readd(self, node: Node, info: NodeInfo, now: float) -> None:
        """The same incarnation registers again: what is on it stays counted."""
        seq = node.load.seq
        self._count(node.info, -1)
        node.info = info
        node.gone = False
        node.health = Health.UP
        node.reported_s = now
        node.load = info.load if info.load.seq > seq else replace(node.load, draining=info.load.draining)
        node.loaded_s = now
        self._count(info, 1)
        node.touch()

    def forget(self, node: Node) -> None:
        """A lost node leaves the view. What replaced it when is forgotten with it."""
        del self._nodes[node.id]
        self._replaced.pop(node.id, None)
        self._leave(node)

    def _leave(self, node: Node) -> None:
        self.kv_changed(node, (), (), reset=True)
        self._count(node.info, -1)
        self.board.forget(node)

    def _count(self, info: NodeInfo, change: int) -> None:
        self._kinds[info.fingerprint] += change
        self.block_sizes[info.block_size] += change
        self._kv_types[info.kv_dtype] += change
        self._kinds = +self._kinds  # without zeros
        self._by_kind = {kind: cost for kind, cost in self._by_kind.items() if kind in self._kinds}
        self.block_sizes = +self.block_sizes
        self._kv_types = +self._kv_types

    def learn(self, node: Node, now: float) -> None:
        """What its report says of all nodes, and they of it; of many reports a few tell."""
        self._reports += 1
        peers = self._peers(node)
        if self._reports <= LEARN_ALL or self._reports % LEARN_EVERY == 0:
            self.average.observe(node.load)
            if peers is not self.average:
                peers.observe(node.load)
            self._teach()
        node.lean_on(peers, now)

    def _peers(self, node: Node) -> FittedCost:
        """What nodes of its kind are like on average."""
        if len(self._kinds) <= 1:
            return self.average
        kind = node.info.fingerprint
        if kind not in self._by_kind:
            self._by_kind[kind] = FittedCost(self.average.as_prior(), of_many=True)
        return self._by_kind[kind]

    def _teach(self) -> None:
        """Nodes without measurements are taken for average ones; what those are like is told them each time
        as much again is known of it."""
        known = self.average.samples
        if all(count < 2 * told for count, told in zip(known, self._taught, strict=True)):
            return
        self._taught = tuple(max(0.5, count) for count in known)
        for node in self:
            node.cost.start_from(self.average)
            node.touch()

    def kv_changed(
        self, node: Node, stored: Sequence[bytes], removed: Sequence[bytes], *, reset: bool
    ) -> None:
        """What a node's prefix cache gained and lost (see NodePrefixes.change)."""
        self.holders.change(node, node.prefixes, stored, removed, reset=reset)

    def known_tokens(self, chains: PromptChains) -> Iterator[int]:
        """Leading tokens of the prompt that are cached somewhere, for each kind of node."""
        if not len(self.holders):
            return
        for fingerprint in self._kinds:
            for block_size in self.block_sizes:
                yield chains.keys(block_size, fingerprint.weights).matched_tokens(self.holders)

    @property
    def uniform(self) -> bool:
        """Every node fits every other."""
        return len(self._kinds) <= 1 and not self._refused

    @property
    def one_kv_type(self) -> bool:
        """All nodes store KV in one type. Else what one has may have been rounded on the way to it."""
        return len(self._kv_types) <= 1

    def refuse(self, prefill_id: str, decode_id: str, reason: str) -> None:
        """The hand-off between two nodes turned out to be impossible."""
        self._refused[prefill_id, decode_id] = reason

    def fit(self, prefill: Node, decode: Node) -> bool:
        """Whether KV may go from one to the other."""
        if prefill is decode:
            return True
        if self._refused and (prefill.id, decode.id) in self._refused:
            return False
        a, b = prefill.info.fingerprint, decode.info.fingerprint
        return a is b or a == b

    def why_not(self, prefill: Node, decode: Node) -> tuple[str, ...]:
        """The items that keep two nodes apart, empty if they fit."""
        items = prefill.info.fingerprint.differing(decode.info.fingerprint) if prefill is not decode else []
        refused = self._refused.get((prefill.id, decode.id))
        return (*items, refused) if refused is not None else tuple(items)

    def mismatches(self, node: Node) -> tuple[Mismatch, ...]:
        """All nodes that `node` cannot hand KV to, or get KV from."""
        found: list[Mismatch] = []
        if self.uniform:
            return ()
        for other in self:
            if other is node:
                continue
            items = list(self.why_not(node, other))
            back = self._refused.get((other.id, node.id))
            if back is not None and back not in items:
                items.append(back)
            if items:
                found.append(Mismatch(other.id, tuple(items)))
        return tuple(found)

    def check(self) -> None:
        self.board.check(iter(self))
        self.holders.check((node, node.prefixes) for node in self)
