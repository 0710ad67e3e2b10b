"""What nodes of a kind could do with a load, by arithmetic: quick enough to rank many layouts before any is
simulated.

Prompts wait for one of the pool's nodes. A queue with Poisson arrivals and c servers holds a request up with
Erlang's probability C, and then for an exponential time of mean s / (c - load) x (ca^2 + cs^2) / 2 (Allen and
Cunneen's approximation), s the mean time of a prompt, ca and cs the coefficients of variation of gaps and
times. The rate at which enough prompts still have their first token in time is found by bisection. It favours
a few fast nodes where the target is close to a prompt's own time, and many where it is not (DistServe, Zhong
et al., OSDI 2024, section 3.1, for one server). Answers run in the largest batches that the TPOT target and
memory allow; KV must fit through the nodes' NICs.

Nodes that do both take steps as long as the TPOT target allows, with prompts and answers in the proportion in
which they come.

`most` is what nodes would serve that never idle, of the cheapest requests, as many as must be in time: no
schedule is taken to exceed it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from baton.core.request import Slo
from baton.sim.cost import StepWork
from baton.sim.experiments.bound import Need, best_rows, needs, prompt_s
from baton.sim.report.scale import seconds
from baton.sim.results import percentile
from baton.sim.spec import Profile
from baton.sim.workload.arrival import Arrival

USEFUL = 0.9  # of a pool's time: above that queues grow long
SAMPLES = 200  # of the prompts' times, evenly over their distribution
HALVINGS = 30
TINY_S = 1e-12


@dataclass(frozen=True, slots=True)
class Estimate:
    """rate: requests per second that keep the targets. most: that no schedule is taken to exceed. by: what
    holds the rate back."""

    rate: float
    most: float
    by: str


@dataclass(frozen=True)
class Ability:
    """One kind of node and a load: seconds of nodes that prompts and answers cost.

    alone_s: of prompts, each on an idle node, ascending. rows, rows_by: of the largest decode batch in time,
    and what allows no larger one. prompt, output, context: of the mean request, tokens that are not cached,
    of the answer, and attended to. burst: squared coefficient of variation of the gaps between arrivals.
    """

    kind: Profile
    slo: Slo
    share: float
    found: tuple[Need, ...]
    alone_s: tuple[float, ...]
    rows: int
    rows_by: str
    prompt: float
    output: float
    context: float
    sent_bytes: float
    burst: float

    @classmethod
    def of(cls, kind: Profile, trace: Sequence[Arrival], slo: Slo, share: float) -> Ability:
        """share: of the requests that must meet both targets."""
        found = tuple(needs(trace, kind, slo))
        prompt = _computed(kind, trace, found)
        output = _mean([float(a.output_tokens) for a in trace])
        context = _mean([a.prompt_tokens + a.output_tokens / 2 for a in trace])
        rows = best_rows(trace, kind, slo)
        alone = sorted(_alone_s(kind, arrival.prompt_tokens) for arrival in trace)
        return cls(
            kind=kind,
            slo=slo,
            share=share,
            found=found,
            alone_s=tuple(alone),
            rows=rows,
            rows_by=_rows_by(kind, rows, context),
            prompt=prompt,
            output=output,
            context=context,
            sent_bytes=kind.kv_bytes_per_token * prompt,
            burst=_burst(trace),
        )

    @cached_property
    def late(self) -> str:
        """Why too few first tokens are in time whatever the rate; "" if enough can be."""
        longest_s = percentile(self.alone_s, self.share)
        if self.slo.ttft_s is None or longest_s <= self.slo.ttft_s:
            return ""
        return f"prompts take {seconds(longest_s)} on an idle node (P{100 * self.share:.3g})"

    @cached_property
    def slow(self) -> str:
        """Why no answer is in time; "" if some can be."""
        step_s = self.kind.cost.step_s(StepWork(0, 0.0, 0, 1, round(self.context)))
        if self.slo.tpot_s is None or step_s <= self.slo.tpot_s or not any(n.apart_s for n in self.found):
            return ""
        return f"a decode step takes {seconds(step_s)} even alone"

    @cached_property
    def prompt_s(self) -> float:
        return max(TINY_S, _mean([need.prefill_s for need in self.found]))

    @cached_property
    def apart_s(self) -> float:
        """Of an answer's decode on nodes that compute no prompts."""
        return max(TINY_S, _mean([need.apart_s for need in self.found]))

    @cached_property
    def mixed(self) -> tuple[StepWork, float]:
        """The usual step of nodes that do both under full load, and how many requests' share of work it is:
        as much of their prompts as of their answers, all that fits into the TPOT target and the node."""
        answers = self.output - 1.0
        held = min(self.kind.num_blocks * self.kind.block_size / self.context, self.kind.max_running)
        low, high = 0.0, min(self.kind.max_batch_tokens / (self.prompt + answers), held / max(1.0, answers))
        if self.slo.tpot_s is not None and answers:
            for _ in range(HALVINGS):
                middle = (low + high) / 2
                fits = self.kind.cost.step_s(self._mix(middle)) <= self.slo.tpot_s
                low, high = (middle, high) if fits else (low, middle)
        return self._mix(high), high

    def _mix(self, requests: float) -> StepWork:
        tokens, rows = round(requests * self.prompt), math.ceil(requests * (self.output - 1.0))
        chunks = math.ceil(requests) if tokens else 0
        return StepWork(tokens, tokens * self.prompt / 2, chunks, rows, round(rows * self.context))

    @cached_property
    def both_s(self) -> float:
        """Of a request on nodes that do both."""
        work, requests = self.mixed
        return max(self.prompt_s, self.kind.cost.step_s(work) / requests)

    @cached_property
    def answer_s(self) -> float:
        """Of an answer on nodes that do both, its prompt computed elsewhere."""
        least_s = max(TINY_S, _mean([need.decode_s for need in self.found]))
        return min(max(self.both_s - self.prompt_s, least_s), max(self.apart_s, least_s))

    @cached_property
    def spread(self) -> float:
        """Squared coefficient of variation of the prompts' times."""
        squares = _mean([need.prefill_s**2 for need in self.found])
        return max(0.0, squares / self.prompt_s**2 - 1.0)

    @cached_property
    def sampled_s(self) -> tuple[float, ...]:
        count = min(SAMPLES, len(self.alone_s))
        return tuple(self.alone_s[int((i + 0.5) * len(self.alone_s) / count)] for i in range(count))

    @cached_property
    def mostly(self) -> tuple[str, str]:
        """What takes the time of steps full of prompts, and of decode steps."""
        tokens = self.kind.max_batch_tokens
        prompts = StepWork(tokens, tokens * tokens / 2, 1, 0, 0)
        rows = StepWork(0, 0.0, 0, self.rows, round(self.rows * self.context))
        return self.kind.cost.mostly(prompts), self.kind.cost.mostly(rows)

    def fewer(self, cost: Callable[[Need], float]) -> float:
        """How many times the rate nodes reach that serve the cheapest requests alone, just enough of them."""
        costs = sorted(cost(need) for need in self.found)
        kept = sum(costs[: math.ceil(self.share * len(costs))])
        return sum(costs) / kept if kept else 1.0

    def in_time(self, nodes: int, rate: float, answer_s: float = 0.0) -> float:
        """Share of the first tokens. answer_s: of each request's decode on the same nodes."""
        free = 1.0 - rate * answer_s / nodes
        mean_s = self.prompt_s / max(TINY_S, free)
        load = rate * mean_s
        if free <= 0.0 or load >= nodes:
            return 0.0
        if self.slo.ttft_s is None:
            return 1.0
        waits = erlang_c(nodes, load)
        wait_s = mean_s / (nodes - load) * max(TINY_S, self.burst + self.spread) / 2
        left = [self.slo.ttft_s - prompt_s / free for prompt_s in self.sampled_s]
        return 1.0 - _mean([waits * math.exp(-each / wait_s) if each >= 0.0 else 1.0 for each in left])

    def prompt_rate(self, nodes: int, answer_s: float = 0.0) -> float:
        """The highest at which enough first tokens are in time."""
        low, high = 0.0, USEFUL * nodes / (self.prompt_s + answer_s)
        if self.in_time(nodes, high, answer_s) >= self.share:
            return high
        for _ in range(HALVINGS):
            middle = (low + high) / 2
            enough = self.in_time(nodes, middle, answer_s) >= self.share
            low, high = (middle, high) if enough else (low, middle)
        return low


