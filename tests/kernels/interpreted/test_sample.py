"""The choice of tokens has the reference's bits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

from baton.core.batch import Row
from baton.core.request import SamplingParams
from baton.engine.sampler import Sampler
from baton.kernels.backend import choose
from baton.kernels.sample import NO_TOKEN, Choice, reference, triton

pytestmark = pytest.mark.filterwarnings("ignore:invalid value encountered", "ignore:overflow encountered")
INF, NAN = torch.inf, torch.nan
FILTERS = [(0, 1.0, 0.0), (5, 1.0, 0.0), (0, 0.7, 0.0), (40, 0.95, 0.02), (3, 0.0, 1.0), (9_999, 0.5, 0.0)]


def noise(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def extremes(vocab: int = 301) -> torch.Tensor:
    logits = noise(9, vocab) * 4
    logits[1] = logits[1].round()  # many are equal
    logits[2] = 0.0
    logits[2, ::2] = -0.0
    logits[3, 5:] = -INF
    logits[4, [7, 200]] = INF
    logits[5, 11] = NAN
    logits[6] = -INF
    logits[7] *= 1e36
    return logits


def test_equals_the_reference() -> None:
    table = extremes()
    choices = [Choice(0.0, 0, 1.0, 0.0, 0.5)]
    choices += [Choice((0.3, 1.0, 30.0)[i % 3], *filters, 0.05 + i / 7) for i, filters in enumerate(FILTERS)]
    logits = table.repeat_interleave(len(choices), 0)
    got = triton.sample(logits, choices * len(table))
    assert got == reference.sample(logits, choices * len(table))
    assert {*got[5 * len(choices) : 7 * len(choices)]} == {NO_TOKEN}
    assert triton.sample(logits[:0], []) == []


def test_several_tiles_and_rows_that_are_cut_off() -> None:
    wide = noise(4, 5_000) * 3
    wide[:, 4_500:] = NAN
    logits = wide[:, :4_500]
    choices = [
        Choice(0.9, 0, 0.9, 0.0, 0.2),
        Choice(1.4, 50, 0.9, 0.0, 0.99),
        Choice(1.0, 0, 1.0, 0.0, 0.5),
        Choice(0.0, 0, 1.0, 0.0, 0.0),
    ]
    assert triton.sample(logits, choices) == reference.sample(logits, choices)


def test_survey() -> None:
    logits = extremes()
    want, got = (module.survey(logits, 4) for module in (reference, triton))
    torch.testing.assert_close(got.best, want.best, rtol=0, atol=0, equal_nan=True)
    assert torch.equal(got.mass, want.mass)
    well = ~got.best.isnan()
    assert torch.equal(got.top[well], want.top[well])
    assert triton.survey(logits, 0).top.shape == (9, 0)


def test_batches_are_chosen_from_on_the_device() -> None:
    """With everything that a row may ask for: the host's tokens and log probabilities."""
    logits = extremes().repeat(2, 1)
    wishes = [
        SamplingParams(temperature=0.0, logprobs=3),
        SamplingParams(temperature=0.7, top_p=0.9, seed=3),
        SamplingParams(temperature=1.0, bad_token_ids=tuple(range(0, 301, 2)), repetition_penalty=1.5),
        SamplingParams(temperature=1.3, top_k=5, presence_penalty=1.0, logprobs=0, seed=9),
    ]
    rows = [
        Row((str(i), 0), [i], i, [1], True, wishes[i % 4], [9, 4, *range(i)], 2) for i in range(len(logits))
    ]
    assert len(rows) >= 16
    kernels = choose(torch.device("cpu"), "triton").sampling
    assert kernels is not None
    calls: list[int] = []

    def sample(table: torch.Tensor, choices: Sequence[Choice]) -> list[int]:
        calls.append(len(choices))
        return kernels.sample(table, choices)

    before = logits.clone()
    chosen = Sampler(301, replace(kernels, sample=sample))(logits, rows)
    assert chosen == Sampler(301)(logits, rows)
    assert calls == [len(rows)]
    torch.testing.assert_close(logits, before, rtol=0, atol=0, equal_nan=True)
