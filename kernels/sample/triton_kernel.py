"""The choice of a token, one program to a row, with the reference's bits.

Sums of whole numbers are the same in any order, and fp64 multiplies, adds and divides alike everywhere, as
long as nothing is fused (`Launch.fused` is off). Thresholds are found without a sort: digit by digit, of 4
bits, in the order of floats as integers. Where the threshold falls among equal logits, the lowest ids count.
"""

# What a kernel takes is types of the compiler's own, as many as its launch has.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
# ruff: noqa: PLR0913, PLR0915, SIM108

from __future__ import annotations

import triton
import triton.language as tl

_ONE = tl.constexpr(1 << 44)
_TO_WHOLE = tl.constexpr(6755399441055744.0)  # 1.5 * 2**52: a sum with it has no fraction, ties went to even
_DIGITS = tl.constexpr(16)


@triton.jit
def weights_of(logits, best, factor):
    """fp32 to int64; see `weights.weights`. best, factor: fp64."""
    t = (logits.to(tl.float64) - best) * factor
    t = tl.where(t > -64.0, t, -64.0)
    whole = (t + _TO_WHOLE) - _TO_WHOLE
    rest = t - whole
    power = rest * 4.4455382718708116e-10 + 7.054911620801123e-09
    power = power * rest + 1.01780860092397e-07
    power = power * rest + 1.321548679014431e-06
    power = power * rest + 1.5252733804059841e-05
    power = power * rest + 0.0001540353039338161
    power = power * rest + 0.0013333558146428443
    power = power * rest + 0.009618129107628477
    power = power * rest + 0.05550410866482158
    power = power * rest + 0.24022650695910072
    power = power * rest + 0.6931471805599453
    power = power * rest + 1.0
    scale = ((whole.to(tl.int64) + 1067) << 52).to(tl.float64, bitcast=True)  # 2**(whole + 44)
    found = ((power * scale + _TO_WHOLE) - _TO_WHOLE).to(tl.int64)
    infinite = tl.where(logits == float("inf"), _ONE, 0).to(tl.int64)
    return tl.where(best == float("inf"), infinite, found)


