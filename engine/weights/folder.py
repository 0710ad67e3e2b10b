"""A Hugging Face folder's safetensors as a weight source. Pages of the files are mapped, not read ahead."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from baton.core.errors import InvalidArgument
from baton.engine.weights.source import Shape, digest_of
from baton.kernels.quantize import QuantizedWeight

log = logging.getLogger(__name__)

# Measured beforehand, for caches that quantise with one scale per layer.
_KV_SCALE = re.compile(r"\.(q|k|v|kv|prob)_(scale|zero_point)$|\.[kv]_proj\.output_(scale|zero_point)$")
_SINGLE = "model.safetensors"
_INDEX = "model.safetensors.index.json"


class SafetensorsFolder:
    """All shards, opened. InvalidArgument if there are none, one is damaged, or the index names others."""

    def __init__(self, folder: Path) -> None:
        self.where = str(folder)
        self._files = [_open(path) for path in _shards(folder)]
        self._by_name = {name: file for file in self._files for name in file.keys()}  # noqa: SIM118 (no dict)
        self._shapes: dict[str, Shape] = {
            name: tuple(file.get_slice(name).get_shape()) for name, file in self._by_name.items()
        }
        self.spare = frozenset(name for name in self._by_name if _KV_SCALE.search(name))
        if self.spare:
            found = len(self.spare)
            log.info("%s: %d KV scales are not used: each token and head has its own", folder, found)

    def shapes(self) -> Mapping[str, Shape]:
        return self._shapes

    def copy_into(self, name: str, out: torch.Tensor) -> None:
        out.copy_(self.tensor(name))

    def quantized(self, name: str) -> QuantizedWeight | None:
        """Never: what its tensors mean together is `QuantizedFolder`'s to know."""
        return None

    def tensor(self, name: str) -> torch.Tensor:
        """As stored."""
        tensor: torch.Tensor = self._by_name[name].get_tensor(name)
        return tensor

    def digest(self) -> str:
        def reader(name: str, file: Any) -> Any:
            def read() -> tuple[str, memoryview]:
                tensor = file.get_tensor(name)
                content = tensor.contiguous().view(-1).view(torch.uint8).numpy()
                return f"{tensor.dtype} {list(tensor.shape)}", memoryview(content)

            return read

        return digest_of({name: reader(name, file) for name, file in self._by_name.items()})


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object, or InvalidArgument naming the file."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InvalidArgument(f"cannot read {path}: {error}") from error
    if not isinstance(value, dict):
        raise InvalidArgument(f"{path} must hold a JSON object")
    return value


def _shards(folder: Path) -> list[Path]:
    if (folder / _INDEX).is_file():
        files = read_json(folder / _INDEX).get("weight_map")
        if not isinstance(files, dict) or not all(_plain_name(name) for name in files.values()):
            raise InvalidArgument(f"{folder / _INDEX} has no weight_map of parameter names to file names")
        paths = [folder / name for name in sorted(set(files.values()))]
    elif (folder / _SINGLE).is_file():
        paths = [folder / _SINGLE]
    else:
        # A .bin checkpoint is a pickle: reading one runs whatever its author put in it.
        pickles = sorted(path.name for path in folder.glob("*.bin"))
        hint = f"; {pickles[0]} is a pickle, which is never read: convert it" if pickles else ""
        raise InvalidArgument(f"{folder} holds neither {_SINGLE} nor {_INDEX}{hint}")
    for path in paths:
        if not path.is_file():
            raise InvalidArgument(f"{folder / _INDEX} names {path.name}, which is not there")
    return paths


def _plain_name(name: Any) -> bool:
    return isinstance(name, str) and Path(name).name == name


def _open(path: Path) -> Any:
    try:
        return safe_open(path, framework="pt")
    except (SafetensorError, OSError) as error:
        raise InvalidArgument(f"{path} is not a whole safetensors file: {error}") from error
