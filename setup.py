"""Everything is in pyproject.toml; this only lets the C++ sources compile side by side."""

from pybind11.setup_helpers import ParallelCompile
from setuptools import setup

ParallelCompile(default=0).install()  # 0: as many at a time as there are cores
setup()
