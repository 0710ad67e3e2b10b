"""Every backend chooses the very token that the reference does, and the reference what arithmetic says."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from baton.kernels import native
from baton.kernels.sample import NO_TOKEN, Choice, cpu, reference
from baton.kernels.sample import native as native_sample
from baton.kernels.sample.weights import BITS, LOG2_E, ONE, weights

NATIVE = pytest.param(
    native_sample, marks=pytest.mark.skipif(not native.available(), reason="no native kernels here")
)
CHOICES = st.builds(
    Choice,
    st.sampled_from([0.0, 1e-320, 1e-30, 1e-6, 0.3, 1.0, 1.7, 100.0]),
    st.sampled_from([0, 1, 2, 7, 60, 10_000]),
    st.sampled_from([0.0, 1e-9, 0.3, 0.9, 0.999, 1 - 1e-12, 1.0]),
    st.sampled_from([0.0, 1e-12, 0.05, 0.5, 1.0]),
    st.sampled_from([0.0, 0.1, 0.5, 0.77, 1 - 2**-53]),
)


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@st.composite
def tables(draw: st.DrawFn) -> torch.Tensor:
    """[4, vocab]: smooth, with ties, flat, peaked, huge, tiny; with banned and overflowed entries, NaN."""
    vocab = draw(st.sampled_from([1, 2, 63, 64, 65, 129, 1000, 9000]))
    dice = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    table = torch.randn(4, vocab, generator=dice)
    table *= draw(st.sampled_from([0.0, 1e-42, 1e-6, 0.05, 1.0, 6.0, 1e5, 1e38]))
    step = draw(st.sampled_from([0.0, 0.25, 1.0]))
    if step:
        table = (table / step).round() * step
    if draw(st.booleans()):
        table[torch.rand(4, vocab, generator=dice) < 0.3] = -torch.inf
    table[1, : draw(st.sampled_from([0, 0, 1, 5]))] = torch.inf
    table[2, : draw(st.sampled_from([0, 0, 1]))] = torch.nan
    table[3, draw(st.sampled_from([0, 1])) :] = -torch.inf
    table[3, ::7] += draw(st.sampled_from([0.0, 2.0]))
    return table


@pytest.mark.parametrize("backend", [cpu, NATIVE])
@settings(max_examples=120)
@given(tables(), st.lists(CHOICES, min_size=4, max_size=4), st.integers(0, 9))
def test_the_choice_is_the_references(
    backend: object, table: torch.Tensor, choices: list[Choice], padding: int
) -> None:
    want = reference.sample(table, choices)
    padded = torch.cat((table, torch.full((4, padding), torch.nan)), 1)[:, : table.shape[1]]
    assert backend.sample(padded, choices) == want
    by_column = table.t().contiguous().t()
    assert backend.sample(by_column, choices) == want
    for row in range(4):  # alone as in company
        assert backend.sample(table[row : row + 1], choices[row : row + 1]) == want[row : row + 1]


@pytest.mark.parametrize("backend", [cpu, NATIVE])
@settings(max_examples=60)
@given(tables(), st.sampled_from([0, 1, 5, 64, 9000]))
def test_the_survey_is_the_references(backend: object, table: torch.Tensor, count: int) -> None:
    count = min(count, table.shape[1])
    want, got = reference.survey(table, count), backend.survey(table, count)
    assert torch.equal(got.mass, want.mass)
    well = ~want.best.isnan()
    assert torch.equal(got.best.isnan(), ~well)
    assert torch.equal(got.best[well], want.best[well])
    assert torch.equal(got.top[well], want.top[well])


@pytest.mark.parametrize("backend", [cpu, NATIVE])
@pytest.mark.parametrize("spread", [0.001, 1.0, 4.0])
def test_a_large_vocabulary(backend: object, spread: float) -> None:
    """Where the shortlist overflows, and where the histogram is narrowed more than once."""
    dice = torch.Generator().manual_seed(5)
    table = torch.randn(12, 30_001, generator=dice) * spread
    table[:, 17] -= 1000.0
    table[5] = (table[5] * 8).round() / 8
    filters = [(k, p, m) for k in (0, 3000) for p, m in ((0.95, 0.0), (0.5, 0.0), (1.0, 0.01))]
    choices = [Choice(t, *kept, i / 7 + 0.01) for t in (0.8, 30.0) for i, kept in enumerate(filters)]
    assert backend.sample(table, choices) == reference.sample(table, choices)


def test_threads_change_nothing() -> None:
    if not native.available():
        pytest.skip("no native kernels here")
    table = torch.randn(9, 5000, generator=torch.Generator().manual_seed(1)) * 3
    choices = [Choice(0.9, 0, 0.9, 0.0, i / 9) for i in range(9)]
    want = native_sample.sample(table, choices)
    before = native.threads()
    native.configure(3)
    try:
        assert native_sample.sample(table, choices) == want
        assert torch.equal(native_sample.survey(table, 4).mass, reference.survey(table, 4).mass)
    finally:
        native.configure(before)


def test_weights_are_powers_of_two_to_within_their_last_bit() -> None:
    logits = -torch.linspace(0, 33, 4001)
    got = weights(logits, 0.0).tolist()
    for logit, weight in zip(logits.tolist(), got, strict=True):
        exact = math.exp(logit)  # to within 2**-52 of itself
        assert abs(weight - exact * ONE) <= 0.5 + exact * 2 ** (BITS - 46)
    assert got[0] == ONE
    assert got[-1] == 0


def test_the_best_has_the_same_weight_at_any_temperature() -> None:
    logits = torch.tensor([7.25, 7.0, -torch.inf])
    for temperature in (5e-324, 1e-30, 1.0, 1e30):
        assert weights(logits, 7.25, temperature).tolist()[0::2] == [ONE, 0]
    assert weights(logits, 7.25, 1e30).tolist()[1] == ONE


@pytest.mark.parametrize("backend", [reference, cpu, NATIVE])
def test_the_choice_by_hand(backend: object) -> None:
    """Weights 1/2, 1, 1/4, 1: of a sum of 11/4."""
    logits = torch.tensor([[-1.0, 0.0, -2.0, 0.0]]) / LOG2_E
    assert weights(logits[0], 0.0).tolist() == pytest.approx([ONE // 2, ONE, ONE // 4, ONE], abs=2**22)

    def chosen(top_k: int, top_p: float, min_p: float, noise: Fraction) -> int:
        return backend.sample(logits, [Choice(1.0, top_k, top_p, min_p, float(noise))])[0]

    by_noise = [chosen(0, 1.0, 0.0, Fraction(2 * i + 1, 44)) for i in range(22)]  # all: ids 0 1 2 3
    assert by_noise == [0] * 4 + [1] * 8 + [2] * 2 + [3] * 8
    assert {chosen(1, 1.0, 0.0, Fraction(i, 8)) for i in range(8)} == {1}  # the lowest of equals
    assert [chosen(0, 0.5, 0.0, Fraction(2 * i + 1, 8)) for i in range(4)] == [1, 1, 3, 3]
    assert [chosen(0, 1.0, 0.3, Fraction(2 * i + 1, 10)) for i in range(5)] == [0, 1, 1, 3, 3]
    assert {chosen(0, 0.36, 0.0, Fraction(i, 8)) for i in range(8)} == {1}


@pytest.mark.parametrize("backend", [reference, cpu, NATIVE])
def test_no_distribution(backend: object) -> None:
    table = torch.zeros(5, 70)
    table[0, 66] = torch.nan
    table[1] = -torch.inf
    table[2] = -torch.tensor(torch.nan)
    table[3, 69] = torch.inf
    choices = [Choice(t, 0, 1.0, 0.0, 0.99) for t in (0.0, 0.0, 1.0, 1.0, 0.0)]
    assert backend.sample(table, choices) == [NO_TOKEN, NO_TOKEN, NO_TOKEN, 69, 0]
    assert backend.sample(table[:0], []) == []
    assert backend.survey(table, 1).mass.tolist() == [0, 0, 0, ONE, 70 * ONE]


@pytest.mark.skipif(not native.available(), reason="no native kernels here")
def test_what_is_remembered_of_a_tensor_is_no_result() -> None:
    """Many steps bring the same tensor, of other contents, and sometimes others in between."""
    dice, other = torch.Generator().manual_seed(2), torch.randn(2, 40)
    logits = torch.empty(3, 500)
    for count in (3, 3, 1):
        for table in (logits, logits[:count]):
            logits.normal_(generator=dice)
            choices = [Choice(0.9, 0, 0.9, 0.0, i / 7) for i in range(len(table))]
            assert native_sample.sample(table, choices) == reference.sample(table, choices)
            with pytest.raises(ValueError, match="1 choices for 2 rows"):
                native_sample.sample(other, choices[:1])
    with pytest.raises(ValueError, match="2 choices for 3 rows"):
        native_sample.sample(logits, choices * 2)


@pytest.mark.skipif(not native.available(), reason="no native kernels here")
def test_threads_choose_at_the_same_time() -> None:
    tables = [torch.randn(4, 3000, generator=torch.Generator().manual_seed(i)) for i in range(4)]
    choices = [Choice(1.0, 0, 0.95, 0.0, i / 5) for i in range(4)]
    want = [reference.sample(table, choices) for table in tables]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda i: native_sample.sample(tables[i % 4], choices), range(40)))
    assert found == want * 10
