"""Quantised KV in the kernels: written to the bit like the reference, scales applied on every path."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl

from baton.kernels.attention import KvLayer, RowSpan, make_plan, write_kv
from baton.kernels.attention import triton as paged
from baton.kernels.attention.triton_codes import decode_codes
from tests.kernels.interpreted.scene import QUANTIZED, Scene


def pool(dtype: torch.dtype, heads: int, head_dim: int) -> KvLayer:
    codes = torch.zeros(6, 3, 2, 4, heads, head_dim).to(dtype)[:, 1]
    scales = torch.zeros(6, 2, 4, heads, dtype=torch.bfloat16) if dtype in QUANTIZED else None
    return KvLayer(codes, scales)


def raw(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().view(torch.uint8)


@pytest.mark.parametrize(
    ("dtype", "source"),
    [
        *((dtype, source) for dtype in QUANTIZED for source in (torch.float32, torch.bfloat16)),
        (torch.float32, torch.float32),
        (torch.float16, torch.float32),
        (torch.bfloat16, torch.bfloat16),  # not from float32: the interpreter cuts where devices round
    ],
)
def test_written_as_the_reference_writes(dtype: torch.dtype, source: torch.dtype) -> None:
    heads, head_dim = 9, 24
    plan = make_plan([RowSpan(3, 2, [5, 2]), RowSpan(0, 1, [1]), RowSpan(0, 6, [3, 4])], 4)
    kv = torch.randn(plan.tokens, 2, heads, head_dim, generator=torch.Generator().manual_seed(1))
    kv *= torch.logspace(-3, 3, head_dim)
    kv[1] = 0.0
    if dtype in QUANTIZED:
        kv[2, 0, 3:6] = torch.tensor([torch.inf, -torch.inf, torch.nan])[:, None]
        kv[2, 1] *= 1e-34  # the interpreter misreads denormal bfloat16
        kv[3, 0] *= 1e33
        kv[3, 1] = 3.4e38
    kv = kv.to(source)
    want, got = pool(dtype, heads, head_dim), pool(dtype, heads, head_dim)
    write_kv(want, kv, plan)
    paged.write_kv(got, kv, plan)
    assert torch.equal(raw(got.codes), raw(want.codes))
    if want.scales is not None:
        assert got.scales is not None
        torch.testing.assert_close(got.scales, want.scales, rtol=0, atol=0, equal_nan=True)
        assert want.scales.isnan().any()
        assert (want.codes.float() != 0).any()


@pytest.mark.parametrize("dtype", QUANTIZED)
def test_all_ties_round_to_even(dtype: torch.dtype) -> None:
    """Every code, what lies halfway to the next, and their neighbours."""
    largest = 127.0 if dtype == torch.int8 else 448.0
    codes = torch.arange(-127, 128).float()
    if dtype == torch.float8_e4m3fn:
        codes = torch.arange(256, dtype=torch.uint8).view(dtype).float()
        codes = codes[codes.isfinite()].unique()
    halves = (codes[1:] + codes[:-1]) / 2
    exact = torch.cat([codes, halves, halves.nextafter(codes[1:]), halves.nextafter(codes[:-1])])
    exact = torch.nn.functional.pad(exact, (0, -len(exact) % 20)).view(-1, 20)
    exact = torch.nn.functional.pad(exact, (0, 4), value=largest)  # so the scale is 1
    kv = torch.stack([exact, -exact], 1)[:, :, None]
    tokens = len(kv)
    plan = make_plan([RowSpan(0, tokens, range(1, tokens // 4 + 2))], 4)
    layers = [
        KvLayer(
            torch.zeros(tokens // 4 + 2, 2, 4, 1, 24).to(dtype),
            torch.zeros(tokens // 4 + 2, 2, 4, 1, dtype=torch.bfloat16),
        )
        for _ in range(2)
    ]
    for write, layer in zip((write_kv, paged.write_kv), layers, strict=True):
        write(layer, kv, plan)
    assert torch.equal(raw(layers[0].codes), raw(layers[1].codes))


@pytest.mark.parametrize(("form", "factor"), [("fp8", 1.0), ("fp8-bits", 256.0)])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_both_ways_of_reading_fp8_are_exact(form: str, factor: float, dtype: torch.dtype) -> None:
    codes = torch.arange(256, dtype=torch.uint8)
    out = torch.empty(256, dtype=dtype)
    decode_all[(1,)](codes, out, form)
    want = codes.view(torch.float8_e4m3fn).float()
    number = ~want.isnan()
    assert torch.equal(out.float()[number] * factor, want[number])


@triton.jit
def decode_all(codes_ptr, out_ptr, FORMAT: tl.constexpr):
    at = tl.arange(0, 256)
    tl.store(out_ptr + at, decode_codes(tl.load(codes_ptr + at), FORMAT, out_ptr.dtype.element_ty))


@pytest.mark.parametrize(
    ("dtype", "query"),
    [
        (torch.int8, torch.float32),
        (torch.int8, torch.bfloat16),
        (torch.float8_e4m3fn, torch.float32),
        (torch.float8_e4m3fn, torch.float16),
    ],
)
def test_every_path_applies_both_scales(dtype: torch.dtype, query: torch.dtype) -> None:
    """Prefill, a chunk over a cached prefix, decode and verification rows, with scales of all sizes."""
    scene = Scene([(0, 18), (21, 9), (37, 1), (20, 5)], (3, 1), 24, kv_dtype=dtype)
    assert scene.layer.scales is not None
    sizes = torch.logspace(-6, 0, scene.layer.scales[:, 1].numel()).view_as(scene.layer.scales[:, 1])
    scene.layer.scales[:, 1] *= sizes.to(torch.bfloat16)
    scene.q = scene.q.to(query)
    before, _ = scene.check(atol={torch.float32: 1e-5, torch.float16: 3e-3, torch.bfloat16: 2e-2}[query])
    scene.layer.scales[:, 1] *= 100
    after, _ = scene.check(atol={torch.float32: 1e-3, torch.float16: 3e-1, torch.bfloat16: 2.0}[query])
    assert float(after.float().norm() / before.float().norm()) == pytest.approx(100, rel=0.05)


@pytest.mark.parametrize("dtype", QUANTIZED)
def test_values_too_small_for_fp16_survive_its_queries(dtype: torch.dtype) -> None:
    scene = Scene([(30, 1)], kv_dtype=dtype)
    assert scene.layer.scales is not None
    scene.layer.scales[:, 1] *= 1e-3
    scene.q = scene.q.half()
    out, _ = scene.check()
    assert float(out.abs().max()) > 1e-4


def test_token_by_token_is_one_prefill() -> None:
    scene = Scene([(0, 20)], kv_dtype=torch.int8)
    whole, _ = scene.check()
    for at in (0, 7, 19):
        one = Scene([(at, 1)], kv_dtype=torch.int8)
        one.layer, one.q = scene.layer, scene.q[at : at + 1]
        one.spans = [RowSpan(at, 1, scene.spans[0].block_table)]
        one.plan = one.plain = make_plan(one.spans, 4)
        torch.testing.assert_close(one.check()[0], whole[at : at + 1], atol=1e-5, rtol=0)
