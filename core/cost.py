"""Predicted seconds for the three legs of a request, fitted online.

Shapes of the models (Splitwise, DistServe): prefill of n new tokens after c cached ones in s steps costs
a*s + b*n + d*n*(c + n/2); a decode step over a batch costs a + b*rows + d*context; a transfer costs
a + bytes/rate. Parameters are fitted by recursive least squares with forgetting, kept non-negative, from a
prior that is replaced as measurements come in.
"""

from __future__ import annotations

from typing import Protocol

from baton.core.value import value


@value
class Estimate:
    """A prediction in seconds. sigma_s: standard deviation of the residuals seen so far."""

    mean_s: float
    sigma_s: float = 0.0

    def quantile_s(self, z: float) -> float:
        """mean + z sigmas, never below zero."""
        return max(0.0, self.mean_s + z * self.sigma_s)


class CostModel(Protocol):
    """One node's predicted latencies. Pure: observations come in as arguments."""

    def prefill_s(self, new_tokens: int, cached_tokens: int) -> Estimate: ...

    def decode_step_s(self, rows: int, context_tokens: int) -> Estimate: ...

    def transfer_s(self, payload_bytes: int) -> Estimate: ...

    def observe_prefill(self, new_tokens: int, cached_tokens: int, seconds: float) -> None: ...

    def observe_decode_step(self, rows: int, context_tokens: int, seconds: float) -> None: ...

    def observe_transfer(self, payload_bytes: int, seconds: float) -> None: ...
