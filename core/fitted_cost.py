"""One node's latencies, fitted online from what it reports (see core.cost for the shapes)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

from baton.core.cost import Estimate
from baton.core.fit import SETTLED, Fit, Vector
from baton.core.load import LoadReport

CHUNK_TOKENS = 256.0  # of a usual step
ANY_TOKENS = 1 << 40  # in a step that has no limit
MOST_SAMPLES = 4  # of a report and kind, once the fit has settled: more tell little
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class CostPrior:
    """Parameters to start from, in seconds per unit (see core.cost for the shapes)."""

    prefill: Vector = (2e-3, 1e-4, 1e-8)  # per step, per new token, per (new token x token before it)
    decode: Vector = (5e-3, 1e-4, 1e-7)  # per step, per row, per context token
    transfer: Vector = (1e-3, 1e-9)  # per transfer, per byte


class FittedCost:
    """core.cost.CostModel, fitted from what a node reports, or several (of_many).

    step_tokens: the most of a prompt that one step computes. Where all steps are that long, nothing tells
    which part of them is fixed; a prompt of several is then still predicted right."""

    def __init__(
        self, prior: CostPrior | None = None, *, of_many: bool = False, step_tokens: int = ANY_TOKENS
    ) -> None:
        prior = prior or CostPrior()
        self.step_tokens = step_tokens
        self._prefill = Fit(prior.prefill, (1.0, 256.0, 65536.0), of_many=of_many)
        self._decode = Fit(prior.decode, (1.0, 8.0, 4096.0), of_many=of_many)
        self._transfer = Fit(prior.transfer, (1.0, 2.0**20), of_many=of_many)

    def prefill_s(self, new_tokens: int, cached_tokens: int) -> Estimate:
        pairs = new_tokens * (cached_tokens + new_tokens / 2)
        return self._prefill.predict((self._steps(new_tokens), new_tokens, pairs))

    def decode_step_s(self, rows: int, context_tokens: int) -> Estimate:
        return self._decode.predict((1.0, rows, context_tokens))

    def transfer_s(self, payload_bytes: int) -> Estimate:
        return self._transfer.predict((1.0, payload_bytes))

    def prefill_at(self, share: float, new_tokens: int, cached_tokens: int) -> float:
        """Seconds that `share` of such prefills need at most; so for the others below."""
        each, per_token, per_pair = self._prefill.theta
        pairs = new_tokens * (cached_tokens + new_tokens / 2)
        steps_s = each * self._steps(new_tokens)
        return (steps_s + per_token * new_tokens + per_pair * pairs) * self._prefill.factor(share)

    def decode_factor(self, share: float) -> float:
        return self._decode.factor(share)

    def transfer_line(self, share: float) -> tuple[float, float]:
        """A transfer as (seconds, seconds per byte): for whoever asks about many sizes."""
        fixed, per_byte = self._transfer.theta
        factor = self._transfer.factor(share)
        return fixed * factor, per_byte * factor

    def decode_mean_s(self, rows: int, context_tokens: int) -> float:
        each, per_row, per_token = self._decode.theta
        return each + per_row * rows + per_token * context_tokens

    def queue_s(self, tokens: int, work: int) -> float:
        """Seconds of prompts that wait: `tokens` of them, in steps of a usual size, with `work` pairs of
        tokens that attend to each other."""
        return self._prefill.mean((tokens / self.usual_tokens, tokens, work)) if tokens else 0.0

    def prefill_token_s(self) -> float:
        """Seconds per queued prompt token, the step's fixed part spread over a usual chunk."""
        each, per_token, per_pair = self._prefill.theta
        usual = self.usual_tokens
        return (each + per_token * usual + per_pair * (usual**2 / 2)) / usual

    @property
    def usual_tokens(self) -> float:
        """Prompt tokens of a usual step."""
        return min(CHUNK_TOKENS, self.step_tokens)

    def observe_prefill(self, new_tokens: int, cached_tokens: int, seconds: float, at_s: float = 0.0) -> None:
        self._prefill.observe((1.0, new_tokens, new_tokens * (cached_tokens + new_tokens / 2)), seconds, at_s)

    def observe_decode_step(self, rows: int, context_tokens: int, seconds: float, at_s: float = 0.0) -> None:
        self._decode.observe((1.0, rows, context_tokens), seconds, at_s)

    def observe_transfer(self, payload_bytes: int, seconds: float, at_s: float = 0.0) -> None:
        self._transfer.observe((1.0, payload_bytes), seconds, at_s)

    def observe(self, load: LoadReport, at_s: float = 0.0) -> None:
        """The samples of one report. at_s: when they were taken, by the clock that `lean` goes by."""
        for new_tokens, cached_tokens, seconds in _some(load.prefill_samples, self._prefill):
            self.observe_prefill(new_tokens, cached_tokens, seconds, at_s)
        for rows, context_tokens, seconds in _some(load.decode_samples, self._decode):
            self.observe_decode_step(rows, context_tokens, seconds, at_s)
        for payload_bytes, seconds in _some(load.transfer_samples, self._transfer):
            self.observe_transfer(payload_bytes, seconds, at_s)

    def lean(self, peers: FittedCost, now: float, idle: tuple[bool, bool, bool]) -> None:
        """Trust in what was measured fades where nothing is under way to tell: idle, by prefill, decode and
        transfer."""
        for mine, theirs, nothing in zip(self._fits, peers._fits, idle, strict=True):
            if nothing:
                mine.lean(theirs, now)
            else:
                mine.hold()

    def try_prefill(self) -> None:
        """A prompt is on its way there: until it tells, what was measured last counts."""
        self._prefill.hold()

    def try_decode(self) -> None:
        self._decode.hold()

    def try_transfer(self) -> None:
        self._transfer.hold()

    @property
    def prefill_risk(self) -> float:
        """The chance that prefill takes `prefill_excess` times as long as predicted, for whoever would be
        late then: it is doubted that the node is as slow as it was, and others had better try. Usually 0."""
        return self._prefill.risk

    @property
    def prefill_excess(self) -> float:
        return self._prefill.excess

    @property
    def decode_risk(self) -> float:
        """As `prefill_risk`."""
        return self._decode.risk

    @property
    def decode_excess(self) -> float:
        return self._decode.excess

    def as_prior(self) -> CostPrior:
        """What was learned, for a node of the same kind that has not reported yet."""
        return CostPrior(self._prefill.theta, self._decode.theta, self._transfer.theta)

    def start_from(self, usual: FittedCost) -> None:
        """Where nothing has been measured yet: predict as `usual` does."""
        for mine, other in zip(self._fits, usual._fits, strict=True):
            mine.start_from(other)

    @property
    def samples(self) -> tuple[int, ...]:
        """Measurements of each kind so far."""
        return tuple(fit.samples for fit in self._fits)

    def _steps(self, tokens: int) -> int:
        return -(-tokens // self.step_tokens) or 1

    @property
    def _fits(self) -> tuple[Fit, ...]:
        return self._prefill, self._decode, self._transfer


def _some(samples: tuple[T, ...], fit: Fit) -> tuple[T, ...]:
    return samples[-MOST_SAMPLES:] if fit.samples >= SETTLED else samples
