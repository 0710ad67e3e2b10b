"""Which requests come when, from what the user asked for."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

from baton.core.errors import InvalidArgument
from baton.sim.workload import arrivals, lengths
from baton.sim.workload.arrival import Arrival
from baton.sim.workload.lengths import Lengths
from baton.sim.workload.traces import read_trace

_LENGTH = re.compile(r"(\d+)(?:-(\d+))?")
MAX_REQUESTS = 1_000_000


@dataclass(frozen=True, slots=True)
class Workload:
    """prompt_tokens, output_tokens: "256", or "100-400" for even chances in between; with a trace, which has
    lengths of its own, the longest that are sent ("": as they are). cv: coefficient of variation of the gaps:
    0 a metronome, 1 Poisson, above 1 bursts. trace: its requests in its own rhythm, stretched to the rate."""

    prompt_tokens: str = "256"
    output_tokens: str = "64"
    cv: float = 1.0
    trace: Path | None = None
    prefixes: int = 0
    prefix_tokens: int = 0

    @property
    def name(self) -> str:
        if self.trace is not None:
            return self.trace.name
        return {0.0: "constant", 1.0: "poisson"}.get(self.cv, "gamma")

    def check(self) -> None:
        """InvalidArgument: it says something that cannot be, or its trace cannot be read."""
        if self.trace is not None:
            _read(self.trace)
        for text, field in ((self.prompt_tokens, "prompt-tokens"), (self.output_tokens, "output-tokens")):
            if text or self.trace is None:
                length_range(text, field)

    def make(self, rate: float | None, duration_s: float, seed: int) -> list[Arrival]:
        """Arrivals within `duration_s`; a rate of None leaves a trace's times as they are."""
        if self.trace is not None:
            found = self._traced(rate, duration_s)
        elif rate is None:
            raise InvalidArgument("give --rate, --rates or --find-rate", field="rate")
        else:
            endless = arrivals.gamma(rate, self.cv, self._lengths(), seed)
            found = list(self._prefixed(arrivals.cut(endless, until_s=duration_s), seed))
        if not found:
            raise InvalidArgument(f"no request comes within {duration_s:g} s", field="duration")
        if len(found) > MAX_REQUESTS:
            raise InvalidArgument(f"{len(found)} requests are more than {MAX_REQUESTS}", field="rate")
        return found

    def _traced(self, rate: float | None, duration_s: float) -> list[Arrival]:
        assert self.trace is not None
        trace: Iterable[Arrival] = _read(self.trace)
        if rate is not None:
            trace = arrivals.scaled(trace, arrivals.offered_rate(_read(self.trace)) / rate)
        longest = (_most(self.prompt_tokens, "prompt-tokens"), _most(self.output_tokens, "output-tokens"))
        return [
            replace(
                arrival,
                prompt_tokens=min(arrival.prompt_tokens, longest[0]),
                output_tokens=min(arrival.output_tokens, longest[1]),
            )
            for arrival in arrivals.cut(trace, until_s=duration_s)
        ]

    def _prefixed(self, found: Iterator[Arrival], seed: int) -> Iterator[Arrival]:
        if not self.prefixes:
            return found
        return arrivals.shared_prefixes(found, self.prefixes, self.prefix_tokens, seed)

    def _lengths(self) -> Lengths:
        prompt = length_range(self.prompt_tokens, "prompt-tokens")
        return lengths.uniform(prompt, length_range(self.output_tokens, "output-tokens"))


@lru_cache(maxsize=1)
def _read(path: Path) -> list[Arrival]:
    return read_trace(path)


def length_range(text: str, field: str) -> tuple[int, int]:
    """Of "256" or "100-400"."""
    found = _LENGTH.fullmatch(text.strip())
    low = int(found[1]) if found else 0
    high = int(found[2] or found[1]) if found else 0
    if not 1 <= low <= high:
        raise InvalidArgument(f"write 256, or 100-400, got {text!r}", field=field)
    return low, high


def _most(text: str, field: str) -> int:
    return length_range(text, field)[1] if text else MAX_REQUESTS * 100
