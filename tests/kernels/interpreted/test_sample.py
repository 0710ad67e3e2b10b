"""The choice of tokens has the reference's bits."""

from __future__ import annotations

import pytest
import torch

from baton.kernels.sample import NO_TOKEN, params, reference, triton

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
    rows = [(0.0, 0, 1.0, 0.0, 0.5)]
    rows += [((0.3, 1.0, 30.0)[i % 3], *filters, 0.05 + i / 7) for i, filters in enumerate(FILTERS)]
    logits, chosen = table.repeat_interleave(len(rows), 0), params(rows * len(table))
    got = triton.sample(logits, chosen)
    assert torch.equal(got, reference.sample(logits, chosen))
    assert (got.view(len(table), -1)[[5, 6]] == NO_TOKEN).all()


def test_several_tiles_and_rows_that_are_cut_off() -> None:
    wide = noise(4, 5_000) * 3
    wide[:, 4_500:] = NAN
    logits = wide[:, :4_500]
    chosen = params(
        [(0.9, 0, 0.9, 0.0, 0.2), (1.4, 50, 0.9, 0.0, 0.99), (1.0, 0, 1.0, 0.0, 0.5), (0.0, 0, 1.0, 0.0, 0.0)]
    )
    assert torch.equal(triton.sample(logits, chosen), reference.sample(logits, chosen))


def test_survey() -> None:
    logits = extremes()
    want, got = (module.survey(logits, 4) for module in (reference, triton))
    torch.testing.assert_close(got.best, want.best, rtol=0, atol=0, equal_nan=True)
    assert torch.equal(got.mass, want.mass)
    well = ~got.best.isnan()
    assert torch.equal(got.top[well], want.top[well])
    assert triton.survey(logits, 0).top.shape == (9, 0)
