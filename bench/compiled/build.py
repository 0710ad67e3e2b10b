"""A copy of the package in which what a simulation runs is compiled by mypyc."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from contextlib import chdir
from pathlib import Path

from mypyc.build import mypycify
from setuptools import Distribution
from setuptools.command.build_ext import build_ext

import baton
from baton.bench.compiled.source import rewritten

PACKAGE = Path(baton.__path__[0])

APART = {
    "baton.core.errors": "mypyc would make the classes' `code` an attribute of each instance",
    "baton.core.quick_enum": "nothing in it runs",
    "baton.core.value": "the copy does not use it",
    "baton.sim.failure": "no subclass of AssertionError can be compiled",
}
"""Modules that stay as they are, and why."""

HIDDEN = "-fvisibility=hidden"  # so that our functions call each other without a detour

LOADED = """
import sys
import baton.bench.compiled.again, baton.sim.scale
print(*(name for name in sys.modules if name.startswith("baton.")))
"""

SMALL_RUN = """
from baton.bench.scale import digest
from baton.sim import scale
print(digest(scale.world(40).run(scale.arrivals(40, 2000, 0))))
"""


def modules() -> list[str]:
    """All that a simulation loads, and that is not in APART; packages themselves are empty."""
    names = python(LOADED).split()
    return sorted(name for name in names if name not in APART and file_of(name, PACKAGE).is_file())


def file_of(name: str, package: Path) -> Path:
    return package.joinpath(*name.split(".")[1:]).with_suffix(".py")


def copy(names: Sequence[str], folder: Path) -> None:
    """The package into `folder`, the source of these modules rewritten."""
    package = folder / PACKAGE.name
    shutil.copytree(PACKAGE, package, ignore=shutil.ignore_patterns("__pycache__"))
    for name in names:
        file = file_of(name, package)
        file.write_text(rewritten(file.read_text()))


def compile_copy(names: Sequence[str], folder: Path) -> None:
    """Compile these modules of the copy, beside their sources. SystemExit: mypyc refused, having said why."""
    options = ["--config-file=", "--cache-dir=/dev/null", "--namespace-packages", "--explicit-package-bases"]
    with chdir(folder):
        files = [str(file_of(name, Path(PACKAGE.name))) for name in names]
        extensions = mypycify([*options, *files], debug_level="0", multi_file=True, group_name="baton")
        for extension in extensions:
            extension.extra_compile_args.append(HIDDEN)
        command = build_ext(Distribution({"ext_modules": extensions, "package_dir": {"": "."}}))
        command.inplace = True
        command.ensure_finalized()
        command.run()
        shutil.rmtree("build")


def python(code: str, folder: Path | None = None) -> str:
    """What the code prints, run with the copy in `folder` or with the package as it is."""
    there = {} if folder is None else {"PYTHONPATH": str(folder)}
    done = subprocess.run(
        [sys.executable, "-P", "-c", code],
        env={**os.environ, **there},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return done.stdout
