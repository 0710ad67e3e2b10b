"""Products and small operations compiled for GPUs that are not here; see test_triton_resources."""

from __future__ import annotations

import re

import pytest
import torch

from baton.kernels.attention import KvLayer
from baton.kernels.blocks import KvVectors
from baton.kernels.blocks.triton import convert_launch
from baton.kernels.linear.triton import prepare
from baton.kernels.linear.triton_inputs import prepare_inputs
from baton.kernels.linear.triton_launch import Experts, Target, dot_type, product_launch, tile_of
from baton.kernels.logits import LogitEdits
from baton.kernels.logits.triton import edits_launch
from baton.kernels.moe.triton import combine_launch, route_launch
from baton.kernels.moe.types import Routing
from baton.kernels.quantize import Codes, QuantizedWeight, scheme
from baton.kernels.rms_norm.triton import rms_norm_launch
from baton.kernels.rope import QkNorm, Rotation, Slots
from baton.kernels.rope.triton import rotate_launch
from baton.kernels.sample.triton import SampleParams, sample_launch, survey_launch
from baton.kernels.silu_mul.triton import silu_mul_launch
from baton.kernels.triton_support.device import Gpu
from tests.kernels.test_triton_resources import check

SMS = {80: 108, 90: 132}
BF16 = torch.bfloat16
OUT, IN = 28_672, 4_096


def meta(*shape: int, dtype: torch.dtype = BF16) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def weight(name: str) -> torch.Tensor | QuantizedWeight:
    if name == "dense":
        return meta(OUT, IN)
    how = scheme(name)
    group = how.group or IN
    scale = meta(OUT, IN // group, dtype=BF16 if how.group else torch.float32)
    return QuantizedWeight(
        how.kind,
        meta(OUT, IN // 2 if how.kind.packed else IN, dtype=how.kind.dtype),
        scale,
        IN,
        group,
        offset=None if how.symmetric else scale,
        zero_point=8 if how.kind is Codes.INT4 and how.symmetric else 0,
        activations=how.activations,
        activation_group=how.activation_group,
    )


@pytest.mark.parametrize(
    ("arch", "name", "rows"),
    [
        (90, "dense", 500),
        (90, "int8", 1),
        (90, "int4", 1),
        (90, "int4", 500),
        (90, "fp8", 60),
        (90, "int8-w8a8", 500),
        (80, "dense", 1),
        (80, "int8", 500),
        (80, "int4", 500),
        (80, "fp8-w8a8", 30),
    ],
)
def test_products(arch: int, name: str, rows: int) -> None:
    layer = prepare(weight(name), meta(OUT))
    launches = layer.launches(meta(rows, IN), meta(rows, OUT), Gpu(arch, SMS[arch]))
    used = check(launches[-1], arch, programs=3 if rows == 1 else 1)
    # Weights go past the registers, many bytes at a time, and meet their inputs in tensor cores.
    assert re.search(r"cp\.async\.c[ag]\.shared\.global[^;]*, 0x(10|8)", used.ptx)
    assert ("wgmma.mma_async" in used.ptx) == (arch == 90)
    if arch == 80:
        assert "mma.sync" in used.ptx
    for launch in launches[:-1]:
        check(launch, arch, programs=8)


def test_fp8_is_multiplied_as_it_is_where_there_are_units_for_it() -> None:
    layer = prepare(weight("fp8-w8a8"))
    launch = layer.launches(meta(500, IN), meta(500, OUT), Gpu(90, 132))[-1]
    assert re.search(r"wgmma\.mma_async[^;]*e4m3\.e4m3", check(launch, 90, programs=1).ptx)


@pytest.mark.parametrize(("arch", "name"), [(90, "int4"), (90, "fp8-w8a8"), (80, "dense")])
def test_experts(arch: int, name: str) -> None:
    """Weights found through a table of pointers are read like any others."""
    gpu, layer, x = Gpu(arch, SMS[arch]), prepare(weight(name)), meta(64, IN)
    inputs, _ = prepare_inputs(x, layer.weight)
    tile = tile_of(64, layer.weight, dot_type(inputs.x, layer.weight, gpu), gpu)
    rows = meta(9 * tile.rows, dtype=torch.int32)
    where = Experts(meta(8, 5, dtype=torch.int64), meta(9, dtype=torch.int32), rows, rows, tile)
    used = check(product_launch(inputs, layer.weight, Target(meta(64, OUT)), gpu, where), arch, programs=1)
    assert re.search(r"cp\.async\.c[ag]\.shared\.global[^;]*, 0x(10|8)", used.ptx)
    assert ("wgmma.mma_async" in used.ptx) == (arch == 90)


@pytest.mark.parametrize("arch", [80, 90])
def test_small_operations(arch: int) -> None:
    x, vector = meta(7, 8_192), meta(8_192)
    check(rms_norm_launch(x, x, vector, 1e-5, x), arch, programs=2)
    check(silu_mul_launch(meta(7, 16_384), x), arch, programs=8)
    heads = QkNorm(meta(128), meta(128), 1e-6)
    places = meta(7, dtype=torch.int64)
    rotation = Rotation(meta(7, 1, 128), meta(7, 1, 128))
    pool = KvLayer(meta(9, 2, 16, 8, 128, dtype=torch.float8_e4m3fn), meta(9, 2, 16, 8))
    step = (meta(7, 48, 128), rotation, pool, Slots(places, places), heads)
    check(rotate_launch(*step, Gpu(arch, SMS[arch])), arch, programs=4)
    plain, codes = (
        KvVectors(meta(9, 4, 2, 16, 8, 128)),
        KvVectors(meta(9, 4, 2, 16, 8, 128, dtype=torch.int8)),
    )
    check(convert_launch(codes._replace(scales=meta(9, 4, 2, 16, 8)), plain), arch, programs=8)
    single = torch.float32
    routing = Routing(meta(7, 8, dtype=torch.int64), meta(7, 8, dtype=single))
    check(route_launch(meta(7, 128), routing, renormalize=True), arch, programs=16)
    check(combine_launch(meta(56, 4_096), routing.weights, meta(7, 4_096)), arch, programs=8)
    double = meta(7, dtype=torch.float64)
    logits = meta(7, 32_000, dtype=single)
    check(edits_launch(logits, LogitEdits(places, places, double, double)), arch, programs=4)
    check(survey_launch(logits, double.float(), places), arch, programs=4)
    used = check(sample_launch(logits, SampleParams(double, places, double, double, double), places), arch, 1)
    # Bits depend on it: nothing is fused, and constants of fp64 came through as such.
    assert "fma.rn.f64" not in used.ptx
    assert "0d3FE62E42FEFA39EF" in used.ptx
