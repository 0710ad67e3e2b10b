"""How a request ends, and how it goes on elsewhere: every end and every retry passes through here."""

from __future__ import annotations

from baton.core.errors import BatonError, Code, DeadlineExceeded, ResourceExhausted, error_for
from baton.core.load import Role
from baton.core.request import FinishReason
from baton.router.events import CancelOn, Complete, Effect, Record, Reject
from baton.router.live import Attempt, Live
from baton.router.prefix_view import PromptChains
from baton.router.shortlist import has_fresh, may_serve, missing_leg
from baton.router.state import DEADLINE_SHARE, REQUEST_TIMERS, State

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
        _learn_tpot(state, live, now)
    _leave(state, live)
    out.append(Complete(live.id, reason, live.outcome(now)))
    out.append(_end_record(live, reason.value, now))


def _learn_tpot(state: State, live: Live, now: float) -> None:
    attempt, tokens = live.attempt, len(live.output)
    measured_s = live.facts.tpot_s(tokens)
    if attempt is None or attempt.base or measured_s is None:  # a retry's pause is no node's pace
        return
    node = state.node(attempt.decode_id)
    if node is not None:
        predicted_s, target_s = attempt.prediction.mean_tpot_s(tokens), live.request.slo.tpot_s
        if node.load.role is Role.BOTH and target_s is not None and measured_s <= target_s:
            measured_s = min(measured_s, predicted_s)  # what the target leaves, it gives to prompts
        node.learn_tpot(measured_s, predicted_s, now)


def finish(state: State, live: Live, reason: FinishReason, now: float, out: list[Effect]) -> None:
    """The answer is whole. Decode may be done before the prefill node's word of the hand-off has come, which
    belongs to the answer's figures: the end waits for it, if not for long."""
    attempt = live.attempt
    wait_s = state.config.word_wait_s
    if live.deadline_s is not None:  # it was in time, and must not be late for the sake of figures
        wait_s = min(wait_s, DEADLINE_SHARE * (live.deadline_s - now))
    if attempt is None or wait_s <= 0 or not live.lacks_word:
        complete(state, live, reason, now, out)
        return
    attempt.ending = reason
    state.leave_decode(live, attempt)
    state.timers.set(("word", live.id), now + wait_s)


def stop(state: State, live: Live, now: float, out: list[Effect]) -> None:
    """The client needs no more of it: as `finish`, but decode does not know."""
    attempt = live.attempt
    if attempt is not None and attempt.ending is not None:
        attempt.ending = FinishReason.STOP
        return
    if attempt is not None and live.lacks_word:
        _cancel_on(state, live, attempt, attempt.decode_id, out)
    else:
        cancel_attempt(state, live, out)
    finish(state, live, FinishReason.STOP, now, out)


def no_word(state: State, live: Live, attempt: Attempt, now: float, out: list[Effect]) -> None:
    """The prefill node has gone, or given up what decode has already: nothing more is to be heard of it."""
    state.leave_prefill(live, attempt)
    if attempt.ending is not None:
        conclude(state, live, now, out)


def conclude(state: State, live: Live, now: float, out: list[Effect]) -> None:
    """An end that waited for the prefill node's word: it has come, or will not."""
    assert live.attempt is not None
    assert live.attempt.ending is not None
    complete(state, live, live.attempt.ending, now, out)


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
        over = attempt.handed_off if node_id != attempt.decode_id else attempt.ending is not None
        if not over:
            _cancel_on(state, live, attempt, node_id, out)


def _cancel_on(state: State, live: Live, attempt: Attempt, node_id: str, out: list[Effect]) -> None:
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
    return missing_leg(state.ask(live, now), state.registry)


def wait_again(state: State, live: Live, now: float) -> None:
    """Back to the queue: at once if there is a pair that has not failed it, else after a pause."""
    again = live.retries + live.refusals
    ask = state.ask(live, now)
    if has_fresh(ask, state.registry) or not may_serve(ask, state.registry):
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
    if (prediction := facts.prediction) is not None and facts.first_token_s is not None:
        assert facts.dispatched_s is not None
        data["dispatch_to_token_s"] = facts.first_token_s - facts.dispatched_s
        data["predicted_s"] = prediction.ttft_s
        if (tpot_s := facts.tpot_s(len(live.output))) is not None:
            data["tpot_s"] = tpot_s
            data["predicted_tpot_s"] = prediction.mean_tpot_s(len(live.output))
    return Record("end", data)
