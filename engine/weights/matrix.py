"""How a model's matrices are to be held, and one of them, or several as one, brought into that form."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch

from baton.core.errors import InvalidArgument
from baton.engine.weights.source import WeightSource
from baton.kernels.quantize import SCHEMES, QuantizedWeight, WeightScheme, concat, concat_obstacle, quantize

_ROWS_AT_ONCE = 64
_NUMBER = re.compile(r"\.\d+\.")

log = logging.getLogger(__name__)

QUANTIZATIONS = ("auto", "none", *SCHEMES)


@dataclass(frozen=True, slots=True)
class Storage:
    """dtype: of what is not quantised; narrow: unless half as many bits hold the very same numbers.
    as_stored: keep what the checkpoint stores in few bits as it is. scheme: what everything is quantised
    with, whatever the checkpoint holds; None: nothing is."""

    dtype: torch.dtype
    as_stored: bool = True
    scheme: WeightScheme | None = None
    narrow: bool = False


def storage(quantization: str, dtype: torch.dtype, *, head: bool = False) -> Storage:
    """By the configuration's word. head: of the output head, and of the embedding where that is the same.
    InvalidArgument (field `quantization`): no such word."""
    if quantization not in QUANTIZATIONS:
        raise InvalidArgument(
            f"must be one of {', '.join(QUANTIZATIONS)}, got {quantization!r}", field="quantization"
        )
    if quantization in ("auto", "none"):
        return Storage(dtype, as_stored=quantization == "auto")
    name = _HEADS.get(quantization, quantization) if head else quantization
    return Storage(dtype, as_stored=False, scheme=SCHEMES[name])


# What the head costs of SmolLM2-135M's perplexity: 4 to 40 % in four bits, 0.1 % in eight, and 0.1 % more
# where what it is multiplied with is rounded, too: more than in any layer, for half of its time.
_HEADS = {"int4": "int8", "int4-w4a8": "int8", "mxfp4": "int8", "nvfp4": "int8"}


def load_matrix(source: WeightSource, names: Sequence[str], how: Storage) -> torch.Tensor | QuantizedWeight:
    """The [out, in] matrices of these names, one below the other.

    Quantised parts are joined where that changes no value; where it would, all are dequantised to
    `how.dtype`, and the log says so. A dense copy never outlives the call.
    """
    if how.as_stored and (joined := _as_stored(source, names)) is not None:
        return joined
    if how.scheme is None:
        dense = _dense(source, names, how.dtype)
        return _narrowed(dense) if how.narrow else dense
    try:
        return quantize(_dense(source, names, torch.float32), how.scheme)
    except InvalidArgument as error:
        raise InvalidArgument(f"{source.where}: {_told(names)}: {error}") from error


def _as_stored(source: WeightSource, names: Sequence[str]) -> QuantizedWeight | None:
    parts = [source.quantized(name) for name in names]
    stored = [part for part in parts if part is not None]
    if not stored:
        return None
    obstacle = concat_obstacle(stored) if len(stored) == len(parts) else "some are dense"
    if obstacle:
        _tell(source.where, _NUMBER.sub(".*.", names[0]), obstacle)
        return None
    return stored[0] if len(stored) == 1 else concat(stored)


@lru_cache(maxsize=64)  # once, not for every layer
def _tell(where: str, name: str, obstacle: str) -> None:
    log.warning("%s: %s and what shares its product are dequantised: %s", where, name, obstacle)


def _dense(source: WeightSource, names: Sequence[str], dtype: torch.dtype) -> torch.Tensor:
    held = source.shapes()
    shapes = [held[name] for name in names]
    rows = [shape[0] for shape in shapes]
    out = torch.empty((sum(rows), *shapes[0][1:]), dtype=dtype)
    for name, piece in zip(names, out.split(rows), strict=True):
        source.copy_into(name, piece)
    return out


def _narrowed(dense: torch.Tensor) -> torch.Tensor:
    """Most checkpoints hold bf16 numbers, whatever they are read as."""
    for dtype in (torch.bfloat16, torch.float16):
        if all(torch.equal(rows.to(dtype).to(dense.dtype), rows) for rows in dense.split(_ROWS_AT_ONCE)):
            return dense.to(dtype)
    return dense


def _told(names: Sequence[str]) -> str:
    return ", ".join(names)
