"""`python -m baton.bench [NAME ...] [--json]`: run the measurements and show each beside its limit."""

from __future__ import annotations

import argparse
import importlib
import json
import pkgutil
from collections.abc import Collection
from dataclasses import asdict
from types import ModuleType

from rich.console import Console

import baton.bench
from baton.bench.report import Figure, table


def main() -> int:
    """0 if every figure reaches its target, else 1."""
    found = _measurements()
    parser = argparse.ArgumentParser(prog="python -m baton.bench", description=__doc__)
    parser.add_argument(
        "names",
        nargs="*",
        metavar="NAME",
        help=f"of {', '.join(found)}; kernels: all of those; everything unless given",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON array, not a table")
    options = parser.parse_args()
    if unknown := [name for name in options.names if not _meant(name, found)]:
        parser.error(f"no such measurement: {', '.join(unknown)}")
    wanted = [name for given in options.names or found for name in _meant(given, found)]
    figures: list[Figure] = []
    for name in wanted:
        figures += found[name].run()
    if options.json:
        print(json.dumps([asdict(figure) | {"ratio": figure.ratio, "met": figure.met} for figure in figures]))
    else:
        Console().print(table(figures))
    return 0 if all(figure.met for figure in figures) else 1


def _meant(name: str, found: Collection[str]) -> list[str]:
    """The measurement of this name, or all of a family: kernels is kernels_linear and so on."""
    family = [each for each in found if each.startswith(f"{name}_")]
    return [name] if name in found else family


def _measurements() -> dict[str, ModuleType]:
    """Modules of this package that have a `run`."""
    modules = {
        info.name: importlib.import_module(f"baton.bench.{info.name}")
        for info in pkgutil.iter_modules(baton.bench.__path__)
        if not info.name.startswith("_")
    }
    return {name: module for name, module in modules.items() if hasattr(module, "run")}


if __name__ == "__main__":
    raise SystemExit(main())