@triton.jit
def _ordered(logits):
    """Ascending like the logits, as int64 within 0 and 2**32. The two zeros are equal."""
    bits = tl.where(logits == 0.0, 0.0, logits).to(tl.int32, bitcast=True)
    return (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(tl.int64) + 2147483648


@triton.jit
def _load(logits_ptr, begin, vocab, TILE: tl.constexpr):
    id = begin + tl.arange(0, TILE)
    return id, tl.load(logits_ptr + id, mask=id < vocab, other=float("-inf"))


@triton.jit
def _threshold(logits_ptr, weights_ptr, vocab, need, COUNTED: tl.constexpr, TILE: tl.constexpr):
    """The greatest order that, with all above it, holds `need` tokens (or weight), and what is above it."""
    found = need * 0
    for digit in range(8):
        shift = 28 - 4 * digit
        edges = found + (tl.arange(0, _DIGITS).to(tl.int64) << shift)
        held = tl.zeros([_DIGITS], tl.int64)
        for begin in range(0, vocab, TILE):
            id, logits = _load(logits_ptr, begin, vocab, TILE)
            if COUNTED:
                amount = (id < vocab).to(tl.int64)
            else:
                amount = tl.load(weights_ptr + id, mask=id < vocab, other=0)
            over = _ordered(logits)[:, None] >= edges[None, :]
            held += tl.sum(tl.where(over, amount[:, None], 0), 0)
        enough = tl.sum((held >= need).to(tl.int64), 0)  # the first ones: held falls
        found += (enough - 1) << shift
    above = need * 0
    for begin in range(0, vocab, TILE):
        id, logits = _load(logits_ptr, begin, vocab, TILE)
        if COUNTED:
            amount = (id < vocab).to(tl.int64)
        else:
            amount = tl.load(weights_ptr + id, mask=id < vocab, other=0)
        above += tl.sum(tl.where(_ordered(logits) > found, amount, 0), 0)
    return found, above


@triton.jit
def _keep(logits_ptr, weights_ptr, vocab, order, missing, COUNTED: tl.constexpr, TILE: tl.constexpr):
    """Weights become 0, but of what is above `order`, and of its lowest ids up to `missing` tokens (or
    weight). Returns what is left."""
    seen = missing * 0
    left = missing * 0
    for begin in range(0, vocab, TILE):
        id, logits = _load(logits_ptr, begin, vocab, TILE)
        weights = tl.load(weights_ptr + id, mask=id < vocab, other=0)
        mine = _ordered(logits)
        tied = (mine == order) & (id < vocab)
        amount = tl.where(tied, 1, 0).to(tl.int64) if COUNTED else tl.where(tied, weights, 0)
        before = seen + tl.cumsum(amount, 0) - amount
        weights = tl.where((mine > order) | (tied & (before < missing)), weights, 0)
        tl.store(weights_ptr + id, weights, mask=id < vocab)
        seen += tl.sum(amount, 0)
        left += tl.sum(weights, 0)
    tl.debug_barrier()  # other threads read them next
    return left


@triton.jit
def sample_kernel(
    logits_ptr,
    factor_ptr,
    top_k_ptr,
    top_p_ptr,
    min_p_ptr,
    noise_ptr,
    weights_ptr,
    ids_ptr,
    best_ptr,
    mass_ptr,
    vocab,
    row_stride,
    SURVEY: tl.constexpr,
    TILE: tl.constexpr,
):
    """factor: log2(e) / temperature, -1 for temperature 0. SURVEY: only best and mass are found."""
    row = tl.program_id(0).to(tl.int64)
    logits_ptr += row * row_stride
    weights_ptr += row * vocab
    best = tl.full([], float("-inf"), tl.float32)
    first = vocab
    broken = vocab * 0
    for begin in range(0, vocab, TILE):
        id, logits = _load(logits_ptr, begin, vocab, TILE)
        nan = logits != logits
        broken += tl.sum(nan.to(tl.int32), 0)
        logits = tl.where(nan, float("-inf"), logits)
        most = tl.max(logits, 0)
        where = tl.min(tl.where((logits == most) & (id < vocab), id, vocab), 0)
        first = tl.where(most > best, where, first)
        best = tl.maximum(best, most)
    well = (broken == 0) & (best > float("-inf"))
    factor = tl.load(factor_ptr + row)
    exact = best.to(tl.float64)
    left = tl.zeros([], tl.int64)
    if well & (factor > 0.0):
        for begin in range(0, vocab, TILE):
            id, logits = _load(logits_ptr, begin, vocab, TILE)
            weights = weights_of(logits, exact, factor)
            left += tl.sum(tl.where(id < vocab, weights, 0), 0)
            if not SURVEY:
                tl.store(weights_ptr + id, weights, mask=id < vocab)
        tl.debug_barrier()
    if SURVEY:
        tl.store(best_ptr + row, tl.where(broken > 0, float("nan"), best))
        tl.store(mass_ptr + row, left)
    else:
        chosen = tl.where(well, first, -1)
        if well & (factor > 0.0):
            top_k = tl.load(top_k_ptr + row)
            if (top_k > 0) & (top_k < vocab):
                order, above = _threshold(logits_ptr, weights_ptr, vocab, top_k, True, TILE)
                left = _keep(logits_ptr, weights_ptr, vocab, order, top_k - above, True, TILE)
            top_p = tl.load(top_p_ptr + row)
            if top_p < 1.0:
                share = top_p * left.to(tl.float64)
                need = share.to(tl.int64)
                need += (need.to(tl.float64) < share).to(tl.int64)
                need = tl.minimum(tl.maximum(need, 1), left)
                order, above = _threshold(logits_ptr, weights_ptr, vocab, need, False, TILE)
                left = _keep(logits_ptr, weights_ptr, vocab, order, need - above, False, TILE)
            bound = tl.load(min_p_ptr + row) * _ONE
            least = bound.to(tl.int64)
            least += (least.to(tl.float64) < bound).to(tl.int64)
            left = left * 0
            for begin in range(0, vocab, TILE):
                id = begin + tl.arange(0, TILE)
                weights = tl.load(weights_ptr + id, mask=id < vocab, other=0)
                left += tl.sum(tl.where(weights >= least, weights, 0), 0)
            target = (tl.load(noise_ptr + row) * left.to(tl.float64)).to(tl.int64)
            target = tl.minimum(target, left - 1)
            running = left * 0
            chosen = vocab
            for begin in range(0, vocab, TILE):
                id = begin + tl.arange(0, TILE)
                weights = tl.load(weights_ptr + id, mask=id < vocab, other=0)
                weights = tl.where(weights >= least, weights, 0)
                sums = running + tl.cumsum(weights, 0)
                chosen = tl.minimum(chosen, tl.min(tl.where((sums > target) & (id < vocab), id, vocab), 0))
                running += tl.sum(weights, 0)
        tl.store(ids_ptr + row, chosen.to(tl.int64))
