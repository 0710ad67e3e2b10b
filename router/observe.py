"""What the router tells of itself: metrics of calls and nodes, the decision log, the event log."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import structlog

from baton.core.errors import BatonError
from baton.core.request import FinishReason
from baton.router.choice import Choice
from baton.router.driver import Driver
from baton.router.event_log import EventLog
from baton.router.events import Record
from baton.router.stream import GenerateStream
from baton.router.timings import legs
from baton.runtime.metrics import RequestFigures, RouterMetrics

log = structlog.get_logger(__name__)


# Leg of the metric, and where a request's last Record holds what was predicted and what came of it.
PREDICTED = (("prefill", "predicted_s", "dispatch_to_token_s"), ("tpot", "predicted_tpot_s", "tpot_s"))


class Observer:
    """Reads, never decides. event_log: path of a JSONL file, "" for none."""

    def __init__(self, metrics: RouterMetrics, driver: Driver, event_log: str = "") -> None:
        self.tokens_written = metrics.tokens_delivered
        self._metrics = metrics
        self._driver = driver
        self._log: EventLog | None = None
        if event_log:
            self._log = EventLog(Path(event_log), driver.machine.config)
            driver.on_event = self._log.append
        driver.on_record = self._record

    def call_ended(self, stream: GenerateStream, received_s: float) -> None:
        """A call is over, whichever way: each of its choices counts once."""
        for choice in stream.choices:
            if choice.error is not None:
                self._metrics.request_rejected(choice.error.code.value)
            else:
                self._metrics.request_ended(_figures(choice, received_s))
        log.info(
            "call ended",
            request=stream.job.requests[0].id,
            client_id=stream.job.client_id,
            choices=[_ending(choice) for choice in stream.choices],
        )

    def show_cluster(self) -> None:
        """O(nodes)."""
        machine = self._driver.machine
        self._metrics.running.set(machine.in_flight)
        self._metrics.waiting.set(machine.queued)
        nodes = machine.nodes(self._driver.now())
        states = Counter((s.load.role.value, s.state) for s in nodes)
        self._metrics.set_nodes(dict(states))
        self._metrics.set_roles({s.info.node_id: s.load.role.value for s in nodes if s.state != "lost"})

    def close(self) -> None:
        if self._log is not None:
            self._driver.on_event = None
            self._log.close()
            self._log = None

    def _record(self, record: Record) -> None:
        data = record.data
        if record.kind == "end":
            for leg, was, is_ in PREDICTED:
                predicted, measured = data.get(was), data.get(is_)
                if isinstance(predicted, float) and isinstance(measured, float):
                    self._metrics.predicted(leg, predicted, measured)
        if record.kind == "node" and data["what"] in ("role", "role not taken"):
            self._role_change(data)
            return
        level = log.warning if record.kind in ("retry", "shed") else log.debug
        level(record.kind, **data)

    def _role_change(self, data: Mapping[str, object]) -> None:
        if data["what"] == "role" and data["old"] != data["role"]:
            self._metrics.role_changed(str(data["old"]), str(data["role"]))
        log.info("role change" if data["what"] == "role" else "role not taken", **data)


def _figures(choice: Choice, received_s: float) -> RequestFigures:
    reason = choice.reason or FinishReason.CANCELLED
    prompt_tokens = len(choice.request.prompt_ids)
    if choice.outcome is None:
        return RequestFigures(reason.value, prompt_tokens, choice.output_tokens, total_s=0.0)
    parts = legs(choice.outcome, received_s, choice.output_tokens)
    reached = choice.outcome.first_token_s is not None
    return RequestFigures(
        reason=reason.value,
        prompt_tokens=prompt_tokens,
        output_tokens=choice.output_tokens,
        total_s=parts.total_s,
        queue_s=parts.queue_s,
        prefill_s=parts.prefill_s if reached else None,
        transfer_s=parts.transfer_s if reached else None,
        decode_s=parts.decode_s if reached else None,
        ttft_s=parts.ttft_s,
        tpot_s=parts.tpot_s,
        retries=choice.outcome.retries,
    )


def _ending(choice: Choice) -> str:
    error: BatonError | None = choice.error
    if error is not None:
        return f"{error.code.value}: {error}"
    reason = choice.reason or FinishReason.CANCELLED
    return f"{reason.value} after {choice.output_tokens} tokens"
