"""Registers, spills and shared memory of every attention kernel that the tuning table can launch, compiled
for sm_80 and sm_90; needs no GPU, takes minutes the first time.

    python -m baton.bench.kernel_resources [sm_80 | sm_90]
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

import torch

from baton.kernels.attention import AttentionParams, KvLayer, RowSpan, make_plan
from baton.kernels.attention.kv_layer import CODE_MAX
from baton.kernels.attention.triton import attention_launches
from baton.kernels.attention.triton_write import write_launch
from baton.kernels.triton_support.device import Gpu
from baton.kernels.triton_support.launch import Launch
from baton.kernels.triton_support.resources import compile_for

# Rows that take the small, the middle and the tall tile with four query heads to a KV head.
STEPS = {"decode": (4_000, 1), "verify": (4_000, 5), "prefill": (0, 512)}
SMS = {80: 108, 90: 132}


@dataclass(frozen=True, slots=True)
class Case:
    """step: one of STEPS. query, kv: dtypes by their names in torch."""

    arch: int
    head_dim: int
    step: str
    query: str = "bfloat16"
    kv: str = "bfloat16"
    window: int | None = None
    softcap: float | None = None

    def __str__(self) -> str:
        parts = [f"sm_{self.arch}", f"d{self.head_dim}", self.step, self.query, f"kv-{self.kv}"]
        return "-".join(parts + ["window"] * (self.window is not None) + ["cap"] * (self.softcap is not None))

    @property
    def gpu(self) -> Gpu:
        return Gpu(self.arch, SMS[self.arch])

    def layer(self, kv_heads: int = 8, block_size: int = 16) -> KvLayer:
        dtype = getattr(torch, self.kv)
        slots = (100, 2, block_size, kv_heads)
        scales = torch.empty(slots, dtype=torch.bfloat16, device="meta") if dtype in CODE_MAX else None
        return KvLayer(torch.empty(*slots, self.head_dim, dtype=dtype, device="meta"), scales)

    def attention(self) -> list[Launch]:
        """The attention kernel, then (where it splits) the one that merges its parts."""
        start, length = STEPS[self.step]
        plan = make_plan([RowSpan(start, length, range(1, 2 + (start + length) // 16))], 16)
        query = torch.empty(length, 32, self.head_dim, dtype=getattr(torch, self.query), device="meta")
        params = AttentionParams(self.head_dim**-0.5, self.window, self.softcap)
        return attention_launches(query, self.layer(), plan, params, self.gpu)

    def write(self) -> Launch:
        kv = torch.empty(7, 2, 8, self.head_dim, dtype=getattr(torch, self.query), device="meta")
        slots = torch.empty(7, 2, dtype=torch.int32, device="meta")
        return write_launch(self.layer(), kv, slots, self.gpu)


def all_cases() -> Iterator[Case]:
    for arch, head_dim, step in product(SMS, (64, 128, 256), STEPS):
        for kv in ("bfloat16", "int8", "float8_e4m3fn"):
            yield Case(arch, head_dim, step, kv=kv)
        yield Case(arch, head_dim, step, query="float16", kv="float8_e4m3fn")
        yield Case(arch, head_dim, step, window=4_096, softcap=50.0)


def main(wanted: list[str]) -> None:
    for case in all_cases():
        if not wanted or f"sm_{case.arch}" in wanted:
            launch = case.attention()[0]
            tile = f"{launch.arguments['TILE_M']:3d} x {launch.arguments['TILE_N']:3d}"
            print(f"{case!s:48} {tile}  {compile_for(launch, case.arch)}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
