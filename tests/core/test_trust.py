"""What was measured is believed for as long as it has held: then a node counts as one of its peers again."""

from __future__ import annotations

from random import Random

import pytest

from baton.core.fit import Fit
from baton.core.trust import LEAST_S, MOST_S, Trust

X = (1.0, 50.0)
PACE_S = 0.011  # of a usual node, at X


def fit() -> Fit:
    return Fit((1e-3, 1e-4), (1.0, 100.0))


def measured(pace: float, at_s: float = 0.0, count: int = 40, into: Fit | None = None) -> Fit:
    """So many samples, 0.1 s apart, of a node that takes `pace` times as long as usual."""
    made = into if into is not None else fit()
    for i in range(count):
        x = (1.0, 20.0 + 37 * i % 100)
        made.observe(x, pace * (0.006 + 1e-4 * x[1]), at_s + 0.1 * i)
    return made


@pytest.mark.parametrize(
    ("held_s", "life_s"), [(0.0, LEAST_S), (3.0, LEAST_S), (25.0, 25.0), (1000.0, MOST_S)]
)
def test_what_has_held_for_a_while_is_believed_for_as_long_again(held_s: float, life_s: float) -> None:
    trust = Trust()
    trust.begin(100.0)
    trust.seen(100.0 + held_s)
    seen_s = 100.0 + held_s
    assert trust.doubt(seen_s - 1.0) == 0.0
    assert trust.doubt(seen_s) == 0.0
    assert trust.doubt(seen_s + life_s / 2) == pytest.approx(0.5)
    assert trust.doubt(seen_s + 2 * life_s) == pytest.approx(2.0)


def test_a_slow_one_without_work_is_taken_for_one_of_its_peers_by_and_by() -> None:
    peers, slow = measured(1.0), measured(5.0)
    seen_s, means = 3.9, []
    for waited_s in (0.0, 2.5, 5.0, 10.0, 500.0):
        slow.lean(peers, seen_s + waited_s)
        means.append(slow.mean(X) / PACE_S)
    assert means == pytest.approx([5.0, 4.0, 3.0, 1.0, 1.0], rel=0.02)


def test_its_quantiles_lean_as_its_mean_does() -> None:
    peers, slow, dice = measured(1.0), fit(), Random(3)
    for i in range(200):
        slow.observe(X, 5 * PACE_S * dice.choice((0.8, 1.0, 1.3)), 0.01 * i)
    wide = slow.factor(0.9)
    assert wide > 1.2
    slow.lean(peers, 1.99 + LEAST_S / 2)
    assert slow.factor(0.9) == pytest.approx((wide + peers.factor(0.9)) / 2)
    slow.lean(peers, 1.99 + LEAST_S)
    assert slow.factor(0.9) == pytest.approx(peers.factor(0.9))
    slow.hold()
    assert slow.factor(0.9) == wide


def test_a_fast_one_without_work_keeps_what_it_knows() -> None:
    peers, fast = measured(5.0), measured(1.0)
    fast.lean(peers, 1e6)
    assert fast.mean(X) == pytest.approx(PACE_S, rel=0.02)
    assert fast.risk == 0.0


def test_one_without_peers_keeps_what_it_knows() -> None:
    slow = measured(5.0)
    before = slow.theta
    slow.lean(fit(), 1e6)
    assert slow.theta == before
    slow.lean(slow, 1e6)
    assert slow.theta == before


def test_while_it_is_tried_its_own_figures_count() -> None:
    peers, slow = measured(1.0), measured(5.0)
    slow.lean(peers, 100.0)
    assert slow.mean(X) == pytest.approx(PACE_S, rel=0.02)
    slow.hold()
    assert slow.mean(X) == pytest.approx(5 * PACE_S, rel=0.02)


def test_whoever_would_be_late_holds_on_to_them_for_twice_as_long() -> None:
    peers, slow = measured(1.0), measured(5.0)
    risks = []
    for waited_s in (5.0, 10.0, 15.0, 20.0):
        slow.lean(peers, 3.9 + waited_s)
        risks.append((slow.risk, slow.excess * slow.mean(X) / PACE_S))
    assert [risk for risk, _ in risks] == pytest.approx([1.0, 1.0, 0.5, 0.0])
    assert [own for _, own in risks] == pytest.approx([5.0] * 4, rel=0.02)


def test_found_slow_again_it_is_believed_at_once_and_for_longer() -> None:
    peers, slow = measured(1.0), measured(5.0)
    slow.lean(peers, 16.0)
    assert slow.mean(X) == pytest.approx(PACE_S, rel=0.02)
    slow.observe(X, 5 * PACE_S, 16.0)
    assert slow.mean(X) == pytest.approx(5 * PACE_S, rel=0.02)
    slow.lean(peers, 24.0)  # 16 s is what it has held
    assert slow.mean(X) == pytest.approx(3 * PACE_S, rel=0.02)


def test_found_well_again_one_measurement_is_enough() -> None:
    peers, slow = measured(1.0), measured(5.0)
    slow.lean(peers, 16.0)
    slow.hold()
    slow.observe(X, 1.2 * PACE_S, 16.0)
    assert slow.mean(X) == pytest.approx(1.2 * PACE_S, rel=0.02)
    for length in (20.0, 200.0):  # of other sizes, too: as its peers
        assert slow.mean((1.0, length)) == pytest.approx(1.2 * peers.mean((1.0, length)), rel=0.1)
    slow.lean(peers, 16.0 + LEAST_S)
    assert slow.mean(X) == pytest.approx(PACE_S, rel=0.02)


@pytest.mark.parametrize("pace", [0.2, 5.0])
def test_three_on_end_are_another_pace_and_two_are_not(pace: float) -> None:
    """Regression: a node that had been slow needed tens of prompts to be known as well again."""
    node = measured(1.0, count=200)
    for _ in range(2):
        node.observe(X, pace * PACE_S, 20.0)
    assert not 0.8 * pace < node.mean(X) / PACE_S < 1.2 * pace
    node.observe(X, pace * PACE_S, 20.0)
    for length in (20.0, 100.0):
        assert node.mean((1.0, length)) == pytest.approx(pace * (0.006 + 1e-4 * length), rel=0.05)


def test_what_jumps_up_and_down_is_noise() -> None:
    node = measured(1.0, count=200)
    for i in range(100):
        node.observe(X, PACE_S * (0.5, 1.0, 2.0, 1.0)[i % 4], 20.0)
    assert node.mean(X) == pytest.approx(PACE_S, rel=0.35)
    assert node.samples == 300, "it has not begun anew"


def test_the_average_of_many_does_not_become_the_one_that_spoke_last() -> None:
    average = measured(1.0, count=100, into=Fit((1e-3, 1e-4), (1.0, 100.0), of_many=True))
    sure = average.factor(0.7)
    for _ in range(10):
        for pace in (5.0, 5.0, 5.0, 1.0):
            average.observe(X, pace * PACE_S)
    assert average.mean(X) < 2 * PACE_S
    assert average.factor(0.7) == pytest.approx(sure, rel=0.1), "one slow node makes no others less sure"
