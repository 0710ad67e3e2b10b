"""Both kernels that merge partial results, against fp64."""

from __future__ import annotations

from itertools import permutations

import pytest
import torch

from baton.kernels.merge_states import reference, triton

INF = torch.inf


def states(count: int, tokens: int = 5, heads: int = 3, head_dim: int = 24) -> list[triton.State]:
    noise = torch.Generator().manual_seed(count)
    return [
        (
            torch.randn(tokens, heads, head_dim, generator=noise),
            torch.randn(tokens, heads, generator=noise) * 3,
        )
        for _ in range(count)
    ]


def merged(parts: list[triton.State]) -> triton.State:
    out, lse = parts[0]
    for part in parts[1:]:
        out, lse = triton.merge_states(out, lse, *part)
    return out, lse


def close(got: triton.State, want: triton.State, atol: float = 1e-5) -> None:
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a.double(), b.double(), atol=atol, rtol=0)


@pytest.mark.parametrize(("dtype", "atol"), [(torch.float32, 1e-5), (torch.float16, 3e-3)])
def test_two(dtype: torch.dtype, atol: float) -> None:
    (out_a, lse_a), (out_b, lse_b) = states(2)
    out_a, out_b = out_a.to(dtype), out_b.to(dtype)
    got = triton.merge_states(out_a, lse_a, out_b, lse_b)
    assert got[0].dtype == dtype
    close(got, reference.merge_states(out_a.double(), lse_a.double(), out_b.double(), lse_b.double()), atol)


def test_three_in_any_order_with_any_marker_for_empty() -> None:
    parts = states(3)
    parts[0][1][:, 0], parts[1][1][:, 0], parts[2][1][0, 0] = -INF, INF, -INF
    parts[1][0][:, 0] = torch.nan  # an empty part may hold anything
    want = merged(parts)
    assert want[0].isfinite().all()
    assert want[1][0, 0] == -INF
    assert want[1][1:].isfinite().all()
    for order in permutations(parts):
        close(merged(list(order)), want)


def test_the_neutral_element() -> None:
    (out, lse), _ = states(2)
    none = torch.zeros_like(out), torch.full_like(lse, -INF)
    for got in (triton.merge_states(out, lse, *none), triton.merge_states(*none, out, lse)):
        assert all(map(torch.equal, got, (out, lse)))
    assert all(map(torch.equal, triton.merge_states(*none, *none), none))


def test_a_nan_stays_where_it_is() -> None:
    a, b = states(2)
    want = triton.merge_states(*a, *b)
    a[0][2, 1, 5] = torch.nan
    a[1][3, 0] = torch.nan
    out, lse = triton.merge_states(*a, *b)
    spoilt = torch.zeros_like(out, dtype=torch.bool)
    spoilt[2, 1, 5] = spoilt[3, 0] = True
    assert torch.equal(out.isnan(), spoilt)
    assert torch.equal(out[~spoilt], want[0][~spoilt])
    assert torch.equal(lse.isnan().nonzero(), torch.tensor([[3, 0]]))


@pytest.mark.parametrize("count", [1, 2, 9, 20])
def test_many_at_once(count: int) -> None:
    """Tokens 3 and 0 of the result, from parts in rows that also hold other things."""
    parts = states(2 * count, tokens=1)
    parts[0][1][0, 1] = -INF
    outs, lses = torch.cat([part[0] for part in parts]), torch.cat([part[1] for part in parts])
    rows = [*range(0, 2 * count, 2), *range(1, 2 * count, 2)]
    merges = torch.tensor([[3, 0, count], [0, count, 2 * count]], dtype=torch.int32)
    out, lse = torch.full((4, 3, 24), 7.0), torch.full((4, 3), 7.0)
    table = merges, torch.tensor(rows, dtype=torch.int32)
    triton.merge_parts_launch((outs, lses), table, (out, lse), with_lse=True).run()
    for token, first in ((3, 0), (0, 1)):
        want_out, want_lse = torch.zeros(1, 3, 24).double(), torch.full((1, 3), -INF).double()
        for part in parts[first::2]:
            want_out, want_lse = reference.merge_states(want_out, want_lse, *map(torch.Tensor.double, part))
        close((out[token : token + 1], lse[token : token + 1]), (want_out, want_lse))
    assert (out[1:3] == 7).all()
    assert (lse[1:3] == 7).all()


def test_nothing() -> None:
    out, lse = triton.merge_states(*states(1, tokens=0)[0], *states(1, tokens=0)[0])
    assert out.shape == (0, 3, 24)
    assert lse.shape == (0, 3)
