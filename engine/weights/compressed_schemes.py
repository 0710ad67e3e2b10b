"""What a compressed-tensors quantization_config says of each module.

Its fields: the package compressed-tensors, quantization/quant_args.py. What is not listed here is refused by
its name: weights read in a wrong way still give text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from baton.core.errors import InvalidArgument
from baton.engine.weights.spread import Block, block_of, whole
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
        self._ignored = [target.names for target in _targets(options.get("ignore") or [], "ignore")]
        self._targets: list[tuple[_Target, ModuleScheme]] = []
        for name, group in (options.get("config_groups") or {}).items():
            if not isinstance(group, Mapping):
                raise InvalidArgument(f"config_groups.{name}: a preset by name is not known")
            if group.get("weights") is None:
                continue  # activations alone: nothing is stored
            _check_format(group.get("format") or options.get("format", "dense"))
            try:
                scheme = _scheme(group)
                self._targets += [(target, scheme) for target in _targets(group.get("targets"), "targets")]
            except InvalidArgument as error:
                raise InvalidArgument(f"config_groups.{name}: {error}") from error

    def of(self, module: str) -> ModuleScheme:
        """The first whose targets name the module; after these, one whose targets name its class.
        InvalidArgument: none does."""
        if not any(names(module) for names in self._ignored):
            for target, scheme in self._targets:
                if target.names(module):
                    return scheme
            for target, scheme in self._targets:
                if target.text in _CLASSES:
                    return scheme
        raise InvalidArgument("is quantised, though no config group is for it")


class _Target(NamedTuple):
    """text: a module, a class, or "re:" and a pattern. names: whether it names this module."""

    text: str
    names: Callable[[str], object]


def _targets(texts: Any, key: str) -> list[_Target]:
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise InvalidArgument(f"{key} must be a list of names, got {texts!r}")
    return [_Target(text, _matcher(text, key)) for text in texts]


def _matcher(text: str, key: str) -> Callable[[str], object]:
    if not text.startswith("re:"):
        return text.__eq__
    try:
        return re.compile(text.removeprefix("re:")).match
    except re.error as error:
        raise InvalidArgument(f"{key}: {text!r} is no pattern: {error}") from error


def _check_format(form: str) -> None:
    if form not in _FORMATS:
        raise InvalidArgument(f"format {form!r} is not known; {', '.join(_FORMATS)} are")


def _scheme(group: Mapping[str, Any]) -> ModuleScheme:
    weights = group["weights"]
    if not isinstance(weights, Mapping):
        raise InvalidArgument(f"weights must be an object, got {weights!r}")
    kind, bits = str(weights.get("type", "int")).lower(), whole(weights.get("num_bits", 8), "num_bits")
    strategy = str(weights.get("strategy") or _implied(weights)).lower()
    if (kind, bits) not in _WEIGHTS:
        raise InvalidArgument(f"weights of type {kind} with {bits} bits are not known")
    if strategy not in _STRATEGIES:
        raise InvalidArgument(f"weights with strategy {strategy!r} are not known")
    if weights.get("dynamic"):
        raise InvalidArgument("weights cannot be dynamic")
    grouped = strategy in ("group", "tensor_group")
    return ModuleScheme(
        kind=kind,
        bits=bits,
        group=whole(weights.get("group_size"), "group_size") if grouped else None,
        block=block_of(weights.get("block_structure"), "block_structure") if strategy == "block" else None,
        activations=_activations(group.get("input_activations")),
    )


def _implied(weights: Mapping[str, Any]) -> str:
    size = weights.get("group_size")
    return "tensor" if size is None else "channel" if size == -1 else "group"


def _activations(args: Mapping[str, Any] | None) -> Activations | None:
    """Ranges measured beforehand are not used: those of a token are always at hand, and never too narrow.
    Activations of four bits are left whole."""
    if not args or args.get("num_bits", 8) != 8:
        return None
    return "fp8" if args.get("type") == "float" else "int8"
