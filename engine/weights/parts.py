"""The tensors of one module of a checkpoint, by the last part of their names."""

from __future__ import annotations

import torch

from baton.core.errors import InvalidArgument
from baton.engine.weights.folder import SafetensorsFolder
from baton.engine.weights.source import Shape


class Parts:
    """module: the name before the last dot."""

    def __init__(self, module: str, files: SafetensorsFolder) -> None:
        self.module = module
        self._files = files
        self._shapes = files.shapes()

    def __contains__(self, suffix: str) -> bool:
        return f"{self.module}.{suffix}" in self._shapes

    def __getitem__(self, suffix: str) -> torch.Tensor:
        """InvalidArgument: there is none."""
        if suffix not in self:
            raise InvalidArgument(f"lacks {suffix}")
        return self._files.tensor(f"{self.module}.{suffix}")

    def get(self, suffix: str) -> torch.Tensor | None:
        """None: there is none."""
        return self[suffix] if suffix in self else None  # noqa: SIM401 - this is the method it proposes

    def matrix_shape(self, suffix: str) -> Shape:
        """InvalidArgument: there is no tensor of this name, or it is no matrix."""
        if suffix not in self:
            raise InvalidArgument(f"lacks {suffix}")
        shape = self._shapes[f"{self.module}.{suffix}"]
        if len(shape) != 2:
            raise InvalidArgument(f"{suffix} is {list(shape)}, not a matrix")
        return shape
