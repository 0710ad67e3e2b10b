"""What all tests share. Fakes and tiny models lie beside this file: `from tests.<module> import ...`."""

import os
import signal

from hypothesis import settings

# A slow machine is no failure, so no deadline per example. In CI the same examples on every run.
settings.register_profile("baton", deadline=None, derandomize=bool(os.environ.get("CI")))
settings.load_profile("baton")

# A runner in the background may hand down an ignored SIGINT, and then no child would notice Ctrl-C.
signal.signal(signal.SIGINT, signal.default_int_handler)
