"""Nodes that share a host hold each other up: by its caches and memory, by what passes their answers on, and
by its cores, where they want more of them than there are."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

PROMPT = 0
"""What a step that computes prompts counts as; one that only decodes counts as its rows."""

Points = tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True)
class Beside:
    """How many times as long a step takes while one other node of its host runs steps, too, with cores enough
    for both; 1: as long as alone.

    prompt_prompt: a prompt's step beside another node's. prompt_decode: a prompt's beside decode, by decode's
    rows. decode_prompt: decode's beside a prompt's, by its own rows. decode_decode: decode's beside decode,
    by its own rows. All by rows in ascending order: linear between them, beyond them as at the nearest.
    cores: of the host. threads: cores that a step of this node keeps busy. crowd: a number of nodes, and how
    many times as long a prompt's step and one of decode take while so many run; None: not measured.
    """

    prompt_prompt: float
    prompt_decode: Points
    decode_prompt: Points
    decode_decode: Points
    cores: int
    threads: int = 1
    crowd: tuple[int, float, float] | None = None

    def factor(self, own: int, other: int) -> float:
        """For a step beside one other; PROMPT or rows, both."""
        if own == PROMPT:
            return self.prompt_prompt if other == PROMPT else between(self.prompt_decode, other)
        return between(self.decode_prompt if other == PROMPT else self.decode_decode, own)

    def pace(self, own: int, others: Iterable[int]) -> float:
        """How many times as long a step takes beside these: between one and a crowd as on a line over their
        number. Without a crowd's figures, where their threads are more than the cores, each gets its share of
        them, and meets as many of the others at once as have one."""
        factors = [self.factor(own, other) for other in others]
        if not factors:
            return 1.0
        if self.crowd is not None and len(factors) > 1:
            nodes, prompt, decode = self.crowd
            one, all_of_them = sum(factors) / len(factors), prompt if own == PROMPT else decode
            return one + (all_of_them - one) * (len(factors) - 1) / (nodes - 2)
        wanted = self.threads * (len(factors) + 1)
        at_once = max(0.0, min(1.0, (self.cores - self.threads) / (wanted - self.threads)))
        return (1.0 + at_once * sum(factor - 1.0 for factor in factors)) * max(1.0, wanted / self.cores)


class Tenant(Protocol):
    """A node's engine, as its host sees it."""

    def repace(self) -> None:
        """What runs beside has changed."""


class Host:
    """Knows what runs on it now."""

    def __init__(self) -> None:
        self._running: dict[Tenant, int] = {}

    def runs(self, tenant: Tenant, kind: int | None) -> None:
        """From now on this kind of step, or none; the others are told if that is news."""
        if self._running.get(tenant) == kind:
            return
        if kind is None:
            del self._running[tenant]
        else:
            self._running[tenant] = kind
        for other in list(self._running):
            if other is not tenant:
                other.repace()

    def beside(self, tenant: Tenant) -> list[int]:
        """What the others run."""
        return [kind for other, kind in self._running.items() if other is not tenant]


def between(points: Points, rows: int) -> float:
    right = bisect_left(points, (rows, 0.0))
    if right == 0 or right == len(points):
        return points[min(right, len(points) - 1)][1]
    (low, low_value), (high, high_value) = points[right - 1], points[right]
    return low_value + (high_value - low_value) * (rows - low) / (high - low)
