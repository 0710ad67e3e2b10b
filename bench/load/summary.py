"""A run, or several alike, in figures."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from baton.bench.load.goodput import Goodput, goodput
from baton.bench.load.record import Outcome, Record
from baton.bench.load.spread import Spread, spread


@dataclass(frozen=True, slots=True)
class Summary:
    """Of the requests whose time lies in the window. Latencies in seconds from the time a request was due;
    ttft of all that saw a token, tpot, e2e and itl (gaps between tokens) of whole answers, longest_gap: of
    each whole answer its longest silence. *_tps: tokens of whole answers per second of the window. short:
    whole answers with fewer tokens than were asked for."""

    window_s: float
    requests: int
    outcomes: dict[str, int]
    errors: dict[str, int]
    offered_rate: float
    completed_rate: float
    goodput: Goodput
    prompt_tps: float
    output_tps: float
    short: int
    prompt_tokens: Spread
    output_tokens: Spread
    ttft_s: Spread
    tpot_s: Spread
    itl_s: Spread
    e2e_s: Spread
    longest_gap_s: Spread
    cached_tokens: int

    @property
    def ok(self) -> int:
        return self.outcomes.get(Outcome.OK, 0)

    @property
    def rejected(self) -> int:
        return self.outcomes.get(Outcome.REJECTED, 0)

    @property
    def failed(self) -> int:
        return self.requests - self.ok - self.rejected - self.unfinished

    @property
    def unfinished(self) -> int:
        """Still open when the run ended."""
        return self.outcomes.get(Outcome.UNFINISHED, 0)


ERRORS_KEPT = 8
NUMBER = re.compile(r"\d+(\.\d+)?")


def summarise(records: Sequence[Record], window_s: float) -> Summary:
    """records: those that count."""
    whole = [record for record in records if record.outcome is Outcome.OK]
    per_s = 1.0 / window_s if window_s > 0 else 0.0
    return Summary(
        window_s=window_s,
        requests=len(records),
        outcomes={str(kind): count for kind, count in Counter(r.outcome for r in records).items()},
        errors=_errors(records),
        offered_rate=len(records) * per_s,
        completed_rate=len(whole) * per_s,
        goodput=goodput(records, window_s),
        prompt_tps=sum(_prompt_tokens(record) for record in whole) * per_s,
        output_tps=sum(record.output_tokens for record in whole) * per_s,
        short=sum(record.output_tokens < record.asked_tokens for record in whole),
        prompt_tokens=spread(_prompt_tokens(record) for record in whole),
        output_tokens=spread(record.output_tokens for record in whole),
        ttft_s=spread(record.ttft_s for record in records),
        tpot_s=spread(record.tpot_s for record in records),
        itl_s=spread(gap for record in whole for gap in record.gaps_s()),
        e2e_s=spread(record.e2e_s for record in records),
        longest_gap_s=spread(record.longest_gap_s for record in whole),
        cached_tokens=sum(record.cached_tokens or 0 for record in whole),
    )


def _errors(records: Sequence[Record]) -> dict[str, int]:
    """The commonest with their counts; those that differ in numbers only are one, told by the first."""
    counts: Counter[str] = Counter()
    first: dict[str, str] = {}
    for record in records:
        if record.error:
            kind = NUMBER.sub("#", record.error)
            first.setdefault(kind, record.error)
            counts[kind] += 1
    return {first[kind]: count for kind, count in counts.most_common(ERRORS_KEPT)}


def _prompt_tokens(record: Record) -> int:
    return record.prompt_tokens if record.used_prompt_tokens is None else record.used_prompt_tokens
