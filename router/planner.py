"""How many nodes play which role: one node changes at a time, if the imbalance lasts and the change pays.

Each split of the nodes has a pressure, which is 1 where the worse of its two pools just keeps its target:

    prefill: (work of a prompt + its wait in the queue) / TTFT target, or the pool's load over what is wise
    decode:  rows there are / rows that the pool can run within the TPOT target and its memory

The wait is that of a queue with k servers (Sakasegawa, "An approximation formula L_q = a rho^b / (1 - rho)",
Annals of the Institute of Statistical Mathematics 29, 1977). A pool that gives a node away is judged at the
load that its other nodes then have, N/(N-1) of today's. A node of both roles serves each pool in part, and a
little less well than a node of its own.

A move must lower the pressure by a good deal. Then the way back would raise it, so under a steady load
nothing ever moves twice; a change of load must be real, and last, to move anything. What the node still has
to finish is lost time, and counted.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

from baton.core.load import Role


@dataclass(frozen=True, slots=True)
class PlannerConfig:
    """every_s: time between two looks. patience: looks in a row that must agree. pause_s: rest after a move.
    better: a move must bring the pressure below that share of today's. least: nothing moves below that
    pressure. horizon_s: for so long is a move expected to pay. tau_s: over which demand is averaged."""

    every_s: float = 5.0
    patience: int = 3
    pause_s: float = 30.0
    better: float = 0.85
    least: float = 0.75
    horizon_s: float = 120.0
    tau_s: float = 30.0


class Split(NamedTuple):
    prefill: int
    decode: int
    both: int = 0

    @property
    def nodes(self) -> int:
        return self.prefill + self.decode + self.both


@dataclass(frozen=True, slots=True)
class Situation:
    """prompts: nodes that computing prompts keeps busy. prompt_s, variation: work of one, and its variance
    over the mean squared. ttft_s: target, if any. rows: requests in decode, all in all; rows_each: most that
    one node can take. drain_s: for so long has a node to finish what it has, by the role that it gives up."""

    split: Split
    prompts: float
    prompt_s: float
    variation: float
    ttft_s: float | None
    rows: float
    rows_each: float
    drain_s: float


class Move(NamedTuple):
    """One node of a role becomes one of another."""

    old: Role
    new: Role


WISE_LOAD = 0.85  # of a prefill pool: beyond, queues grow with every burst
MIXED = 0.85  # what a node of both roles is worth against one of its own
PARTS = 16  # a node of both roles is divided in so many
MOVES = [Move(old, new) for old in Role for new in Role if old is not new]


class Planner:
    """`look` every `every_s`. Knows nothing of nodes: whoever asks picks the one that moves."""

    def __init__(self, config: PlannerConfig) -> None:
        self.config = config
        self._wanted: Move | None = None
        self._times = 0
        self._rests_until_s = -math.inf

    def look(self, now: float, situation: Situation) -> Move | None:
        """The move to make now, if any."""
        if now < self._rests_until_s:
            return None
        move = best_move(situation, self.config)
        self._times = self._times + 1 if move is not None and move == self._wanted else int(move is not None)
        self._wanted = move
        if move is None or self._times < self.config.patience:
            return None
        self._wanted, self._times = None, 0
        self._rests_until_s = now + self.config.pause_s
        return move


def best_move(situation: Situation, config: PlannerConfig) -> Move | None:
    """The one that lowers the pressure most, if it pays."""
    today = pressure(situation, situation.split)
    if today < config.least:
        return None
    found = [(pressure(situation, after(situation.split, move)), i) for i, move in enumerate(MOVES)]
    lowest, number = min(found)
    if lowest > config.better * today:
        return None
    lost_s = situation.drain_s / max(1, situation.split.nodes)  # of the whole cluster's time
    gained_s = (min(today, 2.0) - lowest) * config.horizon_s
    return MOVES[number] if gained_s > lost_s else None


def after(split: Split, move: Move) -> Split:
    counts = {Role.PREFILL: split.prefill, Role.DECODE: split.decode, Role.BOTH: split.both}
    counts[move.old] -= 1
    counts[move.new] += 1
    return Split(counts[Role.PREFILL], counts[Role.DECODE], counts[Role.BOTH])


def pressure(situation: Situation, split: Split) -> float:
    """Infinite where a pool has no node, or is asked for more than it can ever do."""
    if min(split.prefill, split.decode, split.both) < 0:
        return math.inf
    if split.prefill + split.both < 1 or split.decode + split.both < 1:
        return math.inf
    parts = PARTS if split.both else 0
    best = math.inf
    for part in range(parts + 1):
        mine = MIXED * split.both * part / PARTS
        rest = MIXED * split.both * (PARTS - part) / PARTS
        prefill = prefill_pressure(situation, split.prefill + mine)
        decode = decode_pressure(situation, split.decode + rest)
        best = min(best, max(prefill, decode))
    return best


def prefill_pressure(situation: Situation, nodes: float) -> float:
    if situation.prompts <= 0.0:
        return 0.0
    if nodes <= 0.0:
        return math.inf
    load = situation.prompts / nodes
    by_load = load / WISE_LOAD
    if situation.ttft_s is None:
        return by_load
    if load >= 1.0:
        return max(by_load, 1.0) * 2.0
    wait_s = queue_s(situation.prompt_s, situation.variation, nodes, load)
    return max(by_load, (wait_s + situation.prompt_s) / situation.ttft_s)


def queue_s(work_s: float, variation: float, nodes: float, load: float) -> float:
    """Mean wait, for arrivals at random."""
    waiting: float = load ** (math.sqrt(2.0 * (nodes + 1.0)) - 1.0) / (nodes * (1.0 - load))
    return work_s * waiting * (1.0 + variation) / 2.0


def decode_pressure(situation: Situation, nodes: float) -> float:
    if situation.rows <= 0.0:
        return 0.0
    return situation.rows / (nodes * situation.rows_each) if nodes > 0.0 else math.inf
