"""From measurements to the parameters of a node's profile (`sim.profiles`)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import combinations
from statistics import median

import numpy as np
from numpy.typing import NDArray

from baton.bench.profile.samples import (
    DecodeBeside,
    DecodeSample,
    PrefillSample,
    PromptBeside,
    Samples,
    TransferSample,
)

MAD = 1.4826  # a normal distribution's deviation over its median absolute one
MAX_NOISE = 0.3


def prefill(samples: Sequence[PrefillSample]) -> tuple[float, float, float]:
    """Seconds per step, per token, per pair of tokens; none below 0, in relative least squares over the
    medians of what was measured alike."""
    alike = _alike((s.steps, s.tokens, s.pairs, s.node_s) for s in samples)
    found = nonnegative(np.array([key for key, _ in alike]), np.array([value for _, value in alike]))
    return float(found[0]), float(found[1]), float(found[2])


def prefill_s(fitted: tuple[float, float, float], sample: PrefillSample) -> float:
    return fitted[0] * sample.steps + fitted[1] * sample.tokens + fitted[2] * sample.pairs


def decode(samples: Sequence[DecodeSample]) -> tuple[dict[int, float], float]:
    """Seconds of a step by rows without context, and seconds per KV token. More rows are never faster: where
    they were measured so, it is their mean."""
    alike = _alike((s.rows, s.context, s.step_s) for s in samples)
    rows = sorted({int(key[0]) for key, _ in alike})
    a = np.array([[float(key[0] == r) for r in rows] + [key[1]] for key, _ in alike], dtype=np.float64)
    found = nonnegative(a, np.array([value for _, value in alike]))
    return dict(zip(rows, ascending([float(value) for value in found[:-1]]), strict=True)), float(found[-1])


def ascending(values: Sequence[float]) -> list[float]:
    """The nearest sequence that never falls, in least squares: neighbours that fall become their mean."""
    runs: list[tuple[float, int]] = []
    for value in values:
        total, count = value, 1
        while runs and runs[-1][0] / runs[-1][1] >= total / count:
            before, many = runs.pop()
            total, count = total + before, count + many
        runs.append((total, count))
    return [total / count for total, count in runs for _ in range(count)]


def _alike(rows: Iterable[tuple[float, ...]]) -> list[tuple[tuple[float, ...], float]]:
    """The median of the last number by all before it."""
    groups: dict[tuple[float, ...], list[float]] = {}
    for *key, value in rows:
        groups.setdefault(tuple(key), []).append(value)
    return [(key, median(values)) for key, values in groups.items()]


def transfer(samples: Sequence[TransferSample]) -> tuple[float, float]:
    """Seconds besides the bytes, and bytes per second. No samples: nothing is known to cost anything."""
    if not samples:
        return 0.0, 1e12
    a = np.array([[1.0, sample.payload_bytes] for sample in samples], dtype=np.float64)
    fixed, per_byte = nonnegative(a, np.array([sample.seconds for sample in samples]))
    return float(fixed), 1.0 / max(float(per_byte), 1e-12)


def noise(samples: Sequence[PrefillSample], fitted: tuple[float, float, float]) -> float:
    """Relative deviation of samples from what was fitted, outliers passed over."""
    off = [abs(sample.node_s / max(prefill_s(fitted, sample), 1e-9) - 1) for sample in samples]
    return min(MAX_NOISE, MAD * median(off)) if off else 0.0


def overhead_s(samples: Sequence[PrefillSample]) -> float:
    """Of the first token: what passes outside of the node."""
    return max(0.0, median(sample.ttft_s - sample.node_s for sample in samples)) if samples else 0.0


def beside(samples: Samples, context_s: float) -> dict[str, dict[str, float | dict[int, float]]]:
    """How many times as long steps take beside others, as `sim.host.Beside` has it, by what they are, what is
    beside them, and rows; what was not measured is missing. Never below 1."""
    prompts = _alike((sample.rows, _held_up(sample)) for sample in samples.prompt_beside)
    decode = _alike(
        (sample.prompts, sample.alone.rows, _slowed(sample, context_s)) for sample in samples.decode_beside
    )
    found: dict[str, dict[str, float | dict[int, float]]] = {"prompt": {}, "decode": {}}
    for key, factor in prompts:
        if key[0] == 0:
            found["prompt"]["prompt"] = factor
    by_rows = {int(key[0]): factor for key, factor in prompts if key[0]}
    of_prompts = {int(key[1]): factor for key, factor in decode if key[0]}
    of_decode = {int(key[1]): factor for key, factor in decode if not key[0]}
    for kind, other, points in (
        ("prompt", "decode", by_rows),
        ("decode", "prompt", of_prompts),
        ("decode", "decode", of_decode),
    ):
        if points:
            found[kind][other] = dict(sorted(points.items()))
    return found


def crowd(samples: Samples, context_s: float) -> dict[str, float]:
    """How many times as long steps take while all nodes of a host run; {}: not measured."""
    if not samples.crowds:
        return {}
    return {
        "nodes": samples.crowds[0].nodes,
        "prompt": median(_held_up(sample.prompts) for sample in samples.crowds),
        "decode": median(_slowed(sample.decode, context_s) for sample in samples.crowds),
    }


def _held_up(sample: PromptBeside) -> float:
    return max(1.0, sample.beside_s / sample.alone_s)


def _slowed(sample: DecodeBeside, context_s: float) -> float:
    alone_s = sample.alone.step_s + context_s * (sample.beside.context - sample.alone.context)
    return max(1.0, 1.0 + (sample.beside.step_s / max(alone_s, 1e-9) - 1.0) / max(sample.share, 0.1))


def nonnegative(a: NDArray[np.float64], y: NDArray[np.float64]) -> NDArray[np.float64]:
    """The x >= 0 with the least squares of (a x - y) / y, or as many columns left out as that takes. Exact
    for few columns: of all ways to leave some out the best."""
    weights = 1.0 / np.maximum(y, 1e-9)
    scale = np.maximum(np.abs(a).max(axis=0), 1e-30)
    scaled, goal = a / scale * weights[:, None], y * weights
    count = a.shape[1]
    best, best_cost = np.zeros(count), float(goal @ goal)
    for kept in range(count, 0, -1):
        for columns in combinations(range(count), kept):
            part, *_ = np.linalg.lstsq(scaled[:, columns], goal, rcond=None)
            rest = scaled[:, columns] @ part - goal
            if (part >= 0).all() and (cost := float(rest @ rest)) < best_cost * (1 - 1e-9):
                best, best_cost = np.zeros(count), cost
                best[list(columns)] = part
    return best / scale
