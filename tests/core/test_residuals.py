"""Quantiles of what predictions were off by."""

from __future__ import annotations

import math
from random import Random

import pytest

from baton.core.residuals import ENOUGH, KEEP, Residuals, spread


def test_quantiles_and_chances_follow_the_latest_measurements() -> None:
    errors, dice = Residuals(), Random(1)
    for _ in range(KEEP):
        errors.add(5.0, 1.0)
    for _ in range(KEEP):
        errors.add(dice.uniform(0.5, 1.5), 1.0)
    assert len(errors) == KEEP
    assert errors.quantile(0.5) == pytest.approx(1.0, abs=0.1)
    assert errors.quantile(0.9) == pytest.approx(1.4, abs=0.1)
    assert errors.chance_above(1.25) == pytest.approx(0.25, abs=0.1)
    assert errors.chance_above(2.0) < 0.05


def test_few_measurements_give_no_quantile_and_the_prior_counts() -> None:
    errors = Residuals()
    for _ in range(ENOUGH - 1):
        assert errors.quantile(0.5) is None
        errors.add(1.0, 1.0)
    assert Residuals().chance_above(1.0) == pytest.approx(0.5)
    assert Residuals().chance_above(0.0) == 1.0
    assert Residuals().chance_above(2.0) < 0.02
    assert Residuals().chance_above(-1.0) == 1.0


def test_nonsense_is_ignored() -> None:
    errors = Residuals()
    for measured, predicted in ((0.0, 1.0), (1.0, 0.0), (math.inf, 1.0), (math.nan, 1.0), (-1.0, 1.0)):
        errors.add(measured, predicted)
    assert len(errors) == 0


def test_without_data_the_spread_is_symmetric() -> None:
    assert spread(0.5) == 0.0
    assert spread(0.9) == pytest.approx(1.21, abs=0.01)
    assert spread(0.1) == pytest.approx(-1.21, abs=0.01)
