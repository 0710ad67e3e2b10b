"""What a compressed-tensors quantization_config says of each module.

Its fields: the package compressed-tensors, quantization/quant_args.py. What is not listed here is refused by
its name: weights read in a wrong way still give text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from baton.core.errors import InvalidArgument
from baton.engine.weights.spread import Block
from baton.kernels.quantize import Activations

_FORMATS = (
    "dense",
    "pack-quantized",
    "int-quantized",
    "float-quantized",
    "naive-quantized",
    "nvfp4-pack-quantized",
    "mxfp4-pack-quantized",
    "mixed-precision",
)
_WEIGHTS = {("int", 4), ("int", 8), ("float", 8), ("float", 4)}
_STRATEGIES = ("tensor", "channel", "group", "tensor_group", "block")
# Linear is what all matrices are, whatever their class is called here.
_CLASSES = ("Linear",)


@dataclass(frozen=True, slots=True)
class ModuleScheme:
    """How a module's weight is stored. group: inputs that share a scale, None: all. block: what does, if it
    also has several rows."""

    kind: str
    bits: int
    group: int | None
    block: Block | None
    activations: Activations | None


class Schemes:
    """options: the quantization_config. InvalidArgument: something in it is not known."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        sparsity = (options.get("sparsity_config") or {}).get("format", "dense")
        if sparsity != "dense":
            raise InvalidArgument(f"sparsity_config: format {sparsity!r} is not known")
        if options.get("transform_config"):
            raise InvalidArgument("transform_config is not known")
        groups = options.get("config_groups") or {}
        self._ignored: Sequence[str] = options.get("ignore") or ()
        self._targets: list[tuple[str, ModuleScheme]] = []
        for name, group in groups.items():
            if not isinstance(group, Mapping):
                raise InvalidArgument(f"config_groups.{name}: a preset by name is not known")
            if group.get("weights") is None:
                continue  # activations alone: nothing is stored
            _check_format(group.get("format") or options.get("format", "dense"))
            scheme = _scheme(group)
            self._targets += [(target, scheme) for target in group["targets"]]

    def of(self, module: str) -> ModuleScheme:
        """The first whose targets name the module; after these, one whose targets name its class.
        InvalidArgument: none does."""
        if not any(_names(pattern, module) for pattern in self._ignored):
            for target, scheme in self._targets:
                if _names(target, module):
                    return scheme
            for target, scheme in self._targets:
                if target in _CLASSES:
                    return scheme
        raise InvalidArgument("is quantised, though no config group is for it")


def _check_format(form: str) -> None:
    if form not in _FORMATS:
        raise InvalidArgument(f"format {form!r} is not known; {', '.join(_FORMATS)} are")


def _scheme(group: Mapping[str, Any]) -> ModuleScheme:
    weights = group["weights"]
    kind, bits = str(weights.get("type", "int")).lower(), int(weights.get("num_bits", 8))
    strategy = str(weights.get("strategy") or _implied(weights)).lower()
    if (kind, bits) not in _WEIGHTS:
        raise InvalidArgument(f"weights of type {kind} with {bits} bits are not known")
    if strategy not in _STRATEGIES:
        raise InvalidArgument(f"weights with strategy {strategy!r} are not known")
    if weights.get("dynamic"):
        raise InvalidArgument("weights cannot be dynamic")
    return ModuleScheme(
        kind=kind,
        bits=bits,
        group=int(weights["group_size"]) if strategy in ("group", "tensor_group") else None,
        block=_block(weights.get("block_structure")) if strategy == "block" else None,
        activations=_activations(group.get("input_activations")),
    )


def _implied(weights: Mapping[str, Any]) -> str:
    size = weights.get("group_size")
    return "tensor" if size is None else "group" if size > 0 else "channel"


def _block(structure: Any) -> Block:
    rows, inputs = structure.split("x") if isinstance(structure, str) else structure
    return int(rows), int(inputs)


def _activations(args: Mapping[str, Any] | None) -> Activations | None:
    """Ranges measured beforehand are not used: those of a token are always at hand, and never too narrow.
    Activations of four bits are left whole."""
    if not args or int(args.get("num_bits", 8)) != 8:
        return None
    return "fp8" if args.get("type") == "float" else "int8"


def _names(pattern: str, module: str) -> bool:
    if pattern.startswith("re:"):
        return re.match(pattern.removeprefix("re:"), module) is not None
    return pattern == module
