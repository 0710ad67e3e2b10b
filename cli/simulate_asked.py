"""The options of `baton simulate`, and what they make: a load, targets, a profile."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

from baton.bench.load.workload import length_range
from baton.cli.terminal import answers
from baton.core.errors import InvalidArgument
from baton.core.request import Slo
from baton.sim.profiles import profile
from baton.sim.spec import Profile
from baton.sim.workload import arrivals, lengths
from baton.sim.workload.arrival import Arrival
from baton.sim.workload.traces import read_trace

DEFAULT_PROMPT, DEFAULT_OUTPUT, DEFAULT_REQUESTS = "512", "128", 1000


@dataclass(frozen=True)
class Load:
    """Options that `baton simulate` and `baton plan` share: what comes, and how fast it is to be served."""

    trace: list[Path] | None
    rate: float | None
    cv: float
    prompt_tokens: str | None
    output_tokens: str | None
    prefixes: str | None
    requests: int | None
    ttft: float | None
    tpot: float | None
    seed: int

    @property
    def slo(self) -> Slo:
        slo = Slo(self.ttft, self.tpot)
        slo.validate()
        return slo

    def load(self, default_rate: float | None = None) -> list[Arrival]:
        """Arrivals with their targets. default_rate: of a synthetic load without one."""
        found = self._traced() if self.trace else self._synthetic(self.rate or default_rate)
        if len(found) < 2:
            raise InvalidArgument("a run needs two requests at least", field="requests")
        return list(arrivals.with_slo(found, self.slo)) if self.slo != Slo() else found

    def _traced(self) -> list[Arrival]:
        if not self.trace or len(self.trace) > 1:
            raise InvalidArgument("give one trace; several go with --compare", field="trace")
        trace = list(arrivals.stretch(read_trace(self.trace[0]), self._first, self.requests))
        if self.rate is not None:
            trace = list(arrivals.scaled(trace, arrivals.offered_rate(trace) / self.rate))
        return [self._shortened(arrival) for arrival in trace]

    @property
    def _first(self) -> int:
        """Of a trace's requests, counted from 0."""
        return 0

    def _shortened(self, arrival: Arrival) -> Arrival:
        prompt, output = arrival.prompt_tokens, arrival.output_tokens
        if self.prompt_tokens:
            prompt = min(prompt, length_range(self.prompt_tokens, "prompt-tokens")[1])
        if self.output_tokens:
            output = min(output, length_range(self.output_tokens, "output-tokens")[1])
        return replace(arrival, prompt_tokens=prompt, output_tokens=output)

    def _synthetic(self, rate: float | None) -> list[Arrival]:
        if rate is None:
            raise InvalidArgument("give --rate, or --trace with a pace of its own", field="rate")
        draw = lengths.uniform(
            length_range(self.prompt_tokens or DEFAULT_PROMPT, "prompt-tokens"),
            length_range(self.output_tokens or DEFAULT_OUTPUT, "output-tokens"),
        )
        stream = arrivals.gamma(rate, self.cv, draw, self.seed)
        if self.prefixes:
            count, _, tokens = self.prefixes.partition("x")
            if not (count.isdigit() and tokens.isdigit() and int(count)):
                raise InvalidArgument(
                    f"write 4x128: texts, and tokens of each, got {self.prefixes!r}", field="prefixes"
                )
            stream = arrivals.shared_prefixes(stream, int(count), int(tokens), self.seed)
        return list(islice(stream, self.requests or DEFAULT_REQUESTS))


@dataclass(frozen=True)
class Asked(Load):
    """The options of `baton simulate`, as they are in `cli.simulate`."""

    skip: int
    attainment: float
    profile: str
    decode_profile: str | None
    prefill: int | None
    decode: int | None
    both: int | None
    config: Path | None
    policy: str
    planner: bool | None
    compare: bool
    nodes: int
    only: list[str] | None
    quick: bool
    precision: float
    workers: int | None
    as_json: bool
    html: Path | None
    out: Path | None

    @property
    def _first(self) -> int:
        return self.skip

    @property
    def kind(self) -> Profile:
        return profile(self.profile)

    def write(self, results: Any, page: str) -> None:
        """Files that were asked for; JSON to standard output if that was."""
        text = json.dumps(results, indent=1)
        if self.out is not None:
            self.out.write_text(text + "\n", encoding="utf-8")
        if self.html is not None:
            self.html.write_text(page, encoding="utf-8")
        if self.as_json:
            answers.print(text, markup=False)
