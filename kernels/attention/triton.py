"""Paged attention on GPUs: one kernel for prompt chunks, decode, verification rows and shared prefixes.

A step is cut on the host into items of about equal work (`triton_work`), and a program per item and KV head
runs FlashAttention-2's loop (arXiv:2307.08691) over its keys: scores in fp32, online softmax in base 2, the
accumulator kept in registers and divided once. Keys and values are gathered through the block table straight
into shared memory. What is not plain:

    GQA          the query heads of a KV head are rows of one tile, so its keys are read once
    few rows     a row's keys are split over programs, and the parts merged by their log-sum-exps
                 (Flash-Decoding), by as much as keeps the device busy and no more
    shared       queries of all rows that share blocks form tiles together (cascade: FlashInfer,
                 arXiv:2501.01005), at every level of sharing; their parts are merged in the same pass
    soft cap     Gemma 2, arXiv:2408.00118
    quantised    codes are multiplied as they are; scales meet scores and weights, one per key

Parts are exact to rounding, wherever they are cut: windows and causality go by positions, in shared prefixes
as elsewhere. An output depends on how its step was cut, in the last bits. Slots that no query of a tile sees
are never loaded; a NaN value vector that one of them sees reaches the tile's others too (0 * NaN), all of the
same row or of rows that share it.

    out = attention(q, layer, plan, params)

q: fp32, fp16 or bf16, contiguous in head_dim; fp32 is multiplied as three products of TF32. Under
TRITON_INTERPRET=1 (set before triton is imported) the same code runs on CPU tensors.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
import triton.language as tl

from baton.kernels.attention.kv_layer import KvLayer
from baton.kernels.attention.plan import AttentionParams, AttentionPlan
from baton.kernels.attention.triton_codes import kv_format
from baton.kernels.attention.triton_kernel import attention_kernel
from baton.kernels.attention.triton_tuning import Tile, padded, tiles
from baton.kernels.attention.triton_work import Cutting, cut
from baton.kernels.attention.triton_write import write_launch
from baton.kernels.merge_states.triton import merge_parts_launch
from baton.kernels.triton_support.device import Gpu, gpu_of, upload
from baton.kernels.triton_support.launch import Launch

_LOG2_E = 1.4426950408889634


def attention(q: torch.Tensor, layer: KvLayer, plan: AttentionPlan, params: AttentionParams) -> torch.Tensor:
    """q: [tokens, heads, head_dim], tokens in the order of the plan's rows; returns the same shape."""
    step = _Step(q, layer, plan, params, gpu_of(q.device), with_lse=False)
    step.run()
    return step.out


def attention_lse(
    q: torch.Tensor, layer: KvLayer, plan: AttentionPlan, params: AttentionParams
) -> tuple[torch.Tensor, torch.Tensor]:
    """Also [tokens, heads] fp32: the natural log of each softmax's denominator, for `merge_states`."""
    step = _Step(q, layer, plan, params, gpu_of(q.device), with_lse=True)
    step.run()
    return step.out, step.lse


def write_kv(layer: KvLayer, kv: torch.Tensor, plan: AttentionPlan) -> None:
    """Put the step's keys and values, [tokens, 2, kv_heads, head_dim], where the block tables say."""
    gpu = gpu_of(kv.device)
    tables = _tables_of(plan, kv.device)
    write_launch(layer, kv, tables.slots, gpu).run()


def attention_launches(
    q: torch.Tensor, layer: KvLayer, plan: AttentionPlan, params: AttentionParams, gpu: Gpu
) -> list[Launch]:
    """What `attention_lse` would run on this GPU; tensors may be on torch's meta device."""
    return _Step(q, layer, plan, params, gpu, with_lse=True).launches()


@dataclass(frozen=True, slots=True)
class _Tables:
    """What does not depend on the layer, on the device. slots: [tokens, 2], block and offset in it."""

    positions: torch.Tensor
    tables: torch.Tensor
    slots: torch.Tensor


@dataclass(frozen=True, slots=True)
class _DeviceWork:
    """See `triton_work.Work`."""

    items: tuple[torch.Tensor, ...]
    query_tokens: torch.Tensor
    merges: torch.Tensor
    partial_rows: torch.Tensor
    partials: int


def _tables_of(plan: AttentionPlan, device: torch.device) -> _Tables:
    found = plan.derived.get((_Tables, device))
    if not isinstance(found, _Tables):
        slots = np.stack([plan.blocks.numpy(), plan.offsets.numpy()], 1)
        found = _Tables(*upload([plan.positions.numpy(), plan.tables, slots], device))
        plan.derived[_Tables, device] = found
    return found


def _work_of(plan: AttentionPlan, cutting: Cutting, device: torch.device) -> _DeviceWork:
    found = plan.derived.get((cutting, device))
    if not isinstance(found, _DeviceWork):
        work = cut(plan, cutting)
        *items, query_tokens, merges, partial_rows = upload(
            [*work.items, work.query_tokens, work.merges, work.partial_rows], device
        )
        found = _DeviceWork(tuple(items), query_tokens, merges, partial_rows, work.partials)
        plan.derived[cutting, device] = found
    return found


