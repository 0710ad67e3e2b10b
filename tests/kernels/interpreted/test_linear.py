"""Products with weights of every format, against fp64 over the weight as it reads back."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from baton.kernels.linear import triton
from baton.kernels.linear.reference import round_activations
from baton.kernels.quantize import SCHEMES, Codes, QuantizedWeight, WeightScheme, dequantize, quantize, scheme

# (in, out)
SHAPES = [(16, 7), (96, 150), (331, 40)]
DTYPES = [(torch.float32, 2e-6), (torch.float16, 2e-3), (torch.bfloat16, 1e-2)]


def noise(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def check(weight: QuantizedWeight | torch.Tensor, x: torch.Tensor, tolerance: float) -> None:
    """tolerance: of a result, as a share of the sum of its terms' sizes."""
    bias = noise(weight.shape[0], seed=9).to(x.dtype)
    got = triton.prepare(weight, bias)(x)
    assert (got.dtype, got.shape) == (x.dtype, (*x.shape[:-1], weight.shape[0]))
    if isinstance(weight, torch.Tensor):
        dense, seen = weight.double(), x.double()
    else:
        dense, seen = dequantize(weight, torch.float64), round_activations(x.float(), weight).double()
    want = seen @ dense.T + bias.double()
    size = seen.abs() @ dense.abs().T + bias.double().abs()
    assert ((got.double() - want).abs() <= tolerance * size).all()


@pytest.mark.parametrize(("dtype", "tolerance"), DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_dense(shape: tuple[int, int], dtype: torch.dtype, tolerance: float) -> None:
    weight = noise(shape[1], shape[0]).to(dtype)
    check(weight, noise(3, shape[0], seed=1).to(dtype), tolerance)


def test_a_weight_of_another_type_and_rows_at_a_stride() -> None:
    check(noise(20, 40).bfloat16(), noise(2, 3, 50, seed=1)[..., :40], 2e-6)


@pytest.mark.parametrize("name", SCHEMES)
@pytest.mark.parametrize("shape", SHAPES)
def test_schemes(shape: tuple[int, int], name: str) -> None:
    check(quantize(noise(shape[1], shape[0]), scheme(name)), noise(3, shape[0], seed=1), 3e-6)


@pytest.mark.parametrize(("dtype", "tolerance"), DTYPES[1:])
@pytest.mark.parametrize("name", ["int8", "int4", "mxfp4", "int4-w4a8"])
def test_dtypes(name: str, dtype: torch.dtype, tolerance: float) -> None:
    check(quantize(noise(40, 160), scheme(name)), noise(17, 160, seed=1).to(dtype), tolerance)


@pytest.mark.parametrize("group", [7, 16, 24, 64, 128, 1000])
@pytest.mark.parametrize(
    ("kind", "symmetric", "activations"),
    [
        (Codes.INT8, False, None),
        (Codes.INT4, True, None),
        (Codes.INT4, False, "int8"),
        (Codes.FP8, True, "fp8"),
    ],
)
def test_groups(group: int, kind: Codes, symmetric: bool, activations: str | None) -> None:
    how = WeightScheme(kind, group=group, symmetric=symmetric, activations=activations, activation_group=32)
    check(quantize(noise(9, 280) * 3, how), noise(2, 280, seed=1), 3e-6)


@pytest.mark.parametrize("name", ["int4", "int8-w8a8"])
def test_inputs_in_another_order(name: str) -> None:
    order = torch.randperm(160, generator=torch.Generator().manual_seed(3))
    weight = replace(quantize(noise(24, 160), scheme(name)), in_order=order)
    check(weight, noise(3, 160, seed=1), 3e-6)
    ids = torch.tensor([5, 0, 5])
    assert torch.equal(triton.prepare(weight).rows(ids), dequantize(weight)[ids])


@pytest.mark.parametrize("name", [*SCHEMES, "dense"])
def test_rows_are_the_weights(name: str) -> None:
    dense = noise(30, 331)
    weight = dense if name == "dense" else quantize(dense, scheme(name))
    ids = torch.tensor([29, 0, 3, 3])
    want = (dense if isinstance(weight, torch.Tensor) else dequantize(weight))[ids]
    torch.testing.assert_close(triton.prepare(weight).rows(ids), want, rtol=0, atol=0)


@pytest.mark.parametrize("name", ["int8", "int4", "fp8", "int8-w8a8", "int4-w4a8", "dense"])
@pytest.mark.filterwarnings("ignore:invalid value encountered", "ignore:overflow encountered")
def test_a_row_knows_nothing_of_the_others(name: str) -> None:
    weight = noise(40, 96) if name == "dense" else quantize(noise(40, 96), scheme(name))
    layer, x = triton.prepare(weight), noise(40, 96, seed=1)
    want = layer(x)
    torch.testing.assert_close(layer(x[9:10]), want[9:10], atol=1e-4, rtol=0)  # numpy multiplies here
    x[[2, 11, 38], 5] = torch.tensor([torch.nan, torch.inf, 3e38])
    got = layer(x)
    others = [i for i in range(40) if i not in (2, 11, 38)]
    assert torch.equal(got[others], want[others])
    assert got[2].isnan().all()


def test_memory_is_that_of_the_codes() -> None:
    weight = quantize(noise(64, 256), scheme("int4"))
    assert triton.prepare(weight).nbytes == weight.nbytes
