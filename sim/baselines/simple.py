"""Policies that need no model of latency: random, round robin, least requests, power of two choices."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from baton.router.ask import Ask
from baton.router.nodes import Node
from baton.sim.baselines.separate import Pick, Separate, least, requests


def random_choice(seed: int) -> Separate:
    dice = Random(f"{seed}/random")

    def pick(ask: Ask, nodes: Sequence[Node]) -> Node:
        return dice.choice(nodes)

    return Separate("random", pick, pick)


def round_robin(seed: int) -> Separate:
    return Separate("round robin", _in_turn(), _in_turn())


def _in_turn() -> Pick:
    turn = 0

    def pick(ask: Ask, nodes: Sequence[Node]) -> Node:
        nonlocal turn
        turn += 1
        return nodes[(turn - 1) % len(nodes)]

    return pick


def least_requests(seed: int) -> Separate:
    """The node with the fewest of this router's requests; by chance among equals, not the first always."""
    dice = Random(f"{seed}/least")

    def pick(ask: Ask, nodes: Sequence[Node]) -> Node:
        fewest = min(requests(node) for node in nodes)
        return dice.choice([node for node in nodes if requests(node) == fewest])

    return Separate("least requests", pick, pick)


def power_of_two(seed: int) -> Separate:
    pick = power_of_two_pick(seed)
    return Separate("power of two", pick, pick)


def power_of_two_pick(seed: int) -> Pick:
    """Of two random nodes the one that holds and awaits fewer tokens by its last report (SGLang gateway)."""
    dice = Random(f"{seed}/two")

    def pick(ask: Ask, nodes: Sequence[Node]) -> Node:
        pair = dice.sample(nodes, 2) if len(nodes) > 1 else nodes
        return least(pair, _token_load)

    return pick


def _token_load(node: Node) -> float:
    load = node.load
    return (load.blocks_total - load.blocks_free) * node.info.block_size + load.waiting_tokens
