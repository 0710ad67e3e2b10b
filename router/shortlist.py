"""Which nodes may serve a request at all, and which of them are worth a look.

Of a small cluster all are; of a large one the least loaded, and those that hold most of the prompt's prefix.
Nothing here goes over all nodes: groups of nodes that are alike are few (see board).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import chain, islice

from baton.core.value import value
from baton.router.ask import Ask
from baton.router.board import Group
from baton.router.nodes import Node, Registry
from baton.router.order import Order

EVERY = 16  # so many nodes are all looked at
NEAREST = 4  # of more, so many of the least loaded,
HOLDERS = 4  # and so many of those with the longest prefix
SCAN = 32  # nodes without room that are passed in search of some with

Allowed = Callable[[Node, Node], bool]
Room = Callable[[Ask, Node], bool]


@value
class Kind:
    """Groups of one kind of weights: any of their nodes may give KV to any other."""

    prefills: list[Group]
    decodes: list[Group]


def kinds(ask: Ask, registry: Registry) -> list[Kind]:
    """What may serve the request, room and failures left aside: kinds that have a node for each leg."""
    found: dict[object, Kind] = {}
    for group in _suiting(ask, registry):
        kind = found.setdefault(group.fingerprint, Kind([], []))
        if len(group.prefills):
            kind.prefills.append(group)
        if len(group.decodes):
            kind.decodes.append(group)
    return [kind for kind in found.values() if kind.prefills and kind.decodes]


def _suiting(ask: Ask, registry: Registry) -> list[Group]:
    """Nodes that could hold its whole prompt and a token more, and speak of the same weights."""
    tokens = ask.request.prefill_tokens + 1
    groups = [group for group in registry.board.groups() if group.max_model_len >= tokens]
    if ask.fingerprint is None:
        return groups
    return [group for group in groups if group.fingerprint == ask.fingerprint]


def missing_leg(ask: Ask, registry: Registry) -> str:
    """The leg that no serving node can take, however much room there were; "" if both are served."""
    if may_serve(ask, registry):
        return ""
    computed = registry.uniform and any(len(group.prefills) for group in _suiting(ask, registry))
    return "decode" if computed else "prefill"


def may_serve(ask: Ask, registry: Registry) -> bool:
    """Whether some pair could take it, room and failures left aside."""
    found = kinds(ask, registry)
    return bool(found) if registry.uniform else _exists(found, registry.fit)


def pair_serves(registry: Registry) -> bool:
    """Whether some pair serves, room left aside, at least for short prompts."""
    groups = registry.board.groups()
    found: dict[object, Kind] = {}
    for group in groups:
        kind = found.setdefault(group.fingerprint, Kind([], []))
        kind.prefills.append(group)
        kind.decodes.append(group)
    return _exists(found.values(), registry.fit)


def allowed(ask: Ask, registry: Registry, found: list[Kind]) -> Allowed | None:
    """Which pairs of one kind may be used; None: all. What failed this request before is left out as long as
    there is something else."""
    avoid, avoid_pairs = set(ask.avoid), set(ask.avoid_pairs)
    if not avoid and not avoid_pairs:
        return None if registry.uniform else registry.fit

    def other(p: Node, d: Node) -> bool:
        return (p.id, d.id) not in avoid_pairs and registry.fit(p, d)

    if avoid and _exists(found, fresh := _fresh(ask, registry)):
        return fresh
    return other if _exists(found, other) else registry.fit


def has_fresh(ask: Ask, registry: Registry) -> bool:
    """Whether some pair may take it of which neither node, nor the pair, has failed it."""
    return _exists(kinds(ask, registry), _fresh(ask, registry))


def _fresh(ask: Ask, registry: Registry) -> Allowed:
    avoid, avoid_pairs = set(ask.avoid), set(ask.avoid_pairs)

    def fresh(p: Node, d: Node) -> bool:
        if p.id in avoid or d.id in avoid or (p.id, d.id) in avoid_pairs:
            return False
        return registry.fit(p, d)

    return fresh


def _exists(found: Iterable[Kind], pair: Allowed) -> bool:
    """Ends soon: what is not allowed was named one by one, after a failure each."""
    return any(
        pair(p, d)
        for kind in found
        for p in chain.from_iterable(group.prefills for group in kind.prefills)
        for d in chain.from_iterable(group.decodes for group in kind.decodes)
    )


def candidates(ask: Ask, registry: Registry, groups: list[Group], leg: str, room: Room) -> list[Node]:
    """Nodes of one kind that are worth a look for a leg ("prefills" or "decodes") and have room for it."""
    orders = [getattr(group, leg) for group in groups]
    if sum(map(len, orders)) <= EVERY:
        return [node for order in orders for node in order if room(ask, node)]
    picked: dict[Node, None] = {}
    for order in orders:
        picked.update(dict.fromkeys(_with_room(ask, islice(order, SCAN), room, NEAREST)))
    picked.update(dict.fromkeys(_with_room(ask, _holders(ask, registry, groups, orders), room, HOLDERS)))
    return list(picked)


def _with_room(ask: Ask, nodes: Iterable[Node], room: Room, most: int) -> list[Node]:
    """The first ones that have room, at most so many."""
    found: list[Node] = []
    for node in nodes:
        if room(ask, node):
            found.append(node)
            if len(found) == most:
                break
    return found


def _holders(ask: Ask, registry: Registry, groups: list[Group], orders: list[Order[Node]]) -> Iterator[Node]:
    """Of those in the orders, the ones with the longest prefix first."""
    revision = groups[0].fingerprint.weights
    for block_size in registry.block_sizes:
        for node in registry.holders.longest(ask.chains.keys(block_size, revision)):
            if any(node in order for order in orders):
                yield node
