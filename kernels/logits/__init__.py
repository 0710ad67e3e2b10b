"""Penalties, biases and bans of a batch, as one sparse change to its logits.

What a request asks for touches the few ids of its own text and lists. The host turns all of it into entries,
at most one per (row, id), so that a device changes whole batches without looking at requests:

    apply(logits, edits)     # logits: [rows, vocab] fp32, changed in place at the entries

    x = logits[row, id];   x = x / repetition if x > 0 else x * repetition;   x = x + add

computed in fp64, clamped to +-LARGEST, and rounded to fp32. An infinite logit stays as it is, unless `add` is
-inf, which bans the id whatever its logit. NaN stays NaN unless banned.
"""

from __future__ import annotations

from baton.kernels.logits import reference
from baton.kernels.logits.types import LARGEST, LogitEdits

__all__ = ["LARGEST", "LogitEdits", "reference"]
