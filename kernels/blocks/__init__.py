"""KV vectors of blocks from one dtype to another, as a transfer between unlike pools needs it.

    convert(to, source)      # KvVectors of one shape but different dtypes; `to` is overwritten

Both are views of any strides but a contiguous head_dim. Quantised vectors are read back (code times scale, in
fp32) and stored as `attention.kv_layer` says, so that what arrives has the bits that a step of the target's
own would have stored for these values; plain dtypes round to nearest, ties to even. A NaN stays in its
vector. Of equal dtypes a copy of the bits is all there is to do, which numpy and torch do at the memory's
speed.
"""

from __future__ import annotations

from baton.kernels.blocks import reference
from baton.kernels.blocks.types import KvVectors

__all__ = ["KvVectors", "reference"]
