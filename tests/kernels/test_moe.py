"""Routing, and experts' results, against a loop over tokens in fp64; a token never sees its neighbours."""

from __future__ import annotations

import gc
import math
import weakref

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from baton.kernels import native
from baton.kernels.linear import native as native_linear
from baton.kernels.linear import reference as reference_linear
from baton.kernels.moe import ExpertMlp, Routing, reference
from baton.kernels.moe import native as native_moe
from baton.kernels.native.program import Program
from baton.kernels.quantize import quantize, scheme

BACKENDS = [
    reference,
    pytest.param(
        native_moe, marks=pytest.mark.skipif(not native.available(), reason="no native kernels here")
    ),
]
# (experts, top_k, width, inner)
SHAPES = st.sampled_from([(1, 1, 16, 16), (4, 2, 24, 40), (8, 2, 33, 40), (5, 5, 17, 3), (64, 8, 48, 24)])


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def noise(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def routed(logits: list[float], top_k: int, renormalize: bool) -> list[tuple[int, float]]:
    """One token's (expert, weight), written for reading."""
    order = sorted(range(len(logits)), key=lambda e: (-logits[e], e))[:top_k]
    shares = [math.exp(x - max(logits)) for x in logits]
    total = sum(shares[e] for e in order) if renormalize else sum(shares)
    return [(e, shares[e] / total) for e in order]


@pytest.mark.parametrize("backend", BACKENDS)
@settings(max_examples=30)
@given(
    st.integers(0, 20), st.integers(1, 70), st.integers(1, 9), st.booleans(), st.sampled_from([0.25, 40.0])
)
def test_routing(
    backend: object, tokens: int, experts: int, top_k: int, renormalize: bool, step: float
) -> None:
    top_k = min(top_k, experts)
    logits = (noise(tokens, experts, seed=experts) * 2 / step).round() * step  # with ties
    logits[::3, 1:] = -torch.inf
    ids, weights = backend.route(logits, top_k, renormalize)
    for token, row in enumerate(logits.tolist()):
        want = routed(row, top_k, renormalize)
        assert ids[token].tolist() == [e for e, _ in want]
        assert weights[token].tolist() == pytest.approx([w for _, w in want], rel=1e-5, abs=1e-9)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_a_spoilt_token_spoils_no_other(backend: object, bad: float) -> None:
    logits = noise(5, 6)
    want = backend.route(logits, 2, True)
    logits[2, 3 if bad > 0 or math.isnan(bad) else slice(None)] = bad
    ids, weights = backend.route(logits, 2, True)
    assert ids[2].tolist() == [0, 1]
    assert weights[2].isnan().all()
    others = [0, 1, 3, 4]
    assert torch.equal(ids[others], want.ids[others])
    assert torch.equal(weights[others], want.weights[others])


def mlps(shape: tuple[int, int, int, int], prepare: object, form: str | None = None) -> list[ExpertMlp]:
    experts, _, width, inner = shape

    def made(out: int, inputs: int, seed: int) -> object:
        weight = noise(out, inputs, seed=seed) / inputs**0.5
        return prepare(weight if form is None else quantize(weight, scheme(form)))

    return [ExpertMlp(made(2 * inner, width, e), made(width, inner, 1000 + e)) for e in range(experts)]


def one_token(
    x: torch.Tensor, ids: list[int], weights: list[float], experts: list[ExpertMlp]
) -> torch.Tensor:
    out = torch.zeros_like(x)
    for e, weight in zip(ids, weights, strict=True):
        gate, up = experts[e].gate_up(x[None])[0].chunk(2)
        out += weight * experts[e].down((gate * gate.sigmoid() * up)[None])[0]
    return out


@pytest.mark.parametrize("backend", BACKENDS)
@settings(max_examples=20)
@given(st.integers(0, 23), SHAPES, st.sampled_from([None, "int8", "int4"]))
def test_experts(backend: object, tokens: int, shape: tuple[int, int, int, int], form: str | None) -> None:
    prepare = (native_linear if backend is native_moe else reference_linear).prepare
    x, experts, exact = (
        noise(tokens, shape[2], seed=7),
        *(mlps(shape, p, form) for p in (prepare, reference_linear.prepare)),
    )
    routing = backend.route(noise(tokens, shape[0], seed=8), shape[1], True)
    got = backend.experts(x, routing, experts)
    assert got.shape == x.shape
    for token in range(tokens):
        want = one_token(
            x[token].double(), routing.ids[token].tolist(), routing.weights[token].tolist(), exact
        )
        torch.testing.assert_close(got[token].double(), want, atol=2e-4, rtol=2e-4)
        if backend is native_moe and token < 3:
            one = Routing(routing.ids[token : token + 1], routing.weights[token : token + 1])
            assert torch.equal(backend.experts(x[token : token + 1], one, experts)[0], got[token])


@pytest.mark.skipif(not native.available(), reason="no native kernels here")
def test_a_recorded_step_serves_any_number_of_rows() -> None:
    shape = (6, 2, 24, 40)
    experts, rows = mlps(shape, native_linear.prepare), native.Counter()
    x, logits = torch.full((9, 24), torch.nan), torch.full((9, 6), torch.nan)
    out = torch.empty(9, 24)
    workspace = native_moe.Workspace(native_moe.MoeShape(6, 2, 24, 40), 9, rows)
    program = Program(workspace.calls(x, logits, out, experts, residual=True))
    for count in (9, 0, 1, 4):
        x[:count], logits[:count] = noise(count, 24, seed=count), noise(count, 6, seed=10 + count)
        x[count:] = logits[count:] = torch.nan  # what padding holds does not matter
        out.fill_(1.0)
        rows.value = count
        program()
        want = native_moe.experts(x[:count], native_moe.route(logits[:count], 2, True), experts)
        assert torch.equal(out[:count], want + 1.0)
        assert out[count:].eq(1).all()


@pytest.mark.skipif(not native.available(), reason="no native kernels here")
def test_calls_keep_the_routing_that_they_were_made_with() -> None:
    workspace = native_moe.Workspace(native_moe.MoeShape(6, 2, 24, 40), 9, native.Counter(9))
    x, logits = torch.zeros(9, 24), torch.zeros(9, 6)
    calls = workspace.calls(x, logits, x, mlps((6, 2, 24, 40), native_linear.prepare))
    routing = weakref.ref(workspace.routing.ids)
    workspace.routing = Routing(torch.zeros(9, 2, dtype=torch.int64), torch.zeros(9, 2))
    gc.collect()
    assert routing() is not None
    del calls
    gc.collect()
    assert routing() is None


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_no_expert_answers_to_is_refused(backend: object) -> None:
    for top_k in (0, 7):
        with pytest.raises(ValueError, match="of 6 experts"):
            backend.route(torch.zeros(3, 6), top_k, True)
    prepare = native_linear.prepare if backend is native_moe else reference_linear.prepare
    experts, x = mlps((6, 2, 24, 40), prepare), torch.zeros(3, 24)
    good = Routing(torch.zeros(3, 2, dtype=torch.int64), torch.ones(3, 2))
    assert backend.experts(x, good, experts).shape == x.shape
    for ids in (torch.tensor([[0, 6]] * 3), torch.tensor([[0, -1]] * 3), good.ids[:2], good.ids.int()):
        with pytest.raises(ValueError, match="a routing"):
            backend.experts(x, Routing(ids, good.weights[: len(ids)]), experts)


def test_groups_are_sorted_by_expert_then_token() -> None:
    groups = reference.group(torch.tensor([[3, 0], [0, 3], [1, 3]]), 5)
    assert groups.counts.tolist() == [2, 1, 0, 3, 0]
    assert groups.tokens.tolist() == [0, 1, 2, 0, 1, 2]
    assert groups.places.tolist() == [[3, 0], [1, 4], [2, 5]]
