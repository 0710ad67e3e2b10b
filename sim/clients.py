"""Who asks: makes requests of arrivals, takes their tokens in, comes again when told to, keeps the results.

Watches that every request ends once and that its tokens come in order, without gap or repeat.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from baton.core.errors import Code
from baton.core.request import Request
from baton.router.events import Complete, Deliver, Outcome, Reject
from baton.sim.results import RequestResult
from baton.sim.sampling import END, VOCAB_SIZE, run, sampling_for
from baton.sim.workload.arrival import Arrival, prompt_ids

MIN_RETRY_S = 0.05
START_S = 0.05
"""Nodes join that long before a workload begins."""


@dataclass(frozen=True, slots=True)
class ClientSpec:
    """most_tokens: the limit that clients send, where the answer is no longer; None: they know how long it
    will be. timeout_s: their deadline. resends: how often they come again after being turned away, as late as
    they are told to."""

    most_tokens: int | None = 4096
    timeout_s: float | None = None
    resends: int = 0


@dataclass(slots=True, eq=False)
class Open:
    """A request that has not ended. number: the arrival's; sent: how often it has been sent."""

    arrival: Arrival
    number: int
    sent: int = 0
    got: int = 0


class Clients:
    """again: takes one that was turned away, to be sent once more after so many seconds."""

    def __init__(
        self,
        spec: ClientSpec,
        client_s: float,
        again: Callable[[float, Open], None],
    ) -> None:
        self.spec = spec
        self.open: dict[str, Open] = {}
        self.results: list[RequestResult] = []
        self.waiting = 0  # turned away, and coming again
        self._client_s = client_s
        self._again = again

    def request(self, one: Open) -> Request:
        """A new request of this client; it is open from now on."""
        arrival, number = one.arrival, one.number
        request_id = f"r{number}" if not one.sent else f"r{number}.{one.sent}"
        one.sent += 1
        one.got = 0
        assert request_id not in self.open
        self.open[request_id] = one
        limit = self.spec.most_tokens
        return Request(
            id=request_id,
            prompt_ids=prompt_ids(arrival, VOCAB_SIZE, number),
            sampling=sampling_for(arrival.output_tokens),
            max_tokens=arrival.output_tokens if limit is None else max(limit, arrival.output_tokens),
            eos_token_ids=(END,),
            slo=arrival.slo,
            priority=arrival.priority,
        )

    def deliver(self, effect: Deliver) -> None:
        one = self.open.get(effect.request_id)
        assert one is not None, f"tokens for {effect.request_id}, which has ended"
        assert effect.index == one.got, f"{effect.request_id}: token {effect.index} after {one.got} tokens"
        count = len(effect.token_ids)
        expected = run(one.got, count, one.arrival.output_tokens)
        assert effect.token_ids == expected, f"{effect.request_id}: wrong tokens at {one.got}"
        one.got += count

    def complete(self, effect: Complete) -> None:
        one = self._end(effect.request_id)
        outcome = effect.reason.value
        if outcome in ("stop", "length"):
            assert one.got == one.arrival.output_tokens, f"{effect.request_id} ended with {one.got} tokens"
        self._keep(one, outcome, effect.outcome)

    def reject(self, effect: Reject) -> None:
        one = self._end(effect.request_id)
        error = effect.error
        if error.code is Code.RESOURCE_EXHAUSTED and one.sent <= self.spec.resends and not one.got:
            self.waiting += 1
            self._again(max(MIN_RETRY_S, error.retry_after_s or 0.0), one)
            return
        self._keep(one, error.code.value, effect.outcome)

    def _end(self, request_id: str) -> Open:
        one = self.open.pop(request_id, None)
        assert one is not None, f"{request_id} ended twice, or never began"
        return one

    def _keep(self, one: Open, outcome: str, facts: Outcome) -> None:
        arrival, later_s = one.arrival, self._client_s
        first_s, last_s = facts.first_token_s, facts.last_token_s
        self.results.append(
            RequestResult(
                number=one.number,
                arrived_s=START_S + arrival.at_s,
                prompt_tokens=arrival.prompt_tokens,
                outcome=outcome,
                output_tokens=one.got,
                first_token_s=None if first_s is None else first_s + later_s,
                last_token_s=None if last_s is None else last_s + later_s,
                ended_s=facts.ended_s + later_s,
                slo=arrival.slo,
                priority=arrival.priority,
                cached_tokens=facts.cached_tokens,
                prefill_node=facts.prefill_node,
                decode_node=facts.decode_node,
                retries=facts.retries,
                preemptions=facts.preemptions,
                resent=one.sent - 1,
            )
        )
