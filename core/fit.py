"""Online fits of a node's latencies: recursive least squares with forgetting, kept non-negative.

The fit is held in information form (A = sum of w x x', b = sum of w x y, both faded by a forgetting factor),
started from a prior. Where the data say nothing (all prompts of one length, say) the last parameters stay.
With three parameters at most, the non-negative optimum is found exactly: the best of the unconstrained fits
over all subsets of parameters. Samples weigh 1 / y**2, for latency noise is relative; outliers are damped
(Huber); a surprising sample makes the fit forget faster, so that a node that changed its pace, or differs
much from the prior, is known after a few samples.

What was measured is believed for about as long as it has held, and then no longer (`Trust`): where nothing
new comes in, `lean` takes the node more and more for one of its peers, if those are faster. A node that was
slow for a while is so tried again; if it still is, its own parameters, which are kept, count again at once.
"""

from __future__ import annotations

import math
from itertools import combinations
from operator import mul

from baton.core.cost import Estimate
from baton.core.residuals import Residuals, spread
from baton.core.trust import Trust

HUBER = 3.0  # residuals beyond that many sigmas lose weight
SURPRISE = 0.4  # a relative residual beyond that
FORGETTING_WHEN_SURPRISED = 0.8
MAX_S, MAX_SIZE = 1e4, 1e15  # beyond, a sample is nonsense
PRIOR_SIGMA = 0.5  # relative residual to be expected of the prior
PRIOR_FACTOR = 300.0  # the prior is taken to be right within about this factor
LEARNING = 8  # the first predictions tell of the prior, not of the node
SETTLED, SOLVE_EVERY = 64, 8  # after so many samples, so many more move the parameters little; before, fewer
CLING = 1e-7  # weight of the last parameters against the data's, where the data leave a choice
FLOOR_S = 1e-5  # shorter latencies weigh no more than this one
DOUBTED = 0.5  # from that doubt on, one surprise ends what was believed,
ON_END = 3  # else so many on end that point the same way

Vector = tuple[float, ...]


