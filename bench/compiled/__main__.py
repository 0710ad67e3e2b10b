"""`python -m baton.bench.compiled FOLDER`: see `make compiled`. Takes about two minutes."""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

from baton.bench.compiled.build import SMALL_RUN, compile_copy, copy, modules, python


def main() -> int:
    """0; raises, and leaves no copy, unless a simulation by it has the results of one by the package."""
    parser = argparse.ArgumentParser(prog="python -m baton.bench.compiled", description=__doc__)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder.absolute()
    shutil.rmtree(folder, ignore_errors=True)
    names = modules()
    try:
        copy(names, folder)
        compile_copy(names, folder)
        assert python(SMALL_RUN, folder) == python(SMALL_RUN), "the copy's simulations have other results"
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)  # nobody shall run half of it, or one that lies
        raise
    print(f"{len(names)} modules compiled; with PYTHONPATH={folder} every command uses them")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
