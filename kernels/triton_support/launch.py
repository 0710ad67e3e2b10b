"""A kernel launch as a value, so that tests compile exactly what a run would launch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Launch:
    """arguments: every parameter of the kernel by name, compile-time constants included.

    warps, stages: see triton.Config. A grid with a zero in it launches nothing. fused: a * b + c is rounded
    once; that it is the default, releases of Triton differ about.
    """

    kernel: Any
    grid: tuple[int, ...]
    arguments: Mapping[str, Any]
    warps: int = 4
    stages: int = 2
    fused: bool = True

    @property
    def options(self) -> dict[str, Any]:
        return {"num_warps": self.warps, "num_stages": self.stages, "enable_fp_fusion": self.fused}

    def run(self) -> None:
        if all(self.grid):
            self.kernel[self.grid](**self.arguments, **self.options)
