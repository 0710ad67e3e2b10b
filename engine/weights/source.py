"""Where parameters come from, and the check that all of them, and no others, are there.

Parameters go by the names of Hugging Face's Llama ("model.layers.0.self_attn.q_proj.weight", [out, in]).
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

import torch

from baton.core.errors import InvalidArgument
from baton.kernels.quantize import Codes, QuantizedWeight

Shape = tuple[int, ...]

_E4M3_NAN = 0x7F  # its bits without the sign; e4m3fn has no infinities
_NAMED = 5  # names spelled out in an error before the rest is counted


class WeightSource(Protocol):
    """A checkpoint, opened. where: its file or folder, for messages. spare: parameters that it holds and that
    a model may leave unused."""

    where: str
    spare: frozenset[str]

    def shapes(self) -> Mapping[str, Shape]:
        """All parameters it holds."""

    def copy_into(self, name: str, out: torch.Tensor) -> None:
        """Write a parameter into `out`, which has its shape, converting to its dtype."""

    def quantized(self, name: str) -> QuantizedWeight | None:
        """A matrix as it is stored, its codes untouched; None where it is not, or not so that it can be used.
        `copy_into` gives the same values."""

    def digest(self) -> str:
        """Over names, shapes and contents as stored."""


def check_complete(source: WeightSource, wanted: Mapping[str, Shape], *, ignored: Iterable[str] = ()) -> None:
    """Raise InvalidArgument naming what is missing, unexpected, or of another shape. ignored: suffixes of
    names that may be there without use."""
    held = source.shapes()
    suffixes = tuple(ignored)
    spare = source.spare
    missing = [name for name in wanted if name not in held]
    unexpected = [
        name
        for name in held
        if name not in wanted and name not in spare and not (suffixes and name.endswith(suffixes))
    ]
    wrong = [
        f"{name} is {list(held[name])}, not {list(shape)}"
        for name, shape in wanted.items()
        if name in held and tuple(held[name]) != tuple(shape)
    ]
    problems = [
        f"{kind}: {_some(names)}"
        for kind, names in (("missing", missing), ("unexpected", unexpected), ("wrong shape", wrong))
        if names
    ]
    if problems:
        raise InvalidArgument(f"{source.where} does not hold this model's parameters; {'; '.join(problems)}")


def check_finite(weight: QuantizedWeight, name: str) -> None:
    """InvalidArgument, told with the name: something in it does not stand for a number. Backends take
    every weight for finite, and multiply with what is not in ways of their own."""
    parts: dict[str, torch.Tensor | None] = {
        "scales": weight.scale,
        "offsets": weight.offset,
        "global scales": torch.tensor(weight.global_scale, dtype=torch.float32),
    }
    unfit = [part for part, tensor in parts.items() if tensor is not None and not tensor.isfinite().all()]
    if weight.kind is Codes.FP8 and bool((weight.codes.view(torch.uint8) & _E4M3_NAN).eq(_E4M3_NAN).any()):
        unfit.append("codes")
    if unfit:
        raise InvalidArgument(f"{name} has {' and '.join(unfit)} that are no finite numbers")


def digest_of(parts: Mapping[str, Callable[[], tuple[str, memoryview]]]) -> str:
    """One digest of many named pieces; each gives its description and bytes. Pieces are hashed in parallel
    (hashlib lets go of the interpreter lock), so that a start never waits long for it."""

    def one(item: tuple[str, Callable[[], tuple[str, memoryview]]]) -> bytes:
        name, read = item
        described, content = read()
        piece = hashlib.blake2b(f"{name} {described}\n".encode(), digest_size=32)
        piece.update(content)
        return piece.digest()

    whole = hashlib.blake2b(digest_size=16)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for piece in pool.map(one, sorted(parts.items())):
            whole.update(piece)
    return whole.hexdigest()


def _some(names: list[str]) -> str:
    rest = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {rest} more" if rest > 0 else "")