def pools(first: Ability, prefills: int, second: Ability, decodes: int) -> Estimate:
    """Nodes that compute prompts, and others that generate."""
    by_prompts = first.prompt_rate(prefills)
    nic_bytes_s = min(prefills * first.kind.nic_bytes_s, decodes * second.kind.nic_bytes_s)
    sent = nic_bytes_s / max(TINY_S, first.sent_bytes)
    waiting = by_prompts < 0.99 * USEFUL * prefills / first.prompt_s
    rate, by = min(
        (by_prompts, "prefill: " + ("queue within TTFT" if waiting else first.mostly[0])),
        (
            USEFUL * decodes / second.apart_s,
            f"decode: {second.mostly[1]}, {second.rows} rows ({second.rows_by})",
        ),
        (USEFUL * sent, "hand-offs: NICs"),
    )
    most = min(
        prefills / first.prompt_s * first.fewer(lambda need: need.prefill_s),
        decodes / second.apart_s * second.fewer(lambda need: need.apart_s),
        sent / first.share,
    )
    return Estimate(rate, most, by)


def alike(kind: Ability, both: int, prefills: int = 0) -> Estimate:
    """Nodes that do both, and some of the same kind that compute prompts alone."""
    nodes = both + prefills
    apart = min(prefills / kind.prompt_s, both / kind.apart_s)  # requests whose prompts the latter compute
    never_idle = apart + max(0.0, both - apart * kind.answer_s) / kind.both_s
    by_work, by_queue = USEFUL * never_idle, kind.prompt_rate(nodes, kind.answer_s)
    work, _ = kind.mixed
    step = f"both: {kind.kind.cost.mostly(work)}, steps of {seconds(kind.kind.cost.step_s(work))}"
    by = "both: queue within TTFT" if by_queue < 0.99 * by_work else step
    return Estimate(
        min(by_work, by_queue), never_idle * kind.fewer(lambda need: need.prefill_s + need.decode_s), by
    )


