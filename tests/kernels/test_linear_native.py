"""Native layers of float and e4m3 weights: against fp64, and their promises about bits."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from baton.core.errors import InvalidArgument
from baton.kernels import native
from baton.kernels.linear import native_fp8, reference
from baton.kernels.linear.native import prepare
from baton.kernels.native.program import Program
from baton.kernels.quantize import Codes, QuantizedWeight, WeightScheme, dequantize, quantize
from tests.kernels.isas import LESSER, digests_by
from tests.kernels.linear_cases import DENSE, FORMATS, FP8, ROWS, digests, layer, noise

pytestmark = pytest.mark.skipif(not native.available(), reason="no native kernels here")


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    torch.set_num_threads(1)
    yield
    native.configure(1)


@settings(max_examples=60)
@given(
    st.sampled_from(FORMATS),
    st.integers(0, 40),
    st.integers(1, 90),
    st.one_of(st.integers(1, 80), st.sampled_from([331, 2049])),
    st.booleans(),
    st.booleans(),
    st.integers(1, 3),
)
def test_against_fp64(
    name: str, rows: int, out: int, inputs: int, biased: bool, residual: bool, threads: int
) -> None:
    """The error of one chain of fp32 sums, beside what was summed up; bf16 and fp16 are exact once stored."""
    native.configure(threads)
    weight, bias, x = noise(out, inputs), noise(out, seed=1) if biased else None, noise(rows, inputs, seed=2)
    stored = weight.to(DENSE[name]) if name in DENSE else quantize(weight, FP8[name])
    dense = stored if isinstance(stored, torch.Tensor) else dequantize(stored)
    seen = x if isinstance(stored, torch.Tensor) else reference.round_activations(x, stored)
    before = noise(rows, out, seed=3)
    got = before.clone()
    call = prepare(stored, bias).call(x, got, native.Counter(rows), residual=residual)
    native.run(call.op, call.args)
    start = before.double() if residual else torch.zeros_like(before, dtype=torch.float64)
    want = reference.prepare(stored, bias)(x.double()) + start
    size = seen.double().abs() @ dense.double().abs().T + start.abs() + (0 if bias is None else bias.abs())
    assert bool(((got - want).abs() <= size * (inputs**0.5 + 4) * 2**-24).all())


@pytest.mark.parametrize("name", FORMATS)
def test_a_row_has_the_same_bits_alone_and_among_others(name: str) -> None:
    prepared, x = layer(name, noise(100, 76), noise(100, seed=1)), noise(500, 76, seed=2)
    native.configure(1)
    want = prepared(x)
    for threads in (1, 2, 3):
        native.configure(threads)
        assert torch.equal(prepared(x), want)
        for rows in ROWS:
            for start in (0, 17, 500 - rows):
                assert torch.equal(prepared(x[start : start + rows]), want[start : start + rows])


@pytest.mark.parametrize("rows", [14, 230])
def test_many_inputs_are_summed_in_the_same_order(rows: int) -> None:
    """More than one pass over the inputs, and over the rows."""
    prepared, x = prepare(noise(40, 4100)), noise(rows, 4100, seed=1)
    alone = torch.cat([prepared(x[row : row + 1]) for row in range(rows)])
    assert torch.equal(prepared(x), alone)


@pytest.mark.skipif(not LESSER, reason="this machine has one instruction set only")
def test_both_instruction_sets_give_the_same_bits() -> None:
    """AMX has products of integers alone."""
    assert digests_by("avx2", "linear_cases") == digests()


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("junk", [torch.nan, torch.inf, 1e30])
def test_what_a_row_holds_stays_in_it(name: str, junk: float) -> None:
    prepared, x = layer(name, noise(50, 70)), noise(20, 70, seed=1)
    want = prepared(x)
    x[[3, 19]] = junk
    got = prepared(x)
    others = [row for row in range(20) if row not in (3, 19)]
    assert torch.equal(got[others], want[others])
    if junk != 1e30:
        assert not got[[3, 19]].isfinite().any()


@pytest.mark.parametrize("name", FORMATS)
def test_rows_of_the_table(name: str) -> None:
    weight = noise(331, 70)
    stored = weight.to(DENSE[name]) if name in DENSE else quantize(weight, FP8[name])
    table = stored.float() if isinstance(stored, torch.Tensor) else dequantize(stored)
    prepared, ids = prepare(stored), torch.tensor([0, 330, 15, 16, 15])
    assert torch.equal(prepared.rows(ids), table[ids])
    assert torch.equal(prepared.rows(ids[:0]), table[ids[:0]])
    beyond = prepared.rows(torch.tensor([331, 1, -1]))
    assert beyond[[0, 2]].isnan().all()
    assert torch.equal(beyond[1], table[1])


def test_strided_rows_from_the_first_wanted_on_and_none_else() -> None:
    prepared = prepare(noise(18, 20))
    wide, out = noise(30, 50, seed=1), torch.full((30, 40), 7.0)
    rows, first = native.Counter(0), native.Counter(0)
    step = Program([prepared.call(wide[:, 10:30], out[:, 5:23], rows, first=first)])
    for first.value, rows.value in ((3, 2), (12, 17), (29, 1), (4, 0)):
        out.fill_(7.0)
        step()
        there = slice(first.value, first.value + rows.value)
        assert torch.equal(out[there, 5:23], prepared(wide[there, 10:30]))
        out[there, 5:23] = 7.0
        assert (out == 7.0).all()


@pytest.mark.parametrize("group", [None, 16, 48])
@pytest.mark.parametrize("activation_group", [7, 16, 64])
def test_activations_are_rounded_as_the_reference_does(group: int | None, activation_group: int) -> None:
    """Times the identity, from huge to subnormal."""
    eye = quantize(
        torch.eye(70),
        WeightScheme(Codes.FP8, group=group, activations="fp8", activation_group=activation_group),
    )
    x = noise(40, 70) * torch.logspace(-44, 30, 40)[:, None]
    x[0, :20] = 0
    assert torch.equal(prepare(eye)(x), reference.round_activations(x, eye))


def test_every_code_of_e4m3() -> None:
    codes = torch.tensor([code for code in range(256) if code & 0x7F != 0x7F], dtype=torch.uint8)
    weight = QuantizedWeight(
        Codes.FP8, codes.view(torch.float8_e4m3fn)[:, None], torch.full((254, 1), 0.75), 1, 1
    )
    want = codes.view(torch.float8_e4m3fn).float() * 0.75
    assert torch.equal(prepare(weight).rows(torch.arange(254))[:, 0], want)
    assert torch.equal(prepare(weight)(torch.ones(1, 1))[0], want)
    broken = QuantizedWeight(
        Codes.FP8, torch.full((2, 3), torch.nan).to(torch.float8_e4m3fn), torch.ones(2, 1), 3, 3
    )
    with pytest.raises(InvalidArgument, match=r"fp8 weight of shape \[2, 3\] holds NaN"):
        native_fp8.prepare(broken)


def test_inputs_in_an_order_of_their_own() -> None:
    weight = quantize(noise(20, 30), FP8["e4m3 groups"])
    weight = QuantizedWeight(weight.kind, weight.codes, weight.scale, 30, 24, in_order=torch.randperm(30))
    x = noise(3, 30, seed=1)
    torch.testing.assert_close(prepare(weight)(x), x @ dequantize(weight).T)


def test_what_does_not_fit_is_named() -> None:
    prepared, rows = prepare(noise(6, 4)), native.Counter(1)
    x, out = torch.zeros(2, 4), torch.zeros(2, 6)
    for weight, bias, message in (
        (noise(6), None, r"torch.float32 tensor of shape \[6\]"),
        (noise(6, 0), None, r"of shape \[6, 0\]"),
        (torch.ones(6, 4, dtype=torch.int8), None, r"torch.int8 tensor of shape \[6, 4\]"),
        (noise(6, 4), noise(4), r"bias of shape \[4\] for 6 outputs"),
    ):
        with pytest.raises(InvalidArgument, match=message):
            prepare(weight, bias)
    for arguments, message in (
        ((torch.zeros(2, 5), out), r"x must be \[capacity, 4\], got \[2, 5\]"),
        ((x, torch.zeros(2, 4)), r"out must be \[capacity, 6\], got \[2, 4\]"),
        ((x.double(), out), "x must be fp32"),
        ((x, torch.zeros(6, 2).t()), "out's rows must be contiguous"),
    ):
        with pytest.raises(ValueError, match=message):
            prepared.call(*arguments, rows)
    with pytest.raises(ValueError, match="ids must be contiguous int64"):
        prepared.rows_call(torch.zeros(2, dtype=torch.int32), torch.zeros(2, 4), rows)


@pytest.mark.parametrize(("name", "element_bytes"), [("fp32", 4), ("bf16", 2), ("fp16", 2), ("e4m3 rows", 1)])
def test_held_in_memory_as_stored(name: str, element_bytes: int) -> None:
    prepared = layer(name, noise(32, 50), noise(32))
    scales = 4 * 32 if element_bytes == 1 else 0
    assert prepared.nbytes == 32 * 50 * element_bytes + 4 * 32 + scales
    assert layer(name, noise(32, 50).double() if name == "fp32" else noise(32, 50)).in_features == 50
