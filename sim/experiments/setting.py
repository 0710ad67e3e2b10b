"""What an experiment is run on: a trace with targets, a kind of machine, how many of them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from baton.core.errors import InvalidArgument
from baton.core.request import Slo
from baton.sim.spec import NetworkSpec, Profile
from baton.sim.workload.arrival import Arrival
from baton.sim.workload.arrivals import offered_rate, repeated, scaled, stretch, with_slo
from baton.sim.workload.traces import read_trace

CHAT = Slo(ttft_s=1.0, tpot_s=0.05)
"""Of an interactive service."""
LONG_CONTEXT = Slo(ttft_s=10.0, tpot_s=0.1)
"""Ten times the time to the first token for prompts that are ten times as long; TPOT as in Mooncake's paper
(arXiv:2407.00079), experiment with the real workload."""
TARGETS = {"azure": CHAT, "mooncake": LONG_CONTEXT}
NETWORK = NetworkSpec(latency_s=0.0002)

LEAST_SPAN_S = 10.0
TARGET_SPANS, ANSWER_SPANS = 20, 3
"""A rate is kept only if it is kept for many TTFT targets and several answers on end: all of a burst can be
in time that no nodes could serve for long."""
MOST_REQUESTS = 10_000
"""Of one run: rates that would need more are not tried."""


@dataclass(frozen=True, slots=True)
class Split:
    """Nodes by the role they begin with."""

    prefill: int
    decode: int
    both: int = 0

    def __str__(self) -> str:
        parts = [(self.prefill, "P"), (self.decode, "D"), (self.both, "B")]
        return "".join(f"{count}{letter}" for count, letter in parts if count)


@dataclass(frozen=True, slots=True)
class Setting:
    """arrivals: at the trace's own pace. attainment: share of requests that must meet their targets.
    decode_profile: of decode nodes, where they differ from the others."""

    name: str
    arrivals: tuple[Arrival, ...]
    slo: Slo
    profile: Profile
    nodes: int
    seed: int = 0
    attainment: float = 0.9
    network: NetworkSpec = field(default_factory=lambda: NETWORK)
    decode_profile: Profile | None = None

    @property
    def rate(self) -> float:
        """Requests per second at the trace's own pace."""
        return offered_rate(self.arrivals)

    @property
    def least_span_s(self) -> float:
        """How long requests must keep coming for a rate to count."""
        return least_span_s(self.arrivals, self.slo)

    @property
    def most_rate(self) -> float:
        """The highest that is tried."""
        return max(MOST_REQUESTS, len(self.arrivals)) / self.least_span_s

    def lasting(self, rate: float) -> Setting:
        """With the requests repeated, prefixes fresh in every round, until they span enough time at that rate
        (or are as many as are ever tried)."""
        count = min(self.least_span_s, MOST_REQUESTS / rate) * rate
        times = math.ceil(count / len(self.arrivals) - 1e-9)
        return self if times <= 1 else replace(self, arrivals=tuple(repeated(self.arrivals, times)))

    def at(self, rate: float) -> Iterator[Arrival]:
        """The trace, squeezed or stretched to so many requests per second."""
        return scaled(self.arrivals, self.rate / rate)

    def splits(self) -> list[Split]:
        """Dedicated pools, every ratio."""
        return [Split(p, self.nodes - p) for p in range(1, self.nodes)]


def least_span_s(load: Sequence[Arrival], slo: Slo) -> float:
    """Seconds of arrivals, without which a rate is none but a burst."""
    answer_s = (slo.tpot_s or 0.0) * mean([arrival.output_tokens for arrival in load])
    return max(LEAST_SPAN_S, TARGET_SPANS * (slo.ttft_s or 0.0), ANSWER_SPANS * answer_s)


def setting_from(
    path: Path, profile: Profile, nodes: int, count: int | None, *, seed: int = 0, skip: int = 0
) -> Setting:
    """A trace file with the targets of its kind. count: of its requests, after the first `skip`; what no node
    could hold is left out, for all alike."""
    limit = profile.max_model_len
    fitting = [a for a in read_trace(path) if a.prompt_tokens + a.output_tokens <= limit]
    trace = list(stretch(fitting, skip, count))
    if len(trace) < 2 or trace[-1].at_s <= 0.0:
        raise InvalidArgument(f"{path}: too few requests that {profile.name} could hold")
    slo = targets_for(path.stem)
    return Setting(path.stem, tuple(with_slo(trace, slo)), slo, profile, nodes, seed)


def targets_for(name: str) -> Slo:
    return next((slo for key, slo in TARGETS.items() if key in name), CHAT)


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0
