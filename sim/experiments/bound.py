"""What no schedule can exceed: the most requests that a cluster with perfect knowledge could serve in time.

The machines are fused into one that is as fast as all of them together, computes prompts in the best possible
batches, finds every block that was ever computed in its cache, and moves KV in no time. A fixed share of it
goes to decode: what the answers cost in the largest batches that keep the TPOT target, or what they add to
steps full of prompts, if that is less. The rest computes
prompts, and is told in advance which requests to turn away. With one TTFT target for all, deadlines come in
the order of arrival, and the largest set of prompts that can all be on time is found exactly by serving in
that order and dropping, whenever one would be late, the prompt whose absence helps it most (Kise, Ibaraki,
Mine: "A Solvable Case of the One-Machine Scheduling Problem with Ready and Due Times", Operations Research
26, 1978).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from baton.core.request import Slo
from baton.sim.cost import StepWork
from baton.sim.spec import Profile
from baton.sim.workload.arrival import Arrival

DUST_S = 1e-9  # of rounding
MANY = 64  # prompts in a step: its fixed costs hardly count


@dataclass(frozen=True, slots=True)
class Need:
    """Machine-seconds that one request costs at least, and when it comes. apart_s: of decode, on machines
    that compute no prompts."""

    at_s: float
    prefill_s: float
    decode_s: float
    apart_s: float


def needs(trace: Sequence[Arrival], profile: Profile, slo: Slo) -> list[Need]:
    """Of each request, in order."""
    rows = best_rows(trace, profile, slo)
    seen: set[tuple[int, int]] = set()
    found = []
    for arrival in trace:
        cached = 0
        for block in arrival.prefix:
            if (block, arrival.prefix_block) not in seen:
                break
            cached += arrival.prefix_block
        seen.update((block, arrival.prefix_block) for block in arrival.prefix)
        cached = min(cached, arrival.prompt_tokens - 1)
        prefill_s = prompt_s(profile, arrival.prompt_tokens - cached, cached)
        context = arrival.prompt_tokens + arrival.output_tokens // 2
        apart_s, beside_s = _token_s(profile, rows, context)
        tokens = arrival.output_tokens - 1
        found.append(Need(arrival.at_s, prefill_s, tokens * min(apart_s, beside_s), tokens * apart_s))
    return found


def _token_s(profile: Profile, rows: int, context: int) -> tuple[float, float]:
    """Of one answer in a batch of so many: in steps of their own, and as what they add to a step full of
    prompts, whose arithmetic may hide the reading of weights and KV."""
    cost, tokens = profile.cost, profile.max_batch_tokens
    pairs = tokens * tokens / 2
    alone_s = cost.step_s(StepWork(0, 0.0, 0, rows, rows * context))
    both_s = cost.step_s(StepWork(MANY * tokens, MANY * pairs, MANY, rows, rows * context))
    added_s = both_s - cost.step_s(StepWork(MANY * tokens, MANY * pairs, MANY, 0, 0))
    return alone_s / rows, added_s / rows


def prompt_s(profile: Profile, tokens: int, cached: int) -> float:
    """Seconds of a prompt's computation among many others."""
    pairs = tokens * (cached + tokens / 2)
    return profile.cost.step_s(StepWork(MANY * tokens, MANY * pairs, MANY, 0, 0)) / MANY


def best_rows(trace: Sequence[Arrival], profile: Profile, slo: Slo) -> int:
    """The largest decode batch of mean requests that memory, the node's limit and the TPOT target allow."""
    count = len(trace)
    context = sum(a.prompt_tokens + a.output_tokens / 2 for a in trace) / count if count else 1.0
    rows = min(profile.max_running, int(profile.num_blocks * profile.block_size / context))
    while rows > 1 and slo.tpot_s is not None:
        if profile.cost.step_s(StepWork(0, 0.0, 0, rows, round(rows * context))) <= slo.tpot_s:
            break
        rows -= 1
    return max(1, rows)


def on_time(wanted: Sequence[tuple[float, float]], ttft_s: float, speed: float) -> list[bool]:
    """Which of (arrival, seconds of work), in order of arrival, belong to a largest set that one machine of
    that speed can complete within ttft_s each."""
    kept = [True] * len(wanted)
    queue: list[
        tuple[int, float, float, float]
    ] = []  # since the machine was idle: (number, start, work, arrival)
    free_s = 0.0
    for number, (at_s, work) in enumerate(wanted):
        if at_s >= free_s:
            queue, free_s = [], at_s
        work_s = work / speed
        queue.append((number, free_s, work_s, at_s))
        free_s += work_s
        if free_s <= at_s + ttft_s + DUST_S:
            continue
        place = _best_without(queue)
        kept[queue[place][0]] = False
        queue, free_s = _without(queue, place)
    return kept


def _best_without(queue: Sequence[tuple[int, float, float, float]]) -> int:
    """Place of the prompt whose absence ends the queue soonest: what it saves is its work, unless those
    behind it came too late to move up so far."""
    best, best_s = len(queue) - 1, -1.0
    room_s = float("inf")
    for place in range(len(queue) - 1, -1, -1):
        _, start_s, work_s, at_s = queue[place]
        saved_s = min(work_s, room_s)
        if saved_s > best_s:
            best, best_s = place, saved_s
        room_s = min(room_s, start_s - at_s)
    return best


def _without(
    queue: Sequence[tuple[int, float, float, float]], place: int
) -> tuple[list[tuple[int, float, float, float]], float]:
    left = list(queue[:place])
    free_s = queue[place][1]
    for number, _, work_s, at_s in queue[place + 1 :]:
        start_s = max(free_s, at_s)
        left.append((number, start_s, work_s, at_s))
        free_s = start_s + work_s
    return left, free_s


def served(found: Sequence[Need], factor: float, nodes: float, ttft_s: float | None) -> list[bool]:
    """Which requests could at best be served in time by `nodes` machines, all arrival times multiplied by
    `factor`. The decode share is that of the requests that remain; as that depends on which do, it is found
    by repetition."""
    possible = [ttft_s is None or need.prefill_s <= ttft_s for need in found]  # a prompt runs on one node
    kept = possible
    span_s = max(1e-9, found[-1].at_s * factor if found else 0.0)
    for _ in range(4):
        decode_s = sum(need.decode_s for need, keep in zip(found, kept, strict=True) if keep)
        speed = nodes - decode_s / span_s
        if speed <= 0.0:
            return _cheapest(found, nodes * span_s)
        chosen = [i for i, may in enumerate(possible) if may]
        wanted = [(found[i].at_s * factor, found[i].prefill_s) for i in chosen]
        late = on_time(wanted, float("inf") if ttft_s is None else ttft_s, speed)
        now = list(possible)
        for i, keep in zip(chosen, late, strict=True):
            now[i] = keep
        if now == kept:
            break
        kept = now
    return kept


def _cheapest(found: Sequence[Need], budget_s: float) -> list[bool]:
    """As many as fit into so many machine-seconds."""
    kept = [False] * len(found)
    for number in sorted(range(len(found)), key=lambda i: found[i].prefill_s + found[i].decode_s):
        budget_s -= found[number].prefill_s + found[number].decode_s
        if budget_s < 0.0:
            break
        kept[number] = True
    return kept
