"""What all tests share. Fakes and tiny models lie beside this file: `from tests.<module> import ...`."""

import os

from hypothesis import settings

# A slow machine is no failure, so no deadline per example. In CI the same examples on every run.
settings.register_profile("baton", deadline=None, derandomize=bool(os.environ.get("CI")))
settings.load_profile("baton")
