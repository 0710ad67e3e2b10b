"""The serving nodes, put in order: so that a choice looks at a few of them, however many there are.

Nodes that are alike to a request (same weights, same context limit) make a group; in each, one order by
the queue of prompts and one by the load of decode. Whatever changes a node marks it (`Node.touch`), and the
next look at the board puts it where it belongs.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING

from baton.core.model import Fingerprint
from baton.router.order import Order

if TYPE_CHECKING:
    from baton.router.nodes import Node

RESUM_EVERY = 4096  # changes of the total, after which its rounding dust is swept


class Group:
    """prefills, decodes: nodes that may be given such a leg now, the least loaded first."""

    def __init__(self, fingerprint: Fingerprint, max_model_len: int) -> None:
        self.fingerprint = fingerprint
        self.max_model_len = max_model_len
        self.prefills: Order[Node] = Order()
        self.decodes: Order[Node] = Order()

    def suits(self, node: Node) -> bool:
        info = node.info
        same = info.fingerprint is self.fingerprint or info.fingerprint == self.fingerprint
        return same and info.max_model_len == self.max_model_len

    def place(self, node: Node) -> None:
        if node.may_prefill:
            self.prefills.put(node, node.prefill_free_s, node.number)
        else:
            self.prefills.drop(node)
        if node.may_decode:
            self.decodes.put(node, node.decode_load, node.number)
        else:
            self.decodes.drop(node)

    def remove(self, node: Node) -> None:
        self.prefills.drop(node)
        self.decodes.drop(node)


class Board:
    """Groups of the nodes known, and sums over all that serve."""

    def __init__(self) -> None:
        self._groups: dict[tuple[Fingerprint, int], Group] = {}
        self._group: dict[Node, Group] = {}
        self._touched: dict[Node, None] = {}
        self._speed: dict[Node, float] = {}
        self._speeds = 0.0
        self._changes = 0

    def mark(self, node: Node) -> None:
        self._touched[node] = None

    def forget(self, node: Node) -> None:
        self._touched.pop(node, None)
        self._set_speed(node, None)
        group = self._group.pop(node, None)
        if group is not None:
            group.remove(node)
            if group not in self._group.values():
                del self._groups[group.fingerprint, group.max_model_len]

    def groups(self) -> list[Group]:
        """In no order that matters."""
        self.settle()
        return list(self._groups.values())

    @property
    def prefill_speed(self) -> float:
        """Prompt tokens per second of all nodes that may prefill."""
        self.settle()
        return self._speeds

    @property
    def prefill_nodes(self) -> int:
        """How many may prefill."""
        return sum([len(group.prefills) for group in self.groups()])

    def next_free(self, most: int) -> list[float]:
        """When the prefill nodes are free: the first `most` of them, in order."""
        each = [group.prefills for group in self.groups()]
        return sorted([order.figure(node) for order in each for node in islice(order, most)])[:most]

    def settle(self) -> None:
        """Put what changed where it belongs. Each step of the machine ends with it, so that looking at the
        machine from outside changes nothing: not even how sums are rounded, which a replay would see."""
        if not self._touched:
            return
        touched, self._touched = self._touched, {}
        for node in touched:
            group = self._group.get(node)
            if group is None or not group.suits(node):
                group = self._move(node, group)
            group.place(node)
            prefills = node in group.prefills
            self._set_speed(node, node.prefill_share / node.cost.prefill_token_s() if prefills else None)

    def _move(self, node: Node, old: Group | None) -> Group:
        """To the group of its kind."""
        which = (node.info.fingerprint, node.info.max_model_len)
        group = self._groups.get(which)
        if group is None:
            group = self._groups[which] = Group(*which)
        if old is not None:
            old.remove(node)
        self._group[node] = group
        return group

    def _set_speed(self, node: Node, speed: float | None) -> None:
        if self._speed.get(node) == speed:
            return
        self._speeds -= self._speed.pop(node, 0.0)
        if speed is not None:
            self._speed[node] = speed
            self._speeds += speed
        self._changes += 1
        if not self._speed or self._changes % RESUM_EVERY == 0:
            self._speeds = sum(self._speed.values())

    def check(self, nodes: Iterator[Node]) -> None:
        """Raise AssertionError unless every node is where its state says."""
        self.settle()
        known = list(nodes)
        assert set(self._group) == set(known), "the board holds other nodes than the registry"
        for group in self._groups.values():
            group.prefills.check()
            group.decodes.check()
        for node in known:
            group = self._group[node]
            assert (node in group.prefills) == node.may_prefill, f"{node.id}: prefill"
            assert (node in group.decodes) == node.may_decode, f"{node.id}: decode"
            if node.may_prefill:
                assert group.prefills.figure(node) == node.prefill_free_s, f"{node.id} was not marked"
            if node.may_decode:
                assert group.decodes.figure(node) == node.decode_load, f"{node.id} was not marked"