class _Step:
    """One layer's attention in one step: its results, and the launches that fill them."""

    def __init__(
        self,
        q: torch.Tensor,
        layer: KvLayer,
        plan: AttentionPlan,
        params: AttentionParams,
        gpu: Gpu,
        *,
        with_lse: bool,
    ) -> None:
        tokens, heads, head_dim = q.shape
        if heads % layer.kv_heads:
            raise ValueError(f"{heads} query heads do not share {layer.kv_heads} KV heads evenly")
        self.q = q if q.stride(-1) == 1 else q.contiguous()
        self.layer, self.params, self.gpu, self.with_lse = layer, params, gpu, with_lse
        self.tiles = tiles(gpu, head_dim, q.element_size(), quantized=layer.scales is not None)
        self.group = heads // layer.kv_heads
        self.tables = _tables_of(plan, q.device)
        self.work = _work_of(plan, self._cutting(), q.device)
        self.out = q.new_empty(tokens, heads, head_dim)
        self.lse = q.new_empty((tokens, heads) if with_lse else (0,), dtype=torch.float32)
        partials = max(1, self.work.partials)
        self.partial_out = q.new_empty((partials, heads, head_dim), dtype=torch.float32)
        self.partial_lse = q.new_empty((partials, heads), dtype=torch.float32)

    def run(self) -> None:
        for launch in self.launches():
            launch.run()

    def launches(self) -> list[Launch]:
        arguments = self._arguments()
        parts = [
            self._attend(tile, items, arguments)
            for tile, items in zip(self.tiles, self.work.items, strict=True)
            if len(items)
        ]
        if len(self.work.merges):
            parts.append(
                merge_parts_launch(
                    (self.partial_out, self.partial_lse),
                    (self.work.merges, self.work.partial_rows),
                    (self.out, self.lse),
                    with_lse=self.with_lse,
                )
            )
        return parts

    def _cutting(self) -> Cutting:
        interpreted = self.gpu.arch == 0
        return Cutting(
            group=self.group,
            kv_heads=self.layer.kv_heads,
            sms=self.gpu.sms,
            window=self.params.window,
            tile_rows=tuple(tile.rows for tile in self.tiles),
            least_keys=16 if interpreted else 256,
            align=16 if interpreted else 128,
        )

    def _attend(self, tile: Tile, items: torch.Tensor, arguments: dict[str, object]) -> Launch:
        own = {
            "items_ptr": items,
            "TILE_M": tile.rows,
            "TILE_N": tile.keys,
            # Decode waits for memory anyway; masks cost it nothing, a second copy of the loop would.
            "HAS_INTERIOR": tile.rows > self.tiles[0].rows,
        }
        grid = (len(items), self.layer.kv_heads)
        return Launch(attention_kernel, grid, {**arguments, **own}, tile.warps, tile.stages)

    def _arguments(self) -> dict[str, object]:
        """What all tiles have in common."""
        q, params = self.q, self.params
        form, codes = kv_format(self.layer, self.gpu)
        scales = self.layer.scales
        scale_strides = (0, 0, 0, 0) if scales is None else scales.stride()
        score_scale, softcap = params.scale * _LOG2_E, 0.0
        if params.softcap is not None:
            score_scale = 2 * _LOG2_E * params.scale / params.softcap
            softcap = params.softcap * _LOG2_E
        exact = q.dtype == torch.float32
        q_dtype, v_dtype = _multiplied_in(q.dtype, self.gpu, quantized=scales is not None)
        return {
            "q_ptr": q,
            "codes_ptr": codes,
            "scales_ptr": scales,
            "out_ptr": self.out,
            "lse_ptr": self.lse,
            "partial_out_ptr": self.partial_out,
            "partial_lse_ptr": self.partial_lse,
            "query_tokens_ptr": self.work.query_tokens,
            "positions_ptr": self.tables.positions,
            "tables_ptr": self.tables.tables,
            "q_token_stride": q.stride(0),
            "q_head_stride": q.stride(1),
            **_strides("code", codes.stride()),
            **_strides("scale", scale_strides),
            "score_scale": score_scale,
            "softcap": softcap,
            "window": params.window or 0,
            "HEADS": q.shape[1],
            "GROUP": self.group,
            "HEAD_DIM": q.shape[2],
            "BLOCK_SIZE": self.layer.block_size,
            "ALIGN": math.gcd(16, *codes.stride()[:-1]),
            "FORMAT": form,
            "HAS_WINDOW": params.window is not None,
            "HAS_SOFTCAP": params.softcap is not None,
            "WITH_LSE": self.with_lse,
            "PRECISION": "tf32x3" if exact else "tf32",
            "Q_DTYPE": q_dtype,
            "V_DTYPE": v_dtype,
            "TILE_D": padded(q.shape[2]),
        }


def _strides(of: str, strides: tuple[int, ...]) -> dict[str, int]:
    names = ("block", "part", "slot", "head")
    return {f"{of}_{name}_stride": stride for name, stride in zip(names, strides, strict=False)}


def _multiplied_in(query: torch.dtype, gpu: Gpu, *, quantized: bool) -> tuple[tl.dtype, tl.dtype]:
    """What queries meet keys in, and weights meet values in.

    Weights times quantisation scales may be far below what fp16 can hold, so these go by bfloat16, which
    holds all codes exactly. The interpreter takes bfloat16 for integers when it multiplies: there it is fp32.
    """
    bfloat16 = tl.float32 if gpu.arch == 0 else tl.bfloat16
    if query == torch.float32:
        return tl.float32, tl.float32
    if query == torch.bfloat16:
        return bfloat16, bfloat16
    return tl.float16, bfloat16 if quantized else tl.float16
