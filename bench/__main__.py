"""`python -m baton.bench [NAME ...] [--json]`: run the measurements and show each beside its limit."""

from __future__ import annotations

import argparse
import importlib
import json
import pkgutil
from dataclasses import asdict
from types import ModuleType

from rich.console import Console
from rich.table import Table

import baton.bench
from baton.bench.report import Figure


def main() -> int:
    """0 if every figure reaches its target, else 1."""
    found = _measurements()
    parser = argparse.ArgumentParser(prog="python -m baton.bench", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(found)}; all unless given")
    parser.add_argument("--json", action="store_true", help="print one JSON array, not a table")
    options = parser.parse_args()
    if unknown := [name for name in options.names if name not in found]:
        parser.error(f"no such measurement: {', '.join(unknown)}")
    figures: list[Figure] = []
    for name in options.names or found:
        figures += found[name].run()
    if options.json:
        print(json.dumps([asdict(figure) | {"ratio": figure.ratio, "met": figure.met} for figure in figures]))
    else:
        Console().print(_table(figures))
    return 0 if all(figure.met for figure in figures) else 1


def _measurements() -> dict[str, ModuleType]:
    """Modules of this package that have a `run`."""
    modules = {
        info.name: importlib.import_module(f"baton.bench.{info.name}")
        for info in pkgutil.iter_modules(baton.bench.__path__)
        if not info.name.startswith("_")
    }
    return {name: module for name, module in modules.items() if hasattr(module, "run")}


def _table(figures: list[Figure]) -> Table:
    table = Table("figure", "measured", "limit", "ratio", "target", "", box=None)
    for figure in figures:
        table.add_row(
            figure.name,
            f"{figure.value:,.4g} {figure.unit}",
            f"{figure.limit:,.4g} ({figure.limit_name})",
            f"{figure.ratio:.3f}",
            f"{'>=' if figure.higher_is_better else '<='} {figure.target:g}",
            "[green]met[/]" if figure.met else "[red]missed[/]",
        )
    return table


if __name__ == "__main__":
    raise SystemExit(main())
