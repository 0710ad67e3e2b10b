"""Tiny quantised checkpoints, packed from the formats' descriptions, with the values they stand for.

Slow and plain on purpose: shares no code with what reads them.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file

AWQ_OUTPUT_AT = {0: 0, 1: 2, 2: 4, 3: 6, 4: 1, 5: 3, 6: 5, 7: 7}  # place in the word -> output of the eight


@dataclass
class Matrix:
    """tensors: by the last part of their names. values: [out, in], fp64."""

    tensors: dict[str, torch.Tensor]
    values: np.ndarray


@dataclass
class Checkpoint:
    options: dict[str, Any]
    modules: dict[str, Matrix] = field(default_factory=dict)
    others: dict[str, torch.Tensor] = field(default_factory=dict)

    def write(self, folder: Path) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(json.dumps({"quantization_config": self.options}))
        tensors = dict(self.others)
        for name, matrix in self.modules.items():
            tensors |= {f"{name}.{suffix}": t.contiguous() for suffix, t in matrix.tensors.items()}
        save_file(tensors, folder / "model.safetensors", {"format": "pt"})
        return folder


def words(values: np.ndarray, bits: int) -> torch.Tensor:
    """[rows, n] unsigned to [rows, ceil(n * bits / 32)] int32, lowest bits first."""
    rows, n = values.shape
    per = 32 // bits
    packed = np.zeros((rows, -(-n // per)), dtype=np.uint64)
    for i in range(n):
        packed[:, i // per] |= values[:, i].astype(np.uint64) << np.uint64(bits * (i % per))
    return torch.from_numpy(packed.astype(np.uint32).view(np.int32))


def _draw(rng: np.random.Generator, out: int, groups: int, bits: int, symmetric: bool) -> tuple[Any, Any]:
    scale = torch.from_numpy(rng.uniform(0.001, 0.02, (out, groups))).half()
    zeros = (
        np.full((out, groups), 1 << (bits - 1)) if symmetric else rng.integers(0, 1 << bits, (out, groups))
    )
    return scale, zeros


def _values(codes: np.ndarray, scale: torch.Tensor, zeros: np.ndarray, group_of: np.ndarray) -> np.ndarray:
    values = np.empty(codes.shape)
    for i in range(codes.shape[1]):
        g = group_of[i]
        values[:, i] = scale[:, g].double().numpy() * (codes[:, i].astype(float) - zeros[:, g])
    return values


def packed_ints(
    rng: np.random.Generator,
    shape: tuple[int, int],
    bits: int,
    group: int,
    symmetric: bool,
    order: bool = False,
) -> Matrix:
    """compressed-tensors, pack-quantized. group: -1 for a whole row. order: with a g_idx of its own."""
    out, inputs = shape
    size = inputs if group < 0 else group
    codes = rng.integers(0, 1 << bits, shape)
    scale, zeros = _draw(rng, out, -(-inputs // size), bits, symmetric)
    group_of = np.arange(inputs) // size
    tensors = {
        "weight_packed": words(codes, bits),
        "weight_scale": scale,
        "weight_shape": torch.tensor(shape),
    }
    if order:
        group_of = rng.permutation(group_of)
        tensors["weight_g_idx"] = torch.from_numpy(group_of).int()
    if not symmetric:
        tensors["weight_zero_point"] = words(zeros.T, bits).t()
    return Matrix(tensors, _values(codes, scale, zeros, group_of))


def plain_ints(rng: np.random.Generator, shape: tuple[int, int], scales: str, symmetric: bool) -> Matrix:
    """compressed-tensors, int-quantized, 8 bits. scales: tensor, channel, or the size of a group."""
    out, inputs = shape
    codes = rng.integers(-128, 128, shape)
    size = int(scales) if scales.isdigit() else inputs
    groups = -(-inputs // size)
    scale = torch.from_numpy(rng.uniform(0.001, 0.02, (1 if scales == "tensor" else out, groups))).bfloat16()
    zeros = np.zeros((scale.shape[0], groups), int) if symmetric else rng.integers(-128, 128, scale.shape)
    spread_scale, spread_zeros = scale.expand(out, groups), np.broadcast_to(zeros, (out, groups))
    values = _values(codes, spread_scale, spread_zeros, np.arange(inputs) // size)
    flat = (1,) if scales == "tensor" else scale.shape
    tensors = {"weight": torch.from_numpy(codes).to(torch.int8), "weight_scale": scale.reshape(flat)}
    if not symmetric:
        tensors["weight_zero_point"] = torch.from_numpy(zeros.reshape(flat)).to(torch.int8)
    return Matrix(tensors, values)


def floats8(
    rng: np.random.Generator, shape: tuple[int, int], scales: Any, name: str = "weight_scale"
) -> Matrix:
    """FP8. scales: tensor, channel, or (rows, inputs) of a block."""
    out, inputs = shape
    codes = torch.from_numpy(rng.normal(0, 60, shape)).to(torch.float8_e4m3fn)
    rows, columns = {"tensor": (out, inputs), "channel": (1, inputs)}.get(scales, scales)
    scale = torch.from_numpy(rng.uniform(0.001, 0.02, (-(-out // rows), -(-inputs // columns)))).float()
    values = codes.double().numpy().copy()
    for o in range(out):
        for i in range(inputs):
            values[o, i] *= float(scale[o // rows, i // columns])
    return Matrix({"weight": codes, name: scale.reshape(1) if scales == "tensor" else scale}, values)


def floats4(rng: np.random.Generator, shape: tuple[int, int], kind: str) -> Matrix:
    """compressed-tensors, kind: nvfp4 or mxfp4."""
    out, inputs = shape
    group = 16 if kind == "nvfp4" else 32
    codes = rng.integers(0, 16, shape)
    sizes = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
    values = np.array([[sizes[c & 7] * (-1 if c & 8 else 1) for c in row] for row in codes])
    packed = np.zeros((out, inputs // 2), np.uint8)
    for i in range(inputs):
        packed[:, i // 2] |= (codes[:, i] << (4 * (i % 2))).astype(np.uint8)
    tensors = {"weight_packed": torch.from_numpy(packed)}
    if kind == "nvfp4":
        scale = torch.from_numpy(rng.uniform(1, 448, (out, inputs // group))).to(torch.float8_e4m3fn)
        tensors |= {"weight_scale": scale, "weight_global_scale": torch.tensor([2048.0])}
        factors = scale.double().numpy() / 2048.0
    else:
        exponents = rng.integers(115, 130, (out, inputs // group))
        tensors["weight_scale"] = torch.from_numpy(exponents).to(torch.uint8)
        factors = 2.0 ** (exponents - 127.0)
    return Matrix(tensors, values * factors.repeat(group, 1))


def gptq(rng: np.random.Generator, shape: tuple[int, int], bits: int, group: int, **how: int) -> Matrix:
    """how: symmetric; act_order: a seed; v2: zeros are stored as they are, not one less."""
    out, inputs = shape
    size = inputs if group < 0 else group
    codes = rng.integers(0, 1 << bits, shape)
    scale, zeros = _draw(rng, out, -(-inputs // size), bits, bool(how.get("symmetric")))
    group_of = np.arange(inputs) // size
    if how.get("act_order"):
        group_of = np.random.default_rng(how["act_order"]).permutation(group_of)
    stored = zeros if how.get("v2") else (zeros - 1) & ((1 << bits) - 1)
    tensors = {
        "qweight": words(codes, bits).t(),
        "qzeros": words(stored.T, bits),
        "scales": scale.t(),
        "g_idx": torch.from_numpy(group_of).int(),
    }
    return Matrix(tensors, _values(codes, scale, zeros, group_of))


def awq(rng: np.random.Generator, shape: tuple[int, int], group: int) -> Matrix:
    out, inputs = shape
    codes = rng.integers(0, 16, shape)
    scale, zeros = _draw(rng, out, inputs // group, 4, False)

    def interleaved(rows: np.ndarray) -> torch.Tensor:
        """[n, out], each eight outputs to a word."""
        placed = np.empty_like(rows)
        for start in range(0, rows.shape[1], 8):
            for place, output in AWQ_OUTPUT_AT.items():
                placed[:, start + place] = rows[:, start + output]
        return words(placed, 4)

    tensors = {"qweight": interleaved(codes.T), "qzeros": interleaved(zeros.T), "scales": scale.t()}
    return Matrix(tensors, _values(codes, scale, zeros, np.arange(inputs) // group))
