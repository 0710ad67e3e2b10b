"""Routing and experts against the reference, in fp64 where numbers count."""

from __future__ import annotations

import pytest
import torch

from baton.kernels.linear import reference as reference_linear
from baton.kernels.linear import triton as linear
from baton.kernels.moe import ExpertMlp, Routing, reference, triton
from baton.kernels.quantize import quantize, scheme


def noise(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("renormalize", [False, True])
@pytest.mark.parametrize(("experts", "top_k"), [(1, 1), (5, 2), (60, 8), (7, 7)])
def test_routing(experts: int, top_k: int, renormalize: bool) -> None:
    logits = noise(9, experts) * 3
    logits[1] = logits[1].round()  # equal ones
    logits[2, 1:] = -torch.inf
    logits[3, -1] = torch.nan
    logits[4, 0] = torch.inf
    logits[5] = -torch.inf
    want, got = (module.route(logits, top_k, renormalize) for module in (reference, triton))
    assert torch.equal(got.ids, want.ids)
    torch.testing.assert_close(got.weights, want.weights, equal_nan=True)


def mlps(experts: int, width: int, inner: int, how: str) -> tuple[list[ExpertMlp], list[ExpertMlp]]:
    """Triton's, and the reference's, which computes in the dtype of what it is given."""
    ours, references = [], []
    for expert in range(experts):
        layers = []
        for seed, shape in enumerate([(2 * inner, width), (width, inner)]):
            weight = noise(*shape, seed=10 * expert + seed) * (1 + expert)
            layers.append((weight if how == "dense" else quantize(weight, scheme(how)), noise(shape[0])))
        ours.append(ExpertMlp(*(linear.prepare(*layer) for layer in layers)))
        references.append(ExpertMlp(*(reference_linear.prepare(*layer) for layer in layers)))
    return ours, references


@pytest.mark.parametrize("how", ["dense", "int8", "int4", "nvfp4", "fp8", "int8-w8a8"])
@pytest.mark.parametrize(("tokens", "experts", "top_k"), [(1, 5, 2), (23, 3, 2)])
def test_experts(tokens: int, experts: int, top_k: int, how: str) -> None:
    width, inner = 96, 40
    ours, references = mlps(experts, width, inner, how)
    x, routing = noise(tokens, width), reference.route(noise(tokens, experts, seed=1), top_k, True)
    want = reference.experts(x.double(), routing, references)
    got = triton.experts(x, routing, ours)
    # Where activations are rounded, a last bit decides between two codes.
    share = 1e-2 if how == "int8-w8a8" else 1e-5
    assert (got.double() - want).abs().max() <= share * want.abs().max()


def test_a_token_knows_nothing_of_the_others_and_experts_may_be_idle() -> None:
    ours, _ = mlps(6, 24, 16, "dense")
    x = noise(50, 24)
    ids = torch.tensor([[4, 1]]).repeat(50, 1)
    ids[7] = torch.tensor([1, 0])
    weights = noise(50, 2, seed=3).softmax(-1)
    want = triton.experts(x, Routing(ids, weights), ours)
    x[[3, 30]] = torch.nan
    got = triton.experts(x, Routing(ids, weights), ours)
    others = [i for i in range(50) if i not in (3, 30)]
    assert torch.equal(got[others], want[others])
    assert got[3].isnan().all()
    alone = triton.experts(x[7:8], Routing(ids[7:8], weights[7:8]), ours)
    torch.testing.assert_close(alone, want[7:8], atol=1e-3, rtol=1e-5)  # numpy multiplies here


def test_no_tokens() -> None:
    ours, _ = mlps(2, 24, 16, "dense")
    routing = Routing(torch.zeros(0, 1, dtype=torch.int64), torch.zeros(0, 1))
    assert triton.experts(torch.zeros(0, 24), routing, ours).shape == (0, 24)


def test_experts_that_are_stored_differently() -> None:
    dense, same = mlps(2, 24, 16, "dense")
    ours = [dense[0], mlps(2, 24, 16, "int8")[0][1]]
    references = [same[0], mlps(2, 24, 16, "int8")[1][1]]
    x, routing = noise(4, 24), reference.route(noise(4, 2, seed=1), 2, True)
    want = reference.experts(x.double(), routing, references)
    torch.testing.assert_close(triton.experts(x, routing, ours).double(), want, atol=1e-3, rtol=1e-5)
