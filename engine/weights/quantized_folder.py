"""A folder whose matrices are stored in several tensors each: codes, scales, zero points, an order.

Which ones, and what they mean, a `Layout` knows; `quantization_config` in config.json names it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol, TypeVar

import torch

from baton.core.errors import InvalidArgument
from baton.engine.weights.awq import Awq
from baton.engine.weights.compressed_tensors import CompressedTensors
from baton.engine.weights.fine_grained_fp8 import FineGrainedFp8
from baton.engine.weights.folder import SafetensorsFolder, read_json
from baton.engine.weights.gptq import Gptq
from baton.engine.weights.parts import Parts
from baton.engine.weights.source import Shape, WeightSource, check_finite
from baton.kernels.quantize import QuantizedWeight, dequantize

_T = TypeVar("_T")


class Layout(Protocol):
    """marks: a module that has a tensor of one of these names is stored in this way. companions: names of
    tensors that a module's matrix is made of, apart from `weight`."""

    @property
    def marks(self) -> tuple[str, ...]: ...

    @property
    def companions(self) -> tuple[str, ...]: ...

    def shape(self, parts: Parts) -> Shape:
        """[out, in], without reading codes."""

    def read(self, parts: Parts) -> QuantizedWeight:
        """InvalidArgument: stored in a way that is not known, or sizes do not fit."""


_LAYOUTS: dict[str, Callable[[Mapping[str, Any]], Layout]] = {
    "compressed-tensors": CompressedTensors,
    "gptq": Gptq,
    "awq": Awq,
    "fp8": FineGrainedFp8,
}


def open_folder(folder: Path) -> WeightSource:
    """Its safetensors, read as its config.json says. InvalidArgument: damaged, or of an unknown layout."""
    config = read_json(folder / "config.json")
    options = config.get("quantization_config") or config.get("compression_config")
    files = SafetensorsFolder(folder)
    if not options:
        return files
    if not isinstance(options, dict):
        raise InvalidArgument(f"{folder}: quantization_config must be an object, not {options!r}")
    method = options.get("quant_method")
    if method not in _LAYOUTS:
        raise InvalidArgument(
            f"{folder} is quantised by {method!r}, which is not supported; {', '.join(_LAYOUTS)} are"
        )
    try:
        layout = _LAYOUTS[method](options)
    except (InvalidArgument, AttributeError, KeyError, TypeError, ValueError) as error:
        raise InvalidArgument(f"{folder}: quantization_config: {error}") from error
    return QuantizedFolder(files, layout, options)


class QuantizedFolder:
    """See `WeightSource`. Modules go by their name without `.weight`."""

    def __init__(self, files: SafetensorsFolder, layout: Layout, options: Mapping[str, Any]) -> None:
        self.where = files.where
        self._files = files
        self._layout = layout
        self._options = options
        self._stored = files.shapes()
        self._modules = {
            name.removesuffix(f".{mark}")
            for name in self._stored
            for mark in layout.marks
            if name.endswith(f".{mark}")
        }
        self._shapes = self._visible_shapes()
        self.spare = files.spare | self._zero_biases()

    def shapes(self) -> Mapping[str, Shape]:
        return self._shapes

    def quantized(self, name: str) -> QuantizedWeight | None:
        module = name.removesuffix(".weight")
        if module == name or module not in self._modules:
            return None
        weight = self._of(module, self._layout.read)
        if weight.shape != self._shapes[name]:
            raise InvalidArgument(f"{self.where}: {module} is {list(weight.shape)}, not {self._shapes[name]}")
        check_finite(weight, f"{self.where}: {module}")
        return weight

    def copy_into(self, name: str, out: torch.Tensor) -> None:
        weight = self.quantized(name)
        if weight is None:
            self._files.copy_into(name, out)
        else:
            out.copy_(dequantize(weight))

    def digest(self) -> str:
        # What the codes mean is in the config.
        told = json.dumps(self._options, sort_keys=True)
        return hashlib.blake2b((self._files.digest() + told).encode(), digest_size=16).hexdigest()

    def _of(self, module: str, read: Callable[[Parts], _T]) -> _T:
        try:
            return read(Parts(module, self._files))
        except InvalidArgument as error:
            raise InvalidArgument(f"{self.where}: {module}: {error}") from error

    def _visible_shapes(self) -> dict[str, Shape]:
        hidden = {f"{m}.{suffix}" for m in self._modules for suffix in self._layout.companions}
        shapes = {name: shape for name, shape in self._stored.items() if name not in hidden}
        for module in self._modules:
            shapes[f"{module}.weight"] = self._of(module, self._layout.shape)
        return shapes

    def _zero_biases(self) -> frozenset[str]:
        """Some tools write a bias of zeros for every matrix, whether or not the model has one."""
        names = (f"{module}.bias" for module in self._modules)
        return frozenset(n for n in names if n in self._stored and not bool(self._files.tensor(n).any()))
