"""merge_states, native and torch, in fp32: against attention over all keys at once, and its algebra."""

from __future__ import annotations

from itertools import permutations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from baton.kernels import native
from baton.kernels.merge_states import native as native_merge
from baton.kernels.merge_states import reference

INF = torch.inf
PATHS = pytest.mark.parametrize(
    "merge",
    [
        pytest.param(
            native_merge.merge_states,
            id="native",
            marks=pytest.mark.skipif(not native.available(), reason="no native kernels here"),
        ),
        pytest.param(reference.merge_states, id="torch"),
    ],
)
State = tuple[torch.Tensor, torch.Tensor]


def state(seed: int, head_dim: int = 24, spread: float = 10.0) -> State:
    noise = torch.Generator().manual_seed(seed)
    out = torch.randn(5, 3, head_dim, generator=noise)
    return out, torch.randn(5, 3, generator=noise) * spread


def close(got: State, want: State) -> None:
    for one, other in zip(got, want, strict=True):
        assert not one.isnan().any()
        torch.testing.assert_close(one.double(), other.double(), atol=2e-6, rtol=2e-6)


@PATHS
@given(keys=st.integers(2, 40), cut=st.integers(1, 39), head_dim=st.integers(1, 70))
@settings(max_examples=20)
def test_two_parts_make_the_whole(merge: object, keys: int, cut: int, head_dim: int) -> None:
    noise = torch.Generator().manual_seed(keys)
    scores = torch.randn(5, 3, keys, generator=noise, dtype=torch.float64) * 10
    values = torch.randn(keys, head_dim, generator=noise, dtype=torch.float64)

    def part(at: slice) -> State:
        lse = scores[..., at].logsumexp(-1)
        return (scores[..., at] - lse[..., None]).exp() @ values[at], lse

    cut = min(cut, keys - 1)
    first, second = (tuple(x.float() for x in part(at)) for at in (slice(0, cut), slice(cut, None)))
    out, lse = merge(*first, *second)
    want = part(slice(None))
    torch.testing.assert_close(lse.double(), want[1], atol=1e-5, rtol=0)
    torch.testing.assert_close(out.double(), want[0], atol=1e-5, rtol=0)


@PATHS
def test_order_and_grouping_do_not_matter(merge: object) -> None:
    parts = [state(seed) for seed in range(3)]
    want = merge(*merge(*parts[0], *parts[1]), *parts[2])
    for a, b, c in permutations(parts):
        close(merge(*merge(*a, *b), *c), want)
        close(merge(*a, *merge(*b, *c)), want)


@PATHS
@pytest.mark.parametrize("empty", [-INF, INF])
@pytest.mark.parametrize("held", [0.0, torch.nan, INF])
def test_a_part_without_keys_changes_no_bit(merge: object, empty: float, held: float) -> None:
    out, lse = state(1)
    nothing = torch.full_like(out, held), torch.full_like(lse, empty)
    for got in (merge(out, lse, *nothing), merge(*nothing, out, lse)):
        assert torch.equal(got[0], out)
        assert torch.equal(got[1], lse)


@PATHS
@pytest.mark.parametrize(("a", "b"), [(-INF, -INF), (INF, INF), (-INF, INF), (INF, -INF)])
def test_nothing_and_nothing_is_nothing(merge: object, a: float, b: float) -> None:
    out = torch.full((5, 3, 24), torch.nan)
    got = merge(out, torch.full((5, 3), a), out, torch.full((5, 3), b))
    assert torch.equal(got[0], torch.zeros(5, 3, 24))
    assert torch.equal(got[1], torch.full((5, 3), -INF))


@PATHS
def test_far_apart_and_huge_sums_stay_finite(merge: object) -> None:
    (out_a, _), (out_b, _) = state(1), state(2)
    for low, high in ((-1e4, 1e4), (3e38, 3.1e38), (-3e38, 3e38)):
        got = merge(out_a, torch.full((5, 3), low), out_b, torch.full((5, 3), high))
        close(got, (out_b, torch.full((5, 3), high)))


@pytest.mark.skipif(not native.available(), reason="no native kernels here")
def test_shapes_that_differ_are_refused() -> None:
    out, lse = state(1)
    with pytest.raises(ValueError, match="shapes"):
        native_merge.merge_states(out, lse, out, lse[:, :2])
    with pytest.raises(ValueError, match="fp32"):
        native_merge.merge_states(out.double(), lse.double(), out.double(), lse.double())
