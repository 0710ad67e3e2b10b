"""The sampler again, written for reading only: Python floats, loops, no shortcuts."""

from __future__ import annotations

import math

from baton.core.batch import Row


class Undecided(Exception):
    """A boundary falls within rounding: either neighbour would be right."""


def _clear(a: float, b: float) -> None:
    if a != b and abs(a - b) <= 1e-9 * max(abs(a), abs(b)):
        raise Undecided


def edited(logits: list[float], row: Row) -> list[float]:
    s, output = row.sampling, list(row.history[row.prompt_len :])
    out = list(logits)
    for i in set(row.history):
        out[i] = out[i] / s.repetition_penalty if out[i] > 0 else out[i] * s.repetition_penalty
    for i in set(output):
        out[i] -= s.presence_penalty + s.frequency_penalty * output.count(i)
    for i, bias in s.logit_bias:
        if bias > -100:
            out[i] += bias
    bans = {i for i, bias in s.logit_bias if bias <= -100} | set(s.bad_token_ids)
    ends = set(s.stop_token_ids) | (set() if s.ignore_eos else set(row.eos_token_ids))
    early = ends if len(output) < s.min_tokens else set()
    for removed in (bans | early, bans, set()):
        kept = [-math.inf if i in removed else x for i, x in enumerate(out)]
        if max(kept) > -math.inf:
            return kept
    raise AssertionError("no distribution")


def distribution(logits: list[float], row: Row) -> dict[int, float]:
    """id -> probability after all edits and filters; ids of probability 0 are left out."""
    s, values = row.sampling, edited(logits, row)
    best = max(values)
    if s.greedy:
        return {values.index(best): 1.0}
    order = sorted(range(len(values)), key=lambda i: (-values[i], i))
    if s.top_k > 0:
        order = order[: s.top_k]
    weight = {i: math.exp((values[i] - best) / s.temperature) for i in order}
    if s.top_p < 1:
        need, have, kept = s.top_p * math.fsum(weight.values()), 0.0, []
        for i in order:
            _clear(have, need)
            if have >= need:
                break
            kept.append(i)
            have += weight[i]
        order = kept
    for i in order:
        _clear(weight[i], s.min_p)
    alive = {i: weight[i] for i in sorted(order) if weight[i] >= s.min_p and weight[i] > 0}
    total = math.fsum(alive.values())
    return {i: w / total for i, w in alive.items()}


def choose(logits: list[float], row: Row, noise: float) -> int:
    done = 0.0
    probabilities = distribution(logits, row)
    for i, p in probabilities.items():
        done += p
        if done > noise:
            if abs(done - noise) < 1e-9 or (done - p and abs(done - p - noise) < 1e-9):
                raise Undecided
            return i
    raise Undecided


def logprobs(logits: list[float]) -> list[float]:
    best = max(logits)
    norm = best + math.log(math.fsum(math.exp(x - best) for x in logits))
    return [max(x - norm, -9999.0) for x in logits]
