"""One request of a workload before it is one: when it comes, how long it is, what it shares with others."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from baton.core.errors import InvalidArgument
from baton.core.request import Slo
from baton.core.value import value

NO_SLO = Slo()


@value
class Arrival:
    """at_s: since the workload's start. prefix: ids of its leading blocks of `prefix_block` tokens; equal ids
    stand for equal tokens (the form of Mooncake's traces). The last block may reach past the prompt's end."""

    at_s: float
    prompt_tokens: int
    output_tokens: int
    prefix: tuple[int, ...] = ()
    prefix_block: int = 512
    slo: Slo = NO_SLO
    priority: int = 0

    def __post_init__(self) -> None:
        if self.prompt_tokens < 1:
            raise InvalidArgument(f"must be at least 1, got {self.prompt_tokens}", field="prompt_tokens")
        if self.output_tokens < 1:
            raise InvalidArgument(f"must be at least 1, got {self.output_tokens}", field="output_tokens")
        if self.prefix_block < 1:
            raise InvalidArgument(f"must be at least 1, got {self.prefix_block}", field="prefix_block")

    @property
    def shared_tokens(self) -> int:
        """Prompt tokens that its prefix ids stand for."""
        return min(self.prompt_tokens, len(self.prefix) * self.prefix_block)


def prompt_ids(arrival: Arrival, vocab_size: int, number: int) -> tuple[int, ...]:
    """Token ids in [0, vocab_size) for a prompt: equal for equal prefix ids, the rest for `number` alone.

    Each block spells its id with its first few tokens and runs on through the vocabulary, so two blocks
    differ from their very beginning, and making a prompt costs a few slices. InvalidArgument: an id or
    `number` is negative.
    """
    ring = _ring(vocab_size)
    out: list[int] = []
    for block in arrival.prefix:
        if len(out) >= arrival.prompt_tokens:
            break
        out += _run(ring, vocab_size, 2 * block, arrival.prefix_block)
    del out[arrival.prompt_tokens :]
    out += _run(ring, vocab_size, 2 * number + 1, arrival.prompt_tokens - len(out))
    return tuple(out)


@lru_cache(maxsize=4)
def _ring(vocab_size: int) -> tuple[int, ...]:
    if vocab_size < 2:
        raise InvalidArgument(f"must be at least 2, got {vocab_size}", field="vocab_size")
    return tuple(range(vocab_size)) * 2


def _run(ring: tuple[int, ...], vocab_size: int, tag: int, tokens: int) -> list[int]:
    """`tokens` ids that begin with the digits of `tag`."""
    if tag < 0:
        raise InvalidArgument("must be at least 0", field="number" if tag % 2 else "prefix")
    run = list(_digits(tag, vocab_size))[:tokens]
    start = tag % vocab_size
    while len(run) < tokens:
        run += ring[start : start + min(vocab_size, tokens - len(run))]
    return run


def _digits(tag: int, base: int) -> Iterator[int]:
    """Lowest first, and how many there are where another could follow: no tag's digits begin another's."""
    count = 1
    rest = tag // base
    while rest:
        count += 1
        rest //= base
    yield (count - 1) % base
    for _ in range(count):
        yield tag % base
        tag //= base
