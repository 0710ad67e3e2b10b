"""Each op's CPU path equals its readable reference; the references equal torch's or arithmetic's word."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from baton.kernels import rms_norm, rope, silu_mul
from baton.kernels.linear import cpu as linear


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("rows", [0, 1, 2, 3, 4, 5, 16, 64, 65])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("column_major", [False, True])
def test_linear(rows: int, bias: bool, column_major: bool, threads: int) -> None:
    torch.set_num_threads(threads)
    noise = torch.Generator().manual_seed(rows)
    x, weight = torch.randn(rows, 33, generator=noise), torch.randn(17, 33, generator=noise)
    if column_major:
        x = x.t().contiguous().t()
    add = torch.randn(17, generator=noise) if bias else None
    got = linear.linear(x, weight, add)
    torch.set_num_threads(1)
    torch.testing.assert_close(
        got.double(),
        F.linear(x.double(), weight.double(), add if add is None else add.double()),
        atol=1e-4,
        rtol=1e-4,
    )


@pytest.mark.parametrize("shape", [(0, 24), (1, 24), (5, 3, 24)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rms_norm(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    noise = torch.Generator().manual_seed(1)
    x, weight = torch.randn(shape, generator=noise).to(dtype), torch.randn(24, generator=noise).to(dtype)
    want = x.double() / (x.double().pow(2).mean(-1, keepdim=True) + 1e-5).sqrt() * weight.double()
    loose = {"atol": 1e-5, "rtol": 1e-5} if dtype == torch.float32 else {"atol": 0.05, "rtol": 0.02}
    torch.testing.assert_close(rms_norm.cpu.rms_norm(x, weight, 1e-5).double(), want, **loose)
    torch.testing.assert_close(rms_norm.reference.rms_norm(x, weight, 1e-5).double(), want, **loose)


@pytest.mark.parametrize("tokens", [0, 1, 7])
def test_silu_mul(tokens: int) -> None:
    x = torch.randn(tokens, 20, generator=torch.Generator().manual_seed(2))
    torch.testing.assert_close(silu_mul.cpu.silu_mul(x), silu_mul.reference.silu_mul(x))
    torch.testing.assert_close(silu_mul.cpu.silu_mul(x), F.silu(x[:, :10]) * x[:, 10:])


@pytest.mark.parametrize("head_dim", [2, 24, 64])
def test_rope_turns_each_pair_by_its_angle(head_dim: int) -> None:
    noise = torch.Generator().manual_seed(3)
    x = torch.randn(5, 3, head_dim, generator=noise)
    angles = torch.randn(5, head_dim // 2, generator=noise)
    turned = torch.polar(torch.full_like(angles, 1.5), angles)[:, None] * torch.complex(
        x[..., : head_dim // 2], x[..., head_dim // 2 :]
    )
    want = torch.cat((turned.real, turned.imag), -1)
    cos, sin = rope.tables(angles, 1.5, torch.float32)
    whole = torch.cat((x, x), 1)  # a slice of something larger, as in the fused projection
    rope.reference.rotate_(whole[:, :3], cos, sin)
    torch.testing.assert_close(whole[:, :3], want)
    torch.testing.assert_close(whole[:, 3:], x)
