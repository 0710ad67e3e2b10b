"""Samples over many positions follow the exact filtered distribution."""

from __future__ import annotations

import pytest
import torch

from baton.core.request import SamplingParams
from baton.engine.sampler import Sampler
from tests.engine.sampler import reference
from tests.engine.sampler.make import row

VOCAB = 12
DRAWS = 4000
LOGITS = [0.3, -1.0, 2.0, 1.1, 0.0, -3.0, 1.9, 0.7, -0.2, 1.5, -9.0, 0.9]


def chi2_limit(freedom: int) -> float:
    """The quantile for p = 1e-4 (Wilson and Hilferty's cube approximation)."""
    spread = 2 / (9 * freedom)
    return freedom * (1 - spread + 3.719 * spread**0.5) ** 3


@pytest.mark.parametrize(
    "sampling",
    [
        SamplingParams(),
        SamplingParams(temperature=2.5),
        SamplingParams(temperature=0.6, top_k=5),
        SamplingParams(top_p=0.8),
        SamplingParams(min_p=0.25),
        SamplingParams(temperature=1.3, top_k=9, top_p=0.9, min_p=0.1, logit_bias=((2, -100.0), (4, 1.5))),
    ],
    ids=["plain", "hot", "top_k", "top_p", "min_p", "all"],
)
@pytest.mark.parametrize("vary", ["seed", "position"])
def test_chi_square(sampling: SamplingParams, vary: str) -> None:
    sampler = Sampler(VOCAB)
    table = torch.tensor(LOGITS).repeat(DRAWS, 1)
    fields = {name: getattr(sampling, name) for name in SamplingParams.__slots__ if name != "seed"}
    if vary == "seed":
        rows = [row(SamplingParams(seed=i, **fields)) for i in range(DRAWS)]
    else:
        rows = [row(SamplingParams(seed=99, **fields), output=[0] * i) for i in range(DRAWS)]
    counts = [0] * VOCAB
    for token_id, _ in sampler(table, rows):
        counts[token_id] += 1
    exact = reference.distribution(torch.tensor(LOGITS).tolist(), rows[0])
    assert {i for i, count in enumerate(counts) if count} <= set(exact)
    expected = {i: p * DRAWS for i, p in exact.items() if p * DRAWS >= 5}
    assert len(expected) >= 3
    chi2 = sum((counts[i] - want) ** 2 / want for i, want in expected.items())
    assert chi2 < chi2_limit(len(expected) - 1)
