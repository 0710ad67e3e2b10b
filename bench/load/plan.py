"""What a run sends and when: shots, made before it begins, the same for every target."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from baton.core.request import Slo
from baton.sim.workload.arrival import Arrival, prompt_ids

RUN_STRIDE = 1 << 32  # more blocks than any trace has


@dataclass(frozen=True, slots=True)
class Prompt:
    """token_ids: () where the words are all there is. tokens: its length, with all that the server adds."""

    token_ids: tuple[int, ...]
    text: str | None
    tokens: int


@dataclass(frozen=True, slots=True)
class Shot:
    """One request to be sent at `at_s` after the run began. `write` makes its prompt, just before it goes
    out."""

    number: int
    at_s: float
    write: Callable[[], Prompt]
    prompt_tokens: int
    output_tokens: int
    slo: Slo
    priority: int = 0


@dataclass(frozen=True, slots=True)
class Plan:
    """Shots in order of time. Those in [from_s, until_s) count; the others keep the load up around them."""

    shots: tuple[Shot, ...]
    from_s: float
    until_s: float

    @property
    def window_s(self) -> float:
        return self.until_s - self.from_s

    def counts(self, intended_s: float) -> bool:
        return self.from_s <= intended_s < self.until_s


Writer = Callable[[Arrival, int], Prompt]
"""Makes the prompt of an arrival with this number, unlike that of any other number but for its prefix."""


def token_writer(vocab_size: int) -> Writer:
    """Prompts of token ids over the whole vocabulary."""

    def write(arrival: Arrival, number: int) -> Prompt:
        ids = prompt_ids(arrival, vocab_size, number)
        return Prompt(ids, None, len(ids))

    return write


def shots(arrivals: Iterable[Arrival], write: Writer, run: int, slo: Slo) -> tuple[Shot, ...]:
    """run: no two runs with different numbers share a prompt or a prefix, so none finds the KV of an earlier
    one in a cache. slo: for arrivals that have none of their own."""
    return tuple(_shot(arrival, write, run, number, slo) for number, arrival in enumerate(arrivals))


def _shot(arrival: Arrival, write: Writer, run: int, number: int, slo: Slo) -> Shot:
    fresh = replace(arrival, prefix=tuple(block + run * RUN_STRIDE for block in arrival.prefix))
    own = arrival.slo
    return Shot(
        number,
        arrival.at_s,
        lambda: write(fresh, run * RUN_STRIDE + number),
        arrival.prompt_tokens,
        arrival.output_tokens,
        Slo(
            slo.ttft_s if own.ttft_s is None else own.ttft_s, slo.tpot_s if own.tpot_s is None else own.tpot_s
        ),
        arrival.priority,
    )
