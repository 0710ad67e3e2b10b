"""Native layers of integer weights: against fp64, their promises about bits, and who pays for a bad row."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from baton.kernels import native
from baton.kernels.linear import reference
from baton.kernels.linear.native import Norm, prepare
from baton.kernels.native.program import Program
from baton.kernels.quantize import Codes, QuantizedWeight, WeightScheme, dequantize, quantize
from baton.kernels.rms_norm import native as rms_norm
from baton.kernels.silu_mul import native as silu_mul
from tests.kernels.int_cases import FORMATS, ROWS, digests, quantized
from tests.kernels.isas import LESSER, digests_by
from tests.kernels.linear_cases import noise

pytestmark = pytest.mark.skipif(not native.available(), reason="no native kernels here")

_WIDE_BLOCK = 64  # inputs of a token that share a scale of 16 bits


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    torch.set_num_threads(1)
    yield
    native.configure(1)


def _bound(weight: QuantizedWeight, x: torch.Tensor) -> torch.Tensor:
    """What a product may be off: fp32's rounding of scaled sums and offsets, and that of activations to 16
    bits where the weight says nothing of 8."""
    dense = dequantize(weight, torch.float64).abs()
    order = weight.in_order if weight.in_order is not None else torch.arange(weight.in_features)
    dense, x = dense[:, order], x.double().abs()[:, order]
    parts = dense
    if weight.offset is not None:
        groups = torch.arange(weight.in_features) // weight.group
        parts = dense + 2 * weight.offset.double().abs()[:, groups]
    sums = -(-weight.in_features // min(weight.group, weight.activation_group, _WIDE_BLOCK))
    bound = x @ parts.T * (2 * sums + 8) * 2**-24
    if weight.activations is None:
        for group in range(0, weight.in_features, weight.group):
            end = min(weight.in_features, group + weight.group)
            for start in range(group, end, _WIDE_BLOCK):
                piece = slice(start, min(end, start + _WIDE_BLOCK))
                bound += x[:, piece].amax(1, keepdim=True) / 65278 * dense[:, piece].sum(1)
    return bound


def _agrees(weight: QuantizedWeight, x: torch.Tensor, got: torch.Tensor, *plus: torch.Tensor) -> bool:
    """plus: what was added to the product."""
    seen = reference.round_activations(x, weight)
    want, bound = seen.double() @ dequantize(weight, torch.float64).T, _bound(weight, seen)
    for term in plus:
        want, bound = want + term, bound + term.abs() * 2**-22
    return bool(((got - want).abs() <= bound).all())


@settings(max_examples=60)
@given(
    st.sampled_from(FORMATS),
    st.integers(0, 40),
    st.integers(1, 90),
    st.one_of(st.integers(1, 140), st.sampled_from([331, 1100])),
    st.booleans(),
    st.booleans(),
    st.integers(1, 3),
)
def test_against_fp64(
    name: str, rows: int, out: int, inputs: int, biased: bool, residual: bool, threads: int
) -> None:
    native.configure(threads)
    weight, x = quantized(name, noise(out, inputs)), noise(rows, inputs, seed=2)
    bias = noise(out, seed=1) if biased else None
    before = noise(rows, out, seed=3)
    got = before.clone()
    call = prepare(weight, bias).call(x, got, native.Counter(rows), residual=residual)
    native.run(call.op, call.args)
    assert _agrees(weight, x, got, *([before] if residual else []), *([] if bias is None else [bias]))


@pytest.mark.parametrize("kind", [Codes.INT4, Codes.INT8])
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("group", [32, 64, 128, None])
@pytest.mark.parametrize("activations", [None, "int8"])
def test_groups_that_do_not_divide(kind: Codes, symmetric: bool, group: int | None, activations: str) -> None:
    for out, inputs in ((160, 96), (96, 160), (96, 40), (331, 96)):
        scheme = WeightScheme(kind, group, symmetric, activations=activations)  # type: ignore[arg-type]
        weight, x = quantize(noise(out, inputs), scheme), noise(5, inputs, seed=1)
        assert _agrees(weight, x, prepare(weight)(x))


@pytest.mark.parametrize("name", FORMATS)
def test_a_row_has_the_same_bits_alone_and_among_others(name: str) -> None:
    prepared, x = prepare(quantized(name, noise(100, 76)), noise(100, seed=1)), noise(500, 76, seed=2)
    want = prepared(x)
    for threads in (1, 2, 3):
        native.configure(threads)
        assert torch.equal(prepared(x), want)
        for rows in ROWS:
            for start in (0, 17, 500 - rows):
                assert torch.equal(prepared(x[start : start + rows]), want[start : start + rows])


@pytest.mark.parametrize(
    ("inputs", "group", "activations"), [(480, 24, None), (192, 24, "int8"), (1100, 5, None)]
)
def test_rows_of_half_a_register_leave_their_neighbours_alone(
    inputs: int, group: int, activations: str | None
) -> None:
    """A row's last block is eight inputs and fills its cache lines; threads round rows side by side."""
    kind = Codes.INT4 if group == 5 else Codes.INT8
    scheme = WeightScheme(kind, group, activations=activations)  # type: ignore[arg-type]
    prepared, x = prepare(quantize(noise(48, inputs), scheme)), noise(3000, inputs, seed=1)
    native.configure(2)
    for _ in range(3):
        together = prepared(x)
        assert torch.equal(torch.cat([prepared(some) for some in x.split(1)]), together)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize(("out", "inputs"), [(96, 76), (64, 320), (160, 64)])
