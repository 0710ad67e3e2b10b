"""How a request ends, and how it goes on elsewhere: every end and every retry passes through here."""

from __future__ import annotations

from baton.core.errors import BatonError, Code, DeadlineExceeded, ResourceExhausted, error_for
from baton.core.request import FinishReason
from baton.router.events import CancelOn, Complete, Effect, Record, Reject
from baton.router.live import Live
from baton.router.policy import eligible
from baton.router.prefix_view import PromptChains
from baton.router.state import REQUEST_TIMERS, State

FINAL_CODES = frozenset(
    {
        Code.INVALID_ARGUMENT,
        Code.DEADLINE_EXCEEDED,
        Code.UNIMPLEMENTED,
        Code.UNAUTHENTICATED,
        Code.PERMISSION_DENIED,
    }
)


def complete(state: State, live: Live, reason: FinishReason, now: float, out: list[Effect]) -> None:
    if reason is not FinishReason.CANCELLED:
        state.learn_output(len(live.output))
    _leave(state, live)
    out.append(Complete(live.id, reason, live.outcome(now)))
    out.append(_end_record(live, reason.value, now))


def reject(state: State, live: Live, error: BatonError, now: float, out: list[Effect]) -> None:
    _leave(state, live)
    out.append(Reject(live.id, error, live.outcome(now)))
    out.append(_end_record(live, error.code.value, now))


def cancel_attempt(state: State, live: Live, out: list[Effect]) -> None:
    """Tell every node that may hold the current attempt. A node whose stream broke knows by itself."""
    attempt = live.attempt
    if attempt is None:
        return
    for node_id in attempt.nodes:
        if attempt.handed_off and node_id != attempt.decode_id:
            continue
        node = state.node(node_id)
        if node is not None and not node.gone:
            out.append(CancelOn(node_id, live.id, attempt.number))


def fail_attempt(
    state: State, live: Live, error: BatonError, culprit: str, now: float, out: list[Effect]
) -> None:
    """The attempt cannot go on: end the request, or have it wait for the next attempt."""
    attempt = live.attempt
    assert attempt is not None
    cancel_attempt(state, live, out)
    state.detach(live)
    end = live.natural_end(attempt.context_limit)
    if end is not None:
        complete(state, live, end, now, out)
        return
    refused = error.code is Code.RESOURCE_EXHAUSTED and not attempt.started
    live.refusals += refused
    live.retries += not refused
    final = final_error(state, live, error, now)
    if final is not None:
        reject(state, live, final, now, out)
        return
    misfit = error.code is Code.FAILED_PRECONDITION and len(attempt.nodes) == 2
    if not refused and not misfit:  # no room, or no fit with this very peer: neither is the node's fault
        live.avoid[culprit] = None
    live.avoid_pairs[attempt.prefill_id, attempt.decode_id] = None
    timeout_s = None if live.deadline_s is None else live.deadline_s - now
    live.request = live.request.retried(tuple(live.output), timeout_s)
    live.chains = PromptChains(live.request.token_ids, live.request.salt)
    live.passed_since_s = None
    why = {"request": live.id, "attempt": live.request.attempt, "node": culprit, "error": str(error)}
    out.append(Record("retry", {**why, "output_tokens": len(live.output)}))
    wait_again(state, live, now)


def final_error(state: State, live: Live, error: BatonError, now: float) -> BatonError | None:
    """What to reject with, None if there may be another attempt."""
    if live.deadline_s is not None and now >= live.deadline_s:
        return DeadlineExceeded(f"the deadline passed while node work had to be redone: {error}")
    if error.code in FINAL_CODES:
        return error
    if live.refusals > state.config.max_refusals:
        return ResourceExhausted(f"nodes refused it {live.refusals} times: {error}", retry_after_s=1.0)
    if live.retries > state.config.max_retries:
        tries = f"gave up after {live.retries} attempts: {error.message}"
        return error_for(error.code, tries, field=error.field, retry_after_s=error.retry_after_s)
    return None


def deadline_passed(state: State, live: Live, now: float) -> BatonError:
    """Says what a request that had not been sent to any node was waiting for."""
    if live.attempt is not None:
        return DeadlineExceeded("the deadline passed")
    role = missing_role(state, live, now)
    why = f"no {role} node can take it" if role else "the nodes that can take it are full"
    return DeadlineExceeded(f"the deadline passed while waiting: {why}")


def missing_role(state: State, live: Live, now: float) -> str:
    """Which kind of node does not serve it, however much room there were; "" if both do."""
    prefills, decodes, _ = eligible(state.ask(live, now), state.registry)
    return "" if prefills and decodes else "decode" if prefills else "prefill"


def wait_again(state: State, live: Live, now: float) -> None:
    """Back to the queue: at once if there is a pair that has not failed it, else after a pause."""
    again = live.retries + live.refusals
    _, _, pairs = eligible(state.ask(live, now), state.registry)
    failed = live.avoid_pairs
    fresh = any(
        (p.id, d.id) not in failed and p.id not in live.avoid and d.id not in live.avoid
        for p, d in pairs or ()
    )
    if fresh or not pairs:
        state.enqueue(live, now)
        return
    state.delayed[live.id] = live
    pause = min(1.0, state.config.retry_backoff_s * 4.0 ** min(again - 1, 8))
    state.timers.set(("again", live.id), now + pause)


def _leave(state: State, live: Live) -> None:
    state.detach(live)
    state.queue.remove(live)
    state.delayed.pop(live.id, None)
    for kind in REQUEST_TIMERS:
        state.timers.clear((kind, live.id))
    del state.live[live.id]


def _end_record(live: Live, how: str, now: float) -> Record:
    facts = live.facts
    data: dict[str, object] = {
        "request": live.id,
        "end": how,
        "output_tokens": len(live.output),
        "retries": live.retries,
        "seconds": now - facts.arrived_s,
    }
    if facts.first_token_s is not None:
        data["ttft_s"] = facts.first_token_s - facts.arrived_s
    if facts.first_token_s is not None and facts.dispatched_s is not None:
        data["dispatch_to_token_s"] = facts.first_token_s - facts.dispatched_s
        data["predicted_s"] = facts.predicted_ttft_s
    return Record("end", data)
