"""What the simulated model says: a token for each output position, and an end where the workload has one."""

from __future__ import annotations

from functools import cache

from baton.core.request import SamplingParams

VOCAB_SIZE = 2**17
END = 0
"""The end-of-sequence token."""
FIRST = 2
PERIOD = 4096


@cache
def sampling_for(length: int) -> SamplingParams:
    """With this seed the model's answer is so many tokens long."""
    return SamplingParams(temperature=0.0, seed=length)


_RUN = tuple(range(FIRST, FIRST + PERIOD)) * 2


def token(position: int, length: int) -> int:
    """The output token at `position` of an answer of `length` tokens: neighbours differ, so that a gap or a
    repeat shows."""
    return END if position >= length - 1 else FIRST + position % PERIOD


def run(position: int, count: int, length: int) -> tuple[int, ...]:
    """`count` tokens from `position` on."""
    start, ends = position % PERIOD, position + count >= length
    if position + count > length or start + count > 2 * PERIOD:
        return tuple(token(i, length) for i in range(position, position + count))
    return (*_RUN[start : start + count - 1], END) if ends else _RUN[start : start + count]
