"""What happens on a node, as metrics."""

from __future__ import annotations

from baton.core.load import LoadReport
from baton.core.node_effects import Ended, Started
from baton.kv_transfer.api import Completion, Outcome
from baton.runtime.metrics import NodeMetrics


class NodeObserver:
    def __init__(self, metrics: NodeMetrics) -> None:
        self._metrics = metrics

    def load(self, load: LoadReport) -> None:
        self._metrics.load(load)
        for tokens, _, seconds in load.prefill_samples:
            self._metrics.step("prefill", seconds, tokens)
        for rows, _, seconds in load.decode_samples:
            self._metrics.step("decode", seconds, rows)

    def started(self, effect: Started, prompt_tokens: int, *, fetches: bool) -> None:
        """Once per request and node: a preempted one starts only once. fetches: another node was asked."""
        self._metrics.prefix_lookup(prompt_tokens, effect.cached_tokens)
        if fetches:
            self._metrics.fetched(effect.fetched_tokens)

    def lent(self, tokens: int) -> None:
        self._metrics.lent(tokens)

    def ended(self, effect: Ended) -> None:
        if effect.preemptions:
            self._metrics.preempted(effect.preemptions)

    def wrote(self, transport: str, completion: Completion) -> None:
        if completion.outcome is Outcome.APPLIED:
            self._metrics.transferred(transport, completion.payload_bytes, completion.seconds)
        elif completion.outcome is Outcome.FAILED:
            self._metrics.transfer_failed(transport)
