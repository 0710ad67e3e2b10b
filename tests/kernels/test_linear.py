"""The contract of linear layers, on the backends that torch computes."""

from __future__ import annotations

from types import ModuleType

import pytest
import torch

from baton.core.errors import InvalidArgument
from baton.kernels.linear import cpu, reference
from baton.kernels.quantize import SCHEMES, Codes, WeightScheme, dequantize, quantize, scheme

BACKENDS = pytest.mark.parametrize("backend", [cpu, reference], ids=["torch", "reference"])


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def noise(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@BACKENDS
@pytest.mark.parametrize("name", SCHEMES)
@pytest.mark.parametrize(("out", "inputs"), [(331, 96), (7, 5), (160, 40)])
def test_quantised_layers(
    backend: ModuleType, name: str, out: int, inputs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpu, "_SLICE_BYTES", 4 * inputs * 50)  # several slices, the last one partial
    weight, bias, x = (
        quantize(noise(out, inputs), scheme(name)),
        noise(out, seed=1),
        noise(2, 3, inputs, seed=2),
    )
    layer = backend.prepare(weight, bias)
    assert (layer.in_features, layer.out_features) == (inputs, out)
    assert layer.nbytes == weight.nbytes + bias.nbytes
    seen = reference.round_activations(x, weight).double()
    want = seen @ dequantize(weight, torch.float64).T + bias.double()
    torch.testing.assert_close(layer(x).double(), want, atol=1e-3, rtol=0)
    torch.testing.assert_close(layer(x[0, :0]), torch.empty(0, out))
    ids = torch.tensor([out - 1, 0, 3])
    assert torch.equal(layer.rows(ids), dequantize(weight)[ids])


@BACKENDS
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("rows", [0, 1, 5])
def test_dense_layers(backend: ModuleType, dtype: torch.dtype, rows: int) -> None:
    weight, bias, x = noise(17, 33).to(dtype), noise(17, seed=1), noise(rows, 2, 33, seed=2).to(dtype)
    layer = backend.prepare(weight, bias)
    got = layer(x)
    assert got.dtype is dtype
    want = x.double() @ weight.double().T + bias.double()
    loose = 0.15 if dtype is torch.bfloat16 else 1e-4
    torch.testing.assert_close(got.double(), want, atol=loose, rtol=loose / 10)
    assert torch.equal(layer.rows(torch.tensor([16, 0])), weight[[16, 0]])


def test_the_reference_computes_in_the_dtype_of_x() -> None:
    weight = quantize(noise(8, 40), scheme("int8"))
    x = noise(3, 40).double()
    assert torch.equal(reference.prepare(weight)(x), x @ dequantize(weight, torch.float64).T)


@pytest.mark.parametrize("activations", ["int8", "fp8"])
def test_activations_are_rounded_by_token_and_group(activations: str) -> None:
    """Neither a neighbour nor another group has a say, and tiny groups vanish without NaN."""
    kind = Codes.INT8 if activations == "int8" else Codes.FP8
    weight = quantize(
        noise(4, 50), WeightScheme(kind, group=24, activations=activations, activation_group=20)
    )
    x = noise(5, 50)
    want = reference.round_activations(x, weight)
    step = 1 / 254 if activations == "int8" else 1 / 16
    assert bool(((want - x).abs() <= step * x.abs().amax()).all())
    louder = x.clone()
    louder[1] = torch.nan
    louder[2, :20] *= 1e30
    louder[3, 40:] = 1e-42
    got = reference.round_activations(louder, weight)
    assert torch.equal(got[[0, 4]], want[[0, 4]])
    assert torch.equal(got[2, 20:], want[2, 20:])
    assert torch.equal(got[3, :40], want[3, :40])
    assert got[2:].isfinite().all()


@BACKENDS
def test_what_does_not_fit_is_named(backend: ModuleType) -> None:
    for weight, bias, message in (
        (noise(6), None, r"torch.float32 tensor of shape \[6\]"),
        (noise(0, 6), None, r"of shape \[0, 6\]"),
        (torch.ones(6, 4, dtype=torch.int8), None, r"torch.int8 tensor of shape \[6, 4\]"),
        (quantize(noise(6, 4), scheme("int8")), noise(4), r"bias of shape \[4\] for 6 outputs"),
    ):
        with pytest.raises(InvalidArgument, match=message):
            backend.prepare(weight, bias)
