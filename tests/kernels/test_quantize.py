"""Quantised weights: exact codes, bounds of the error, sizes that do not fit, values of every size."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from baton.core.errors import InvalidArgument
from baton.kernels.quantize import (
    FP4_VALUES,
    SCHEMES,
    Codes,
    QuantizedWeight,
    ScaleFormat,
    WeightScheme,
    concat,
    dequantize,
    pack4,
    quantize,
    scheme,
    unpack4,
)

QUICK = settings(max_examples=40, deadline=None, derandomize=True)

# What rounding may do to a value, as a part of the greatest one of its group (or of the group's span).
_STEP = {
    Codes.INT8: 0.5 / 127,
    Codes.INT4: 0.5 / 7,
    Codes.FP8: 2.0**-4,
    Codes.FP4: 1 / 6,
}
_BF16 = 2.0**-8

SHAPES = st.tuples(st.integers(1, 5), st.sampled_from([1, 2, 7, 31, 32, 33, 96, 160, 331]))
SIZES = st.sampled_from([1e-36, 1e-33, 1e-30, 1e-6, 1.0, 100.0, 1e30])


@st.composite
def schemes(draw: st.DrawFn) -> WeightScheme:
    kind = draw(st.sampled_from(list(Codes)))
    integer = kind in (Codes.INT8, Codes.INT4)
    return WeightScheme(
        kind,
        group=draw(st.sampled_from([None, 1, 5, 16, 32, 64, 128])),
        symmetric=draw(st.booleans()) if integer else True,
        scale=draw(st.sampled_from(list(ScaleFormat)))
        if not integer
        else draw(st.sampled_from([ScaleFormat.FP32, ScaleFormat.BF16])),
    )


def _random(shape: tuple[int, int], size: float, seed: int) -> torch.Tensor:
    """With rows of zeros, of one value, and with groups far smaller than others."""
    weight = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    weight[0] *= seed % 3 > 0
    weight[-1, : shape[1] // 2] *= 1e-3
    if seed % 5 == 0:
        weight[-1] = weight[-1, :1]
    return weight * size


def _per_input(w: QuantizedWeight, per_group: torch.Tensor) -> torch.Tensor:
    return per_group.float().repeat_interleave(w.group, 1)[:, : w.in_features]


def _by_formula(w: QuantizedWeight) -> torch.Tensor:
    """The contract, element by element, in fp64."""
    codes = w.codes
    if w.kind.packed:
        low, high = codes & 15, codes >> 4
        codes = torch.stack((low, high), 2).reshape(w.out_features, -1)[:, : w.in_features]
    values = codes.double()
    if w.kind is Codes.FP4:
        values = torch.tensor([FP4_VALUES[int(c)] for c in codes.flatten()]).double().view(codes.shape)
    out = torch.empty(w.shape, dtype=torch.float64)
    for j in range(w.in_features):
        group = j // w.group
        i = j if w.in_order is None else int(w.in_order[j])
        out[:, i] = (values[:, j] - w.zero_point) * w.scale[:, group].double() * w.global_scale
        if w.offset is not None:
            out[:, i] += w.offset[:, group].double()
    return out


@QUICK
@given(SHAPES, SIZES, schemes(), st.integers(0, 99))
def test_error_is_within_half_a_step(
    shape: tuple[int, int], size: float, how: WeightScheme, seed: int
) -> None:
    weight = _random(shape, size, seed)
    w = quantize(weight, how)
    back = dequantize(w)
    assert bool(back.isfinite().all())
    assert w.shape == shape
    greatest = torch.zeros(shape[0], w.groups)
    for g in range(w.groups):
        greatest[:, g] = weight[:, g * w.group : (g + 1) * w.group].abs().amax(1)
    bound = _STEP[how.kind] * (1 if how.symmetric else 2.05)
    if how.scale is ScaleFormat.BF16:
        bound += 4 * _BF16
    elif how.scale is ScaleFormat.E8M0:
        bound = 0.25 + _STEP[how.kind] if how.kind is Codes.FP4 else 0.5
    elif how.scale is ScaleFormat.E4M3:
        bound += 2.0**-4
    allowed = bound * _per_input(w, greatest)
    if how.scale is ScaleFormat.E4M3:
        # Groups below what the matrix's scale can say come near zero.
        allowed += 2.0**-10 * 8 / 448 * weight.abs().amax()
    assert bool(((back - weight).abs() <= allowed + 1e-35).all())


@QUICK
@given(SHAPES, SIZES, schemes(), st.integers(0, 99))
def test_dequantised_by_the_formula(
    shape: tuple[int, int], size: float, how: WeightScheme, seed: int
) -> None:
    w = quantize(_random(shape, size, seed), how)
    order = torch.randperm(shape[1], generator=torch.Generator().manual_seed(seed))
    for weight in (w, replace(w, in_order=order)):
        wanted = _by_formula(weight)
        torch.testing.assert_close(dequantize(weight, torch.float64), wanted, rtol=1e-6, atol=0)
        torch.testing.assert_close(
            dequantize(weight).double(), wanted, rtol=1e-5, atol=1e-6 * float(wanted.abs().amax())
        )


@pytest.mark.parametrize("name", SCHEMES)
def test_what_lies_on_the_grid_comes_back_as_it_was(name: str) -> None:
    """Quantising again changes no code: so a checkpoint saved from this is read without further loss."""
    how = scheme(name)
    once = dequantize(quantize(torch.randn(9, 96, generator=torch.Generator().manual_seed(1)), how))
    twice = dequantize(quantize(once, how))
    if not how.symmetric:  # a bf16 offset moves the ends of a group by a hair
        torch.testing.assert_close(twice, once, rtol=0, atol=2 * _BF16 * float(once.abs().amax()))
    else:
        torch.testing.assert_close(twice, once, rtol=1e-6, atol=0)


@pytest.mark.parametrize("name", SCHEMES)
@pytest.mark.parametrize("value", [0.0, 1e-45, 1e-38, 1e-33, 1e-30, 1e30, 9e37, -9e37])
def test_nothing_but_numbers_comes_out(name: str, value: float) -> None:
    weight = torch.full((3, 40), value)
    weight[1, ::2] *= -1
    weight[2, 7:] = 0
    w = quantize(weight, scheme(name))
    back = dequantize(w)
    assert bool(back.isfinite().all())
    assert bool(w.scale.isfinite().all())
    assert bool((back.abs() <= weight.abs().amax() * 1.26).all())
    if value == 0:
        assert not bool(back.any())


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 2e38])
def test_what_cannot_be_quantised_is_refused(bad: float) -> None:
    weight = torch.ones(2, 4)
    weight[1, 2] = bad
    with pytest.raises(InvalidArgument, match=r"\[2, 4\].*NaN"):
        quantize(weight, scheme("int8"))
    for shape in ((4,), (2, 0), (2, 3, 4)):
        with pytest.raises(InvalidArgument, match="cannot quantise a"):
            quantize(torch.ones(shape), scheme("int8"))


def test_mxfp4_is_the_specifications() -> None:
    """OCP Microscaling Formats v1.0: scale 2^(floor(log2(max)) - 2), ties to even, saturation."""
    row = [7.9, 4.0, 3.5, 2.5, 1.25, 0.75, 0.25, -5.0]
    w = quantize(torch.tensor([row]), scheme("mxfp4"))
    assert w.scale.tolist() == [[1.0]]
    assert dequantize(w).tolist() == [[6.0, 4.0, 4.0, 2.0, 1.0, 1.0, 0.0, -4.0]]
    assert unpack4(w.codes, 8).tolist() == [[7, 6, 6, 4, 2, 2, 0, 14]]


def test_nvfp4_has_two_scales() -> None:
    weight = torch.randn(4, 64, generator=torch.Generator().manual_seed(2))
    weight[2] *= 1000
    w = quantize(weight, scheme("nvfp4"))
    assert w.scale.float().amax() == 448
    assert torch.equal(w.scale.to(torch.float8_e4m3fn).to(torch.bfloat16), w.scale)
    assert w.global_scale == pytest.approx(float(weight.abs().amax()) / 6 / 448, rel=1e-6)


def test_a_group_larger_than_a_row_is_the_row() -> None:
    w = quantize(torch.ones(2, 24), WeightScheme(Codes.INT8, group=128))
    assert (w.group, w.groups) == (24, 1)


def test_memory_is_a_half_and_about_a_quarter_of_bf16() -> None:
    weight = torch.randn(128, 512)
    dense = weight.bfloat16().nbytes
    assert quantize(weight, scheme("int8")).nbytes < 0.52 * dense
    assert quantize(weight, scheme("int4")).nbytes <= 0.3125 * dense
    assert quantize(weight, scheme("mxfp4")).nbytes < 0.29 * dense


@QUICK
@given(st.integers(1, 6), st.integers(1, 40), st.integers(0, 9))
def test_nibbles_there_and_back(rows: int, columns: int, seed: int) -> None:
    codes = torch.randint(0, 16, (rows, columns), generator=torch.Generator().manual_seed(seed))
    packed = pack4(codes)
    assert packed.shape == (rows, -(-columns // 2))
    assert torch.equal(unpack4(packed, columns).long(), codes)
    assert int(packed[0, 0]) & 15 == int(codes[0, 0]), "the even input is low"


# ---- rows and joined parts -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SCHEMES)
def test_rows_and_concat_change_no_value(name: str) -> None:
    one, two = torch.randn(5, 50), 30 * torch.randn(3, 50)
    parts = [quantize(one, scheme(name)), quantize(two, scheme(name))]
    joined = concat(parts)
    wanted = torch.cat([dequantize(part) for part in parts])
    torch.testing.assert_close(dequantize(joined), wanted, rtol=1e-6, atol=0)
    ids = torch.tensor([7, 0, 5, 5])
    assert torch.equal(dequantize(joined.rows(ids)), dequantize(joined)[ids])
    assert torch.equal(dequantize(joined.rows(slice(2, 6))), dequantize(joined)[2:6])


def test_unlike_parts_meet_without_a_change_of_value() -> None:
    weight = torch.randn(4, 96)
    how = [
        WeightScheme(Codes.INT4, group=32),
        WeightScheme(Codes.INT4, group=48, symmetric=False, scale=ScaleFormat.BF16),
        WeightScheme(Codes.INT8),
        WeightScheme(Codes.INT8, group=64, symmetric=False),
    ]
    parts = [quantize(weight, one) for one in how]
    joined = concat(parts)
    assert (joined.kind, joined.group) == (Codes.INT8, 16)
    torch.testing.assert_close(dequantize(joined), torch.cat([dequantize(part) for part in parts]))
    both = concat([parts[0], quantize(weight, WeightScheme(Codes.INT4, group=32, symmetric=False))])
    assert both.kind is Codes.INT4


def test_parts_that_cannot_be_joined_are_refused_by_what_differs() -> None:
    weight = torch.randn(4, 96)
    int8, fp8 = quantize(weight, scheme("int8")), quantize(weight, scheme("fp8"))
    ordered = replace(int8, in_order=torch.arange(95, -1, -1))
    for other, message in (
        (fp8, "int8 and fp8 codes"),
        (quantize(weight, scheme("int8-w8a8")), "activations None and int8"),
        (quantize(weight[:, :64], scheme("int8")), "in_features 96 and 64"),
        (ordered, "different orders"),
    ):
        with pytest.raises(InvalidArgument, match=message):
            concat([int8, other])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"group": 6}, r"scale is \[2, 3\], not \[2, 2\]"),
        ({"in_features": 13}, r"\[2, 12\] codes"),
        ({"offset": torch.zeros(2, 2)}, r"offset is \[2, 2\]"),
        ({"scale": torch.zeros(2, 3, dtype=torch.float64)}, "scale is torch.float64"),
        ({"kind": Codes.INT4}, "codes are torch.int8"),
        ({"in_order": torch.arange(5)}, r"in_order \[5\]"),
        ({"group": 0}, "no group"),
    ],
)
def test_sizes_that_do_not_fit_are_refused_with_their_numbers(change: dict, message: str) -> None:
    w = quantize(torch.randn(2, 12), WeightScheme(Codes.INT8, group=4))
    with pytest.raises(InvalidArgument, match=message):
        replace(w, **change)


def test_unknown_schemes_are_refused() -> None:
    with pytest.raises(InvalidArgument, match="quantization: must be one of int8"):
        scheme("int3")
    with pytest.raises(InvalidArgument, match="at least one input"):
        WeightScheme(Codes.INT8, group=0)
    with pytest.raises(InvalidArgument, match="take no offset"):
        WeightScheme(Codes.FP8, symmetric=False)