def erlang_c(servers: int, load: float) -> float:
    """The chance to find all servers busy, by Erlang's second formula. load: below their number."""
    blocked = 1.0  # Erlang B, by its recursion
    for count in range(1, servers + 1):
        blocked = load * blocked / (count + load * blocked)
    return blocked / (1.0 - load / servers * (1.0 - blocked))


def _alone_s(kind: Profile, tokens: int) -> float:
    """Of a prompt on an idle node, in chunks as the node makes them."""
    chunk = min(kind.chunk_tokens, kind.max_batch_tokens)
    whole, rest = divmod(tokens, chunk)
    sizes = [chunk] * whole + ([rest] if rest else [])
    step_s = kind.cost.step_s
    return sum(step_s(StepWork(size, size * (i * chunk + size / 2), 1, 0, 0)) for i, size in enumerate(sizes))


def _computed(kind: Profile, trace: Sequence[Arrival], found: Sequence[Need]) -> float:
    """Prompt tokens of the mean request, less what prefixes that come again save."""
    whole_s = sum(prompt_s(kind, arrival.prompt_tokens, 0) for arrival in trace)
    share = sum(need.prefill_s for need in found) / whole_s if whole_s else 1.0
    return max(1.0, share * _mean([arrival.prompt_tokens for arrival in trace]))


def _rows_by(kind: Profile, rows: int, context: float) -> str:
    """What allows no larger batch."""
    held = int(kind.num_blocks * kind.block_size / context)
    if rows < min(held, kind.max_running):
        return "TPOT"
    return "KV memory" if held <= kind.max_running else "max_running"


def _burst(trace: Sequence[Arrival]) -> float:
    gaps = [after.at_s - before.at_s for before, after in pairwise(trace)]
    mean_s = _mean(gaps)
    return _mean([gap_s**2 for gap_s in gaps]) / mean_s**2 - 1.0 if mean_s else 1.0


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0
