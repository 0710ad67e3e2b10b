"""What came of a fetch, as the prompt's start tells it. Pure."""

from __future__ import annotations

from baton.router.events import Effect, PrefillStarted, Record
from baton.router.live import Attempt, Live
from baton.router.state import State

PAUSE_S = 10.0


def note_fetch(
    state: State, live: Live, attempt: Attempt, event: PrefillStarted, now: float, out: list[Effect]
) -> None:
    """A lender that gave nothing, though it was needed, is not asked again by that node for a while."""
    node, fetch = state.node(attempt.prefill_id), attempt.fetch
    if node is None or fetch is None:
        return
    lender = state.node(fetch.node_id)
    if lender is not None and not event.fetched_tokens and event.cached_tokens < fetch.tokens:
        node.no_loans = {name: until_s for name, until_s in node.no_loans.items() if until_s > now}
        node.no_loans[lender.info.incarnation] = now + PAUSE_S
    prediction = attempt.prediction
    data: dict[str, object] = {
        "request": live.id,
        "attempt": attempt.number,
        "prefill": node.id,
        "lender": fetch.node_id,
        "asked_tokens": fetch.tokens,
        "fetched_tokens": event.fetched_tokens,
        "predicted_s": prediction.queue_s + prediction.fetch_s,
        "begun_after_s": event.queued_s,
    }
    out.append(Record("fetch", data))
