"""How a dense weight is to be quantised; the schemes that the configuration names."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from baton.core.errors import InvalidArgument
from baton.kernels.quantize.weight import Activations, Codes


class ScaleFormat(Enum):
    """FP32, BF16: as the name says. E8M0: powers of two (MXFP4). E4M3: fp8 under a scale of the whole matrix
    (NVFP4). The latter two are held in bf16, exactly."""

    FP32 = "fp32"
    BF16 = "bf16"
    E8M0 = "e8m0"
    E4M3 = "e4m3"


@dataclass(frozen=True, slots=True)
class WeightScheme:
    """group: inputs that share a scale, None: a whole row. symmetric: no offset (floats are always so).
    activations, activation_group: see `QuantizedWeight`."""

    kind: Codes
    group: int | None = None
    symmetric: bool = True
    scale: ScaleFormat = ScaleFormat.FP32
    activations: Activations | None = None
    activation_group: int = 64

    def __post_init__(self) -> None:
        if self.group is not None and self.group < 1:
            raise InvalidArgument(f"groups must have at least one input, not {self.group}", field="group")
        if self.activation_group < 1:
            raise InvalidArgument(
                f"must be at least 1, got {self.activation_group}", field="activation_group"
            )
        if not self.symmetric and self.kind in (Codes.FP8, Codes.FP4):
            raise InvalidArgument(
                f"{self.kind.value} codes have a sign: they take no offset", field="symmetric"
            )


_MXFP4_GROUP = 32  # OCP Microscaling Formats v1.0, section 5.1
_NVFP4_GROUP = 16

# Groups of 64: a scale per row costs SmolLM2-135M half a per cent of perplexity, this a fifth of one, for 3 %
# more memory. Beside rounded activations they would gain a twentieth of one, and a product would take two
# multiplications per block instead of one: 4 % of its time.
SCHEMES = {
    "int8": WeightScheme(Codes.INT8, group=64, scale=ScaleFormat.BF16),
    "int4": WeightScheme(Codes.INT4, group=32, symmetric=False, scale=ScaleFormat.BF16),
    "fp8": WeightScheme(Codes.FP8),
    "mxfp4": WeightScheme(Codes.FP4, group=_MXFP4_GROUP, scale=ScaleFormat.E8M0),
    "nvfp4": WeightScheme(Codes.FP4, group=_NVFP4_GROUP, scale=ScaleFormat.E4M3),
    "int8-w8a8": WeightScheme(Codes.INT8, activations="int8"),
    "int4-w4a8": WeightScheme(
        Codes.INT4, group=32, symmetric=False, scale=ScaleFormat.BF16, activations="int8", activation_group=32
    ),
    "fp8-w8a8": WeightScheme(Codes.FP8, activations="fp8"),
}


def scheme(name: str) -> WeightScheme:
    """InvalidArgument (field `quantization`): no scheme of this name."""
    if name not in SCHEMES:
        raise InvalidArgument(f"must be one of {', '.join(SCHEMES)}, got {name!r}", field="quantization")
    return SCHEMES[name]
