"""Joining the results of attention over two disjoint sets of keys.

    merge_states(out_a, lse_a, out_b, lse_b) -> (out, lse)

    out: [tokens, heads, head_dim]; lse: [tokens, heads], the natural log of the sum of the exponentials of
        the scores, as `attention_lse` returns it. lse has out's dtype, or fp32 where that is fp16 or bf16.

It is associative and commutative, up to rounding; (0, -inf), no keys, is its neutral element. Some kernels
say "no keys" with +inf, which is taken for -inf. What an empty side's out holds is not looked at, and a NaN
in one pair of token and head reaches no other (arXiv:2501.01005, section 2.2).
"""

from __future__ import annotations

from baton.kernels.merge_states.reference import merge_states

__all__ = ["merge_states"]
