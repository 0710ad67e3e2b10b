"""The results file: what was asked for, what happened to every request, and the figures made of it.

One JSON object; `baton bench --schema` prints its JSON schema. `format` names the kind and version: readers
refuse another version. Fields may be added within a version.
"""

from __future__ import annotations

import gzip
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal

from pydantic import TypeAdapter, ValidationError

from baton.bench.load.record import Record
from baton.bench.load.spread import Spread
from baton.bench.load.summary import Summary, summarise
from baton.core.errors import InvalidArgument

FORMAT: Literal["baton-bench/1"] = "baton-bench/1"


@dataclass(frozen=True, slots=True)
class Experiment:
    """What was asked for. arrivals: poisson, gamma, constant or a trace's path. lengths in tokens, as
    written. ttft_s, tpot_s: targets of requests that bring none of their own; None: none. attainment: the
    share that has to meet them."""

    arrivals: str
    cv: float
    prompt_tokens: str
    output_tokens: str
    duration_s: float
    warmup_s: float
    tail_s: float
    rounds: int
    seed: int
    ttft_s: float | None
    tpot_s: float | None
    attainment: float
    salt: int
    max_lateness_s: float
    trace: str = ""
    prefixes: int = 0
    prefix_tokens: int = 0


@dataclass(frozen=True, slots=True)
class TargetFacts:
    """nodes: of a Baton deployment, how many of each role; hosts: the same for each host. router: its
    settings, as `router` in the configuration; {}: unknown."""

    name: str
    url: str
    model: str = ""
    nodes: dict[str, int] = field(default_factory=dict)
    hosts: list[dict[str, int]] = field(default_factory=list)
    router: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class Run:
    """One target, one rate, one round. rate: requests per second that were meant. lateness_s: of requests
    sent, behind their time. lag_s: of the client's event loop. invalid: why its figures must not be used;
    "": they may. stopped_s: when it was ended early, as beyond hope; None: it ran to its end. own_times: a
    trace's times as they are, not stretched to a rate."""

    target: str
    rate: float
    round: int
    seed: int
    from_s: float
    until_s: float
    started_at: str
    lateness_s: Spread
    lag_s: Spread
    invalid: str
    stopped_s: float | None
    records: list[Record]
    summary: Summary
    own_times: bool = False

    @property
    def good(self) -> bool:
        """Its figures may be used."""
        return not self.invalid and self.stopped_s is None

    @property
    def counted(self) -> list[Record]:
        return [record for record in self.records if self.from_s <= record.intended_s < self.until_s]


@dataclass(frozen=True, slots=True)
class Pool:
    """The rounds of one target at one rate together: those that count; where none does, those that do not,
    and then `invalid` says why."""

    target: str
    rate: float
    rounds: int
    summary: Summary
    invalid: str = ""


@dataclass(frozen=True, slots=True)
class Found:
    """The highest rate that kept the attainment, for a target; 0: none did. failed_rate: the lowest tried
    that did not; None: all did."""

    target: str
    rate: float
    failed_rate: float | None
    goodput: float


@dataclass(frozen=True, slots=True)
class Twin:
    """What the simulator says of a run, beside what was measured; seconds. error: of the prediction, as a
    share of the measured; None: nothing to be compared."""

    target: str
    rate: float
    round: int
    profile: str
    metric: str
    measured_s: float | None
    predicted_s: float | None
    error: float | None


@dataclass(slots=True)
class Results:
    experiment: Experiment
    targets: list[TargetFacts]
    runs: list[Run]
    found: list[Found] = field(default_factory=list)
    pools: list[Pool] = field(default_factory=list)
    twins: list[Twin] = field(default_factory=list)
    made_at: str = ""
    version: str = ""
    machine: dict[str, str] = field(default_factory=dict)
    format: Literal["baton-bench/1"] = FORMAT


def pooled(runs: list[Run]) -> list[Pool]:
    """By target and rate, targets in the order in which they came. Runs that were ended early stay out."""
    groups: dict[tuple[str, float], list[Run]] = {}
    for run in runs:
        if run.stopped_s is None:
            groups.setdefault((run.target, run.rate), []).append(run)
    order = list(dict.fromkeys(run.target for run in runs))
    found = []
    for (target, rate), group in sorted(
        groups.items(), key=lambda item: (order.index(item[0][0]), item[0][1])
    ):
        kept = [run for run in group if run.good] or group
        records = [record for run in kept for record in run.counted]
        window_s = sum(run.until_s - run.from_s for run in kept)
        found.append(Pool(target, rate, len(kept), summarise(records, window_s), kept[0].invalid))
    return found


@cache
def _adapter() -> TypeAdapter[Results]:
    return TypeAdapter(Results)


def to_json(results: Results) -> bytes:
    return _adapter().dump_json(results)


def schema() -> dict[str, Any]:
    return _adapter().json_schema(mode="serialization")


def write(results: Results, path: Path) -> None:
    """Compressed where the name ends in .gz."""
    text = to_json(results)
    path.write_bytes(gzip.compress(text, mtime=0) if path.suffix == ".gz" else text)


def read(path: Path) -> Results:
    """InvalidArgument: no such file, or it holds something else."""
    try:
        text = path.read_bytes()
        return _adapter().validate_json(gzip.decompress(text) if path.suffix == ".gz" else text)
    except (OSError, EOFError) as error:
        raise InvalidArgument(f"cannot read {path}: {error}") from None
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        raise InvalidArgument(f"{path} holds no {FORMAT} results: {place}: {first['msg']}") from None
