"""Rows of a dense table by id. (Of a packed or quantised weight, by `Linear.rows`.)

ids: [tokens] int64, each >= 0 and < vocab, which the caller has checked; table: [vocab, width] fp32, bf16 or
fp16, contiguous; returns [tokens, width] fp32, contiguous. Natively an id of no row is an IndexError, in a
recorded call a row of NaN.
"""

from baton.kernels.embedding import cpu, reference

__all__ = ["cpu", "reference"]