def test_norms_and_gates_in_one_operation_are_those_of_their_own(
    name: str, biased: bool, out: int, inputs: int
) -> None:
    prepared = prepare(quantized(name, noise(out, inputs)), noise(out, seed=1) if biased else None)
    x, norm = noise(40, inputs, seed=2), Norm(noise(inputs, seed=3), 1e-5)
    x[5, 3] = torch.nan
    normed = rms_norm.rms_norm(x, norm.weight, norm.eps)
    for threads in (1, 2):
        native.configure(threads)
        for rows in (1, 3, 8, 29, 40):
            for before in (None, norm):
                want = prepared((x if before is None else normed)[:rows])
                gated, plain = torch.empty(40, out // 2), torch.empty(40, out)
                for call in (
                    prepared.fused_call(x, plain, native.Counter(rows), norm=before),
                    prepared.fused_call(x, gated, native.Counter(rows), norm=before, gated=True),
                ):
                    assert call is not None
                    native.run(call.op, call.args)
                torch.testing.assert_close(plain[:rows], want, rtol=0, atol=0, equal_nan=True)
                torch.testing.assert_close(
                    gated[:rows], silu_mul.silu_mul(want), rtol=0, atol=0, equal_nan=True
                )


def test_gates_that_share_a_panel_are_not_fused() -> None:
    prepared = prepare(quantized("int8", noise(48, 64)))
    assert prepared.fused_call(noise(2, 64), torch.empty(2, 24), native.Counter(2), gated=True) is None


def test_results_past_the_caches() -> None:
    """More of them than caches hold are written another way; unaligned ones are not."""
    prepared, x = prepare(quantized("w8a8", noise(4096, 64))), noise(300, 64, seed=1)
    alone = prepared(x[:7])
    for out in (torch.empty(300, 4096), torch.empty(300, 4100)[:, 3:-1]):
        call = prepared.call(x, out, native.Counter(300))
        native.run(call.op, call.args)
        assert torch.equal(out[:7], alone)
        assert torch.equal(out[293:], prepared(x[293:]))


def test_torch_computes_beside_it_in_the_same_thread() -> None:
    """Both may use AMX's tiles there, whose shapes are a thread's state."""
    prepared, x = prepare(quantized("w8a8", noise(128, 640))), noise(33, 640, seed=1)
    a, b = noise(256, 512).bfloat16(), noise(512, 512, seed=2).bfloat16()
    want, product = prepared(x).clone(), a @ b
    for _ in range(20):
        assert torch.equal(prepared(x), want)
        assert torch.equal(a @ b, product)


@pytest.mark.parametrize("isa", LESSER)
def test_all_instruction_sets_give_the_same_bits(isa: str) -> None:
    assert digests_by(isa, "int_cases") == digests()


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("junk", [torch.nan, torch.inf, -torch.inf, 1e6, 1e30])
def test_what_a_row_holds_stays_in_it(name: str, junk: float) -> None:
    prepared, x = prepare(quantized(name, noise(50, 70))), noise(20, 70, seed=1)
    want, others = prepared(x), [row for row in range(20) if row not in (3, 19)]
    x[3, 11] = junk
    x[19] = junk
    got = prepared(x)
    assert torch.equal(got[others], want[others])
    assert bool(got[[3, 19]].isnan().all()) if abs(junk) > 1e38 or junk != junk else got.isfinite().all()


@pytest.mark.parametrize("name", FORMATS)
def test_neighbours_a_thousand_times_greater_change_nothing(name: str) -> None:
    prepared, x = prepare(quantized(name, noise(50, 70))), noise(20, 70, seed=1)
    want = prepared(x)[4]
    x *= 1000.0
    x[4] /= 1000.0
    alone = prepared(x[4:5])[0]
    assert torch.equal(prepared(x)[4], alone)
    torch.testing.assert_close(alone, want, atol=1e-3, rtol=1e-3)  # x / 1000 * 1000 was rounded


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("size", [0.0, 1e-45, 1e-38, 1e-30, 1e30])
def test_from_nothing_to_huge(name: str, size: float) -> None:
    weight, x = quantized(name, noise(20, 70)), noise(3, 70, seed=1) * size
    got = prepare(weight)(x)
    want = reference.round_activations(x, weight).double() @ dequantize(weight, torch.float64).T
    assert got.isfinite().all()
    subnormal = 1e-36 if size < 1e-34 else 0.0  # scales are, or products with them: finite is all that counts
    assert bool(((got - want).abs() <= _bound(weight, x) + subnormal).all())


@pytest.mark.parametrize("activations", [None, "int8"])
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_the_greatest_codes_do_not_saturate(activations: str | None, sign: float) -> None:
    """Sums of the greatest products of either sign, where 16 bits would long have overflown."""
    codes = torch.tensor([[-128] * 512, [127] * 512], dtype=torch.int8)
    weight = QuantizedWeight(
        Codes.INT8,
        codes,
        torch.ones(2, 1),
        512,
        512,
        activations=activations,  # type: ignore[arg-type]
    )
    for rows in (1, 5):
        got = prepare(weight)(torch.full((rows, 512), sign))
        want = sign * torch.tensor([-65536.0, 65024.0]).expand(rows, 2)
        torch.testing.assert_close(got, want, rtol=1e-6, atol=0)


@pytest.mark.parametrize("name", FORMATS)
def test_rows_of_the_table(name: str) -> None:
    weight = quantized(name, noise(331, 70))
    table, prepared, ids = dequantize(weight), prepare(weight), torch.tensor([0, 330, 15, 16, 15])
    assert torch.equal(prepared.rows(ids), table[ids])
    assert torch.equal(prepared.rows(ids[:0]), table[ids[:0]])
    beyond = prepared.rows(torch.tensor([331, 1, -1]))
    assert beyond[[0, 2]].isnan().all()
    assert torch.equal(beyond[1], table[1])


def test_strided_rows_from_the_first_wanted_on_and_none_else() -> None:
    prepared = prepare(quantized("w8a8", noise(18, 20)))
    wide, out = noise(40, 50, seed=1), torch.full((40, 40), 7.0)
    rows, first = native.Counter(0), native.Counter(0)
    step = Program([prepared.call(wide[:, 10:30], out[:, 5:23], rows, first=first)])
    for first.value, rows.value in ((3, 2), (12, 27), (39, 1), (4, 0)):
        out.fill_(7.0)
        step()
        there = slice(first.value, first.value + rows.value)
        assert torch.equal(out[there, 5:23], prepared(wide[there, 10:30]))
        out[there, 5:23] = 7.0
        assert (out == 7.0).all()


@pytest.mark.parametrize(("name", "bits"), [("int8", 8.25), ("q4_0", 4.5), ("q4_1", 5.0), ("nvfp4", 5.0)])
def test_memory_is_codes_and_scales(name: str, bits: float) -> None:
    assert prepare(quantized(name, noise(256, 576))).nbytes * 8 <= 256 * 576 * (bits + 0.05)
