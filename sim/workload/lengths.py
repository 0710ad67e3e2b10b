"""How long synthetic requests are: Lengths draw (prompt tokens, output tokens) from given dice."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from random import Random

from baton.core.errors import InvalidArgument
from baton.sim.workload.arrival import Arrival

Lengths = Callable[[Random], tuple[int, int]]


def fixed(prompt_tokens: int, output_tokens: int) -> Lengths:
    return lambda _: (prompt_tokens, output_tokens)


def uniform(prompt: tuple[int, int], output: tuple[int, int]) -> Lengths:
    """Both ends included."""
    return lambda dice: (dice.randint(*prompt), dice.randint(*output))


def lognormal(prompt_mean: float, output_mean: float, cv: float = 1.0, limit: int = 131072) -> Lengths:
    """Long tails, as served prompts and answers have. cv: standard deviation over mean, of both."""
    if min(prompt_mean, output_mean) < 1 or cv < 0:
        raise InvalidArgument(f"means from 1 and cv from 0, got {prompt_mean}, {output_mean}, {cv}")
    sigma = math.sqrt(math.log1p(cv * cv))

    def draw(dice: Random) -> tuple[int, int]:
        prompt, output = (
            mean * math.exp(sigma * dice.gauss(0.0, 1.0) - sigma * sigma / 2)
            for mean in (prompt_mean, output_mean)
        )
        return min(limit, max(1, round(prompt))), min(limit, max(1, round(output)))

    return draw


def like(trace: Sequence[Arrival]) -> Lengths:
    """Pairs as some request of the trace had them."""
    pairs = [(arrival.prompt_tokens, arrival.output_tokens) for arrival in trace]
    if not pairs:
        raise InvalidArgument("an empty trace has no lengths")
    return lambda dice: dice.choice(pairs)