class Fit:
    """y = theta . x with theta >= 0. scale: a typical size of each x, for conditioning. of_many: samples come
    from several nodes, so that those far off tell of a node, not of a change of pace or of chance."""

    def __init__(
        self, prior: Vector, scale: Vector, forgetting: float = 0.99, *, of_many: bool = False
    ) -> None:
        self.samples = 0
        self._scale = scale
        self._forgetting = forgetting
        self._of_many = of_many
        self._unsolved = 0  # samples since the parameters were found
        self._ratios = Residuals()
        self._factors: dict[float, float] = {}  # by share, since the last sample
        self._usual: Fit | None = None
        self._trust = Trust()
        self._surprises: list[tuple[Vector, float, float]] = []  # the last samples, as (x, y, residual)
        self._shape = prior
        self._last: Vector = ()  # x of the last sample
        self._doubt = 0.0
        self._peers: Fit | None = None  # whom it was last held against
        self._leaning: Vector | None = None  # parameters between its own and theirs
        self.excess = 1.0  # by what factor its own predictions exceed those
        self.risk = 0.0  # the chance that they are right after all, for whom that would make late: see `lean`
        self.sigma = PRIOR_SIGMA  # relative standard deviation of recent residuals
        self._begin(prior)

    def _begin(self, prior: Vector) -> None:
        self._theta = prior
        self._variance = self.sigma**2
        scaled = [max(p * s, FLOOR_S) for p, s in zip(prior, self._scale, strict=True)]
        size = range(len(prior))
        self._a = [[(PRIOR_FACTOR * scaled[i]) ** -2 if i == j else 0.0 for j in size] for i in size]
        self._b = [self._a[i][i] * scaled[i] for i in size]

    def start_from(self, usual: Fit) -> None:
        """As long as it has no sample of its own, it says what `usual` does. Later: nothing changes."""
        if not self.samples and usual.samples:
            self._usual = usual
            self.sigma = usual.sigma
            self._factors.clear()
            self._begin(usual.theta)

    def lean(self, peers: Fit, now: float) -> None:
        """Nothing is under way that would tell: trust in old measurements fades. Only one that looks slower
        than its peers is taken for one of them: nothing else keeps away the work that would tell better."""
        self.hold()
        doubt = self._trust.doubt(now)
        if not (self.samples and peers.samples) or doubt <= 0.0:
            return
        self._doubt, self._peers = doubt, peers
        mine_s, theirs_s = self.mean(self._last), peers.mean(self._last)
        if theirs_s < mine_s:
            part = min(1.0, doubt)
            own = self.theta
            self._leaning = tuple([o + part * (p - o) for o, p in zip(own, peers.theta, strict=True)])
            self.excess = mine_s / max(mine_s + part * (theirs_s - mine_s), FLOOR_S)
            self.risk = min(1.0, max(0.0, 2.0 - doubt))
            self._factors.clear()

    def hold(self) -> None:
        """Go by its own parameters: it is being tried, and what comes of that will tell."""
        if self._leaning is not None:
            self._leaning, self.excess, self.risk = None, 1.0, 0.0
            self._factors.clear()

    @property
    def theta(self) -> Vector:
        if self._leaning is not None:
            return self._leaning
        if self._unsolved and self._unsolved >= min(SOLVE_EVERY, self.samples * SOLVE_EVERY // SETTLED):
            self._solve()
        return self._theta

    def predict(self, x: Vector) -> Estimate:
        mean = self.mean(x)
        return Estimate(mean, mean * self.sigma)

    def mean(self, x: Vector) -> float:
        total: float = sum(map(mul, self.theta, x))
        return total

    def factor(self, share: float) -> float:
        """What to multiply a mean with, so that `share` of the measurements stay below: by what was measured,
        or by sigma as long as that is little."""
        if self._usual is not None and not self.samples:
            return self._usual.factor(share)
        factor = self._factors.get(share)
        if factor is None:
            measured = self._ratios.quantile(share)
            factor = measured if measured is not None else max(0.0, 1.0 + spread(share) * self.sigma)
            if self._leaning is not None and self._peers is not None:
                factor += min(1.0, self._doubt) * min(0.0, self._peers.factor(share) - factor)
            self._factors[share] = factor
        return factor

    def observe(self, x: Vector, y: float, at_s: float = 0.0) -> None:
        """One measurement. Nonsense is ignored: it may come from a peer. at_s: when, for `lean`."""
        if not (0.0 < y < MAX_S and all(0.0 <= v < MAX_SIZE for v in x)):
            return
        self.hold()
        predicted = self.mean(x)
        residual = (y - predicted) / max(y, predicted, FLOOR_S)
        if abs(residual) >= SURPRISE and not self._of_many:
            predicted, residual = self._surprised(x, y, residual, at_s)
        else:
            self._surprises.clear()
        if not self.samples:
            self._trust.begin(at_s)
        self._trust.seen(at_s)
        self._doubt, self._last = 0.0, x
        damp = min(1.0, HUBER * self.sigma / abs(residual)) if residual and self.samples > LEARNING else 1.0
        self._add(x, y, damp, self._forgetting if abs(residual) < SURPRISE else FORGETTING_WHEN_SURPRISED)
        step = max(1.0 / (self.samples + 2), 1.0 - self._forgetting)
        self._variance += step * (residual * residual - self._variance)
        self.sigma = math.sqrt(self._variance)
        self._factors.clear()
        self.samples += 1
        if abs(residual) >= SURPRISE:
            self._unsolved = SOLVE_EVERY
        if self.samples > LEARNING and not (self._of_many and abs(residual) >= SURPRISE):
            self._ratios.add(y, predicted)

    def _surprised(self, x: Vector, y: float, residual: float, at_s: float) -> tuple[float, float]:
        """One may be an outlier. Several on end, or one where what was believed is in doubt, are another
        pace: the fit begins anew there. What it predicts then, and how far that is off."""
        self._trust.begin(at_s)
        if self._surprises and (self._surprises[-1][2] > 0.0) != (residual > 0.0):
            self._surprises.clear()
        if not self._surprises:
            self._shape = self.theta  # before they bent it
        self._surprises.append((x, y, residual))
        shape = self._shape
        if self._doubt >= DOUBTED and self._peers is not None:
            del self._surprises[:-1]
            shape, self.sigma = self._peers.theta, self._peers.sigma
        elif len(self._surprises) < ON_END:
            return self.mean(x), residual
        self._restart(shape)
        predicted = self.mean(x)
        return predicted, (y - predicted) / max(y, predicted, FLOOR_S)

    def _restart(self, shape: Vector) -> None:
        """From that shape of parameters, at the pace of the last samples, which count but for the latest."""
        ratios = sorted(y / max(sum(map(mul, shape, x)), FLOOR_S) for x, y, _ in self._surprises)
        self.samples = self._unsolved = 0
        self._ratios = Residuals()
        self._begin(tuple([each * ratios[len(ratios) // 2] for each in shape]))
        for x, y, _ in self._surprises[:-1]:
            self._add(x, y, 1.0, 1.0)
        self._surprises.clear()

    def _add(self, x: Vector, y: float, weight: float, fade: float) -> None:
        """weight: of the relative error."""
        weight /= max(y, FLOOR_S) ** 2
        u = [v / s for v, s in zip(x, self._scale, strict=True)]
        for i, ui in enumerate(u):
            self._b[i] = fade * self._b[i] + weight * ui * y
            row = self._a[i]
            for j, uj in enumerate(u):
                row[j] = fade * row[j] + weight * ui * uj
        self._unsolved += 1

    def _solve(self) -> None:
        self._unsolved = 0
        size = len(self._b)
        cling = CLING * sum(self._a[i][i] for i in range(size)) / size
        a = [[v + (cling if i == j else 0.0) for j, v in enumerate(row)] for i, row in enumerate(self._a)]
        b = [v + cling * t * s for v, t, s in zip(self._b, self._theta, self._scale, strict=True)]
        best_gain, best = 0.0, list(self._theta)
        for count in range(size, 0, -1):
            for kept in combinations(range(size), count):
                part = solve([[a[i][j] for j in kept] for i in kept], [b[i] for i in kept])
                if part is None or min(part) < 0.0:
                    continue
                gain = sum(b[i] * v for i, v in zip(kept, part, strict=True))
                if gain > best_gain:
                    best_gain, best = gain, [0.0] * size
                    for i, v in zip(kept, part, strict=True):
                        best[i] = v / self._scale[i]
            if count == size and best_gain > 0.0:
                break  # the unconstrained optimum is feasible: nothing beats it
        self._theta = tuple(best)


def solve(a: list[list[float]], b: list[float]) -> list[float] | None:
    """x of a x = b for a small symmetric positive definite `a` (Cholesky); None if it is not."""
    size = len(b)
    low: list[list[float]] = []  # its lower triangle, row by row
    y: list[float] = []
    for row, right in zip(a, b, strict=True):
        new: list[float] = []
        for before in low:
            new.append((row[len(new)] - sum(map(mul, new, before))) / before[-1])
        rest = row[len(new)] - sum(map(mul, new, new))
        if rest <= 0.0:
            return None
        root = math.sqrt(rest)
        y.append((right - sum(map(mul, new, y))) / root)
        new.append(root)
        low.append(new)
    x = [0.0] * size
    for i in reversed(range(size)):
        x[i] = (y[i] - sum([low[k][i] * x[k] for k in range(i + 1, size)])) / low[i][i]
    return x
