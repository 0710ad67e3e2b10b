"""The fits: find known parameters, stay non-negative, survive nonsense, follow change."""

from __future__ import annotations

import math
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton.core.fit import Fit, solve
from baton.core.fitted_cost import CostPrior, FittedCost
from baton.core.load import LoadReport, Role


def prefill_truth(new: int, cached: int) -> float:
    return 3e-3 + 2e-4 * new + 5e-8 * new * (cached + new / 2)


def test_prefill_parameters_are_recovered_from_noisy_samples() -> None:
    cost, dice = FittedCost(), Random(1)
    for _ in range(500):
        new, cached = dice.randrange(1, 1024), dice.randrange(0, 4096)
        cost.observe_prefill(new, cached, prefill_truth(new, cached) * dice.gauss(1.0, 0.05))
    for new, cached in ((16, 0), (512, 0), (512, 4096), (1024, 2048)):
        assert cost.prefill_s(new, cached).mean_s == pytest.approx(prefill_truth(new, cached), rel=0.05)
    a, b, d = cost.as_prior().prefill
    assert (a, b, d) == (
        pytest.approx(3e-3, rel=0.3),
        pytest.approx(2e-4, rel=0.1),
        pytest.approx(5e-8, rel=0.2),
    )
    sigma = cost.prefill_s(512, 0).sigma_s / cost.prefill_s(512, 0).mean_s
    assert 0.02 < sigma < 0.1


def test_decode_and_transfer_are_fitted_from_reports() -> None:
    cost, dice = FittedCost(), Random(2)
    for seq in range(60):
        rows, context, payload = dice.randrange(1, 32), dice.randrange(1, 8192), dice.randrange(1, 1 << 24)
        cost.observe(
            LoadReport(
                seq,
                Role.DECODE,
                decode_samples=((rows, context, 0.01 + 2e-4 * rows + 1e-6 * context),),
                transfer_samples=((payload, 1e-4 + payload / 5e9),),
            )
        )
    assert cost.decode_step_s(10, 1000).mean_s == pytest.approx(0.013, rel=0.02)
    assert cost.transfer_s(1 << 20).mean_s == pytest.approx(1e-4 + (1 << 20) / 5e9, rel=0.05)


def test_prior_answers_before_the_first_sample_and_gives_way_soon() -> None:
    cost = FittedCost(CostPrior(prefill=(1e-3, 1e-6, 0.0)))
    assert cost.prefill_s(1000, 0).mean_s == pytest.approx(2e-3)
    for new in (100, 200, 400, 800, 1600) * 4:
        cost.observe_prefill(new, 0, 1e-3 * new)  # a thousand times the prior's slope
    assert cost.prefill_s(1000, 0).mean_s == pytest.approx(1.0, rel=0.2)


def test_one_without_samples_is_taken_for_the_usual_one_and_goes_on_from_there() -> None:
    usual, fit = Fit((1e-3, 1e-4), (1.0, 100.0)), Fit((1e-3, 1e-4), (1.0, 100.0))
    for i in range(40):
        usual.observe((1.0, 10.0), 0.02 + 0.001 * (i % 4))
    fit.start_from(usual)
    assert fit.mean((1.0, 10.0)) == usual.mean((1.0, 10.0))
    assert fit.factor(0.9) == usual.factor(0.9)
    fit.observe((1.0, 10.0), 0.025)
    assert fit.samples == 1
    assert 0.02 < fit.mean((1.0, 10.0)) < 0.026
    assert fit.factor(0.9) < 1.3, "nothing of the first prior's doubt is left"
    before = fit.mean((1.0, 10.0))
    fit.start_from(Fit((1.0, 1.0), (1.0, 100.0)))
    assert fit.mean((1.0, 10.0)) == before, "it has a sample of its own"


def test_fit_follows_a_node_that_slows_down() -> None:
    fit = Fit((1e-3, 1e-4), (1.0, 100.0))
    for slope in (1e-4, 5e-4):
        for i in range(300):
            x = 50.0 + 37 * i % 500
            fit.observe((1.0, x), 1e-3 + slope * x)
    assert fit.mean((1.0, 300.0)) == pytest.approx(1e-3 + 5e-4 * 300, rel=0.1)


def test_one_outlier_moves_little() -> None:
    fit = Fit((1e-3, 1e-4), (1.0, 100.0))
    for i in range(100):
        x = 50.0 + 37 * i % 500
        fit.observe((1.0, x), 1e-3 + 1e-4 * x)
    fit.observe((1.0, 100.0), 60.0)
    assert fit.mean((1.0, 100.0)) == pytest.approx(0.011, rel=0.1)


def test_where_data_say_nothing_the_last_parameters_stay() -> None:
    fit = Fit((0.0, 1e-4), (1.0, 100.0))
    for _ in range(3000):  # one size only: nothing tells intercept from slope
        fit.observe((1.0, 100.0), 0.02)
    assert fit.mean((1.0, 100.0)) == pytest.approx(0.02, rel=0.01)
    assert fit.mean((1.0, 200.0)) == pytest.approx(0.04, rel=0.5)


@given(
    st.lists(
        st.tuples(
            st.integers(0, 10**6), st.integers(0, 10**6), st.floats(allow_nan=True, allow_infinity=True)
        ),
        max_size=60,
    )
)
def test_predictions_are_finite_and_non_negative_whatever_comes_in(
    samples: list[tuple[int, int, float]],
) -> None:
    cost = FittedCost()
    for new, cached, seconds in samples:
        cost.observe_prefill(new, cached, seconds)
        cost.observe_decode_step(new, cached, seconds)
        cost.observe_transfer(new, seconds)
    prior = cost.as_prior()
    for theta in (prior.prefill, prior.decode, prior.transfer):
        assert all(math.isfinite(t) and t >= 0.0 for t in theta)
    assert cost.prefill_s(100, 10).quantile_s(-100.0) >= 0.0


def test_falling_latencies_do_not_make_a_negative_slope() -> None:
    fit = Fit((1e-3, 1e-4), (1.0, 100.0))
    for i in range(100):
        x = 10.0 + 7 * i % 100
        fit.observe((1.0, x), 1.0 - 0.005 * x)
    assert fit.theta[1] == 0.0
    assert 0.4 < fit.theta[0] < 1.0


def test_solver() -> None:
    assert solve([[4.0, 2.0], [2.0, 3.0]], [2.0, 5.0]) == pytest.approx([-0.5, 2.0])
    assert solve([[1.0, 1.0], [1.0, 1.0]], [1.0, 1.0]) is None


def test_a_prompt_of_several_steps_is_predicted_though_all_steps_are_alike() -> None:
    """Nothing tells what of such a step is fixed."""
    cost = FittedCost(step_tokens=16)
    for number in range(40):
        cost.observe_prefill(16, 16 * number, 0.05)
    assert cost.prefill_s(600, 0).mean_s == pytest.approx(38 * 0.05, rel=0.05)
    assert cost.prefill_at(0.5, 600, 0) == pytest.approx(38 * 0.05, rel=0.1)
    assert cost.queue_s(600, 600 * 300) == pytest.approx(600 / 16 * 0.05, rel=0.05)
    assert cost.prefill_token_s() == pytest.approx(0.05 / 16, rel=0.05)
