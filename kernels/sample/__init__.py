"""From logits to tokens, and to log probabilities: the same bits on every backend.

    ids = sample(logits, choices)            # a list; NO_TOKEN: the row has no distribution
    seen = survey(logits, count)             # what log probabilities are made of

logits: [rows, vocab] fp32, vocab < VOCAB_LIMIT, contiguous in a row (whatever lies beyond `vocab` in a wider
table is cut off by the caller's slice and never read). choices: one `Choice` per row. A row's result depends
on that row and its choice alone.

**Weights.** Everything is decided on whole numbers, whose sums do not depend on the order or the number of
threads that add them up: a token's weight is 2**44 * 2**t, rounded to the nearest integer (ties to even),
with t = (logit - best) * (log2(e) / temperature), `best` the row's largest logit. So the best has weight
2**44, and a token less than 2**-45 as likely as the best has none. 2**t is computed in fp64 as `weights.py`
writes it down, product and sum rounded one by one (no fused multiply-add). If `best` is +inf (the model
overflowed), tokens of logit +inf have weight 2**44 and the others none.

**Order.** Most likely first means by logit, and among equal logits the lowest id first.

**Choice.** temperature 0 takes the first in that order. Otherwise top_k keeps the first so many (0: all).
top_p < 1 then keeps the fewest first ones whose weights sum to at least top_p * (sum of what is left), min_p
those with weight >= min_p * 2**44; each product is one fp64 multiplication, and the sum in it is rounded to
fp64 first. The token is the first *by id* of those left whose cumulative weight exceeds floor(noise * sum)
(computed likewise, and at most sum - 1).

A row that holds NaN, or nothing but -inf, has no distribution.
"""

from __future__ import annotations

from baton.kernels.sample import cpu, reference
from baton.kernels.sample.types import NO_TOKEN, VOCAB_LIMIT, Choice, Survey

__all__ = ["NO_TOKEN", "VOCAB_LIMIT", "Choice", "Survey", "cpu", "reference"]
