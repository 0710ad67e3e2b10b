"""The value type of quantised weights, checked when it is made."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from typing import Literal

import torch

from baton.core.errors import InvalidArgument

Activations = Literal["int8", "fp8"]

# e2m1 (OCP Microscaling Formats v1.0, section 5.3.3): a sign bit above two of exponent and one of mantissa.
FP4_VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)

_SCALE_DTYPES = (torch.float32, torch.float16, torch.bfloat16)


class Codes(Enum):
    """INT8: int8. INT4: unsigned, 0..15, two to a byte. FP8: e4m3fn. FP4: e2m1, two to a byte."""

    INT8 = "int8"
    INT4 = "int4"
    FP8 = "fp8"
    FP4 = "fp4"

    @property
    def packed(self) -> bool:
        """Two codes to a byte."""
        return self in (Codes.INT4, Codes.FP4)

    @property
    def dtype(self) -> torch.dtype:
        """Of the tensor that holds the codes."""
        if self.packed:
            return torch.uint8
        return torch.int8 if self is Codes.INT8 else torch.float8_e4m3fn


@dataclass(frozen=True, slots=True, eq=False)
class QuantizedWeight:
    """A [out, in] matrix; see the package's formula.

    codes: [out, in], or [out, ceil(in / 2)] uint8 when packed: the low nibble is the even input, and the last
    high nibble of an odd number is 0. scale, offset: [out, ceil(in / group)], fp32, fp16 or bf16; no offset
    is one of 0. zero_point: what symmetric INT4 subtracts from codes (8). global_scale: a second one (NVFP4).

    activations: None, or what a product may round its inputs to, with one scale per token and
    `activation_group` inputs (the weight's group where that is smaller). in_order: int64 permutation of the
    inputs; the codes' column j belongs to input in_order[j].
    """

    kind: Codes
    codes: torch.Tensor
    scale: torch.Tensor
    in_features: int
    group: int
    offset: torch.Tensor | None = None
    zero_point: int = 0
    global_scale: float = 1.0
    activations: Activations | None = None
    activation_group: int = 64
    in_order: torch.Tensor | None = None

    def __post_init__(self) -> None:
        self._check(self.in_features >= 1 and self.group >= 1, "has no inputs or no group")
        self._check(self.codes.dtype is self.kind.dtype, f"codes are {self.codes.dtype}")
        columns = -(-self.in_features // 2) if self.kind.packed else self.in_features
        self._check(
            self.codes.dim() == 2 and self.codes.shape[1] == columns, f"{list(self.codes.shape)} codes"
        )
        wanted = (self.out_features, self.groups)
        for name, tensor in (("scale", self.scale), ("offset", self.offset)):
            if tensor is not None:
                self._check(
                    tuple(tensor.shape) == wanted, f"{name} is {list(tensor.shape)}, not {list(wanted)}"
                )
                self._check(tensor.dtype in _SCALE_DTYPES, f"{name} is {tensor.dtype}")
        if self.in_order is not None:
            self._check(self.in_order.shape == (self.in_features,), f"in_order {list(self.in_order.shape)}")
            self._check(self.in_order.dtype is torch.int64, f"in_order is {self.in_order.dtype}")

    def _check(self, holds: bool, what: str) -> None:
        if not holds:
            described = f"{self.kind.value} weight of {self.in_features} inputs in groups of {self.group}"
            raise InvalidArgument(f"{described}: {what}")

    @property
    def out_features(self) -> int:
        return self.codes.shape[0]

    @property
    def shape(self) -> tuple[int, int]:
        return self.out_features, self.in_features

    @property
    def groups(self) -> int:
        """Groups per output, the last of which may be partial."""
        return -(-self.in_features // self.group)

    @property
    def nbytes(self) -> int:
        tensors = (self.codes, self.scale, self.offset, self.in_order)
        return sum(tensor.nbytes for tensor in tensors if tensor is not None)

    def rows(self, index: slice | torch.Tensor) -> QuantizedWeight:
        """Some of the outputs, by a slice (a view) or by int64 ids in any order (a copy)."""
        codes = self.codes.view(torch.uint8)[index].view(
            self.codes.dtype
        )  # float8 cannot be indexed everywhere
        offset = None if self.offset is None else self.offset[index]
        return replace(self, codes=codes, scale=self.scale[index], offset=offset)


def pack4(codes: torch.Tensor) -> torch.Tensor:
    """[out, in] codes 0..15 of any integer dtype to [out, ceil(in / 2)] bytes, the even input low."""
    codes = codes.to(torch.uint8)
    if codes.shape[1] % 2:
        codes = torch.nn.functional.pad(codes, (0, 1))
    return codes[:, 0::2] | codes[:, 1::2] << 4


def unpack4(packed: torch.Tensor, in_features: int) -> torch.Tensor:
    """The opposite: [out, in_features] uint8, 0..15."""
    pairs = torch.stack((packed & 15, packed >> 4), -1)
    return pairs.flatten(1)[:, :in_features]
