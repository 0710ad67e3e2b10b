"""Admission, the central queue's pump, and early rejection."""

from __future__ import annotations

from dataclasses import replace

from baton.core.errors import (
    BatonError,
    DeadlineExceeded,
    FailedPrecondition,
    InvalidArgument,
    ResourceExhausted,
    Unavailable,
)
from baton.router.events import Dispatch, Effect, Record
from baton.router.fate import missing_role, reject
from baton.router.ledger import Work
from baton.router.live import Attempt, Live
from baton.router.policy import Blocked, Choice, Why, eligible, why_none
from baton.router.state import State

MIN_RETRY_AFTER_S = 0.05


def admit(state: State, live: Live, now: float, out: list[Effect]) -> None:
    """A new request: dispatched, queued, or turned away while turning it away is still cheap."""
    if live.deadline_s is not None:
        if live.deadline_s <= now:
            state.live[live.id] = live
            reject(state, live, DeadlineExceeded("the deadline had passed on arrival"), now, out)
            return
        state.timers.set(("deadline", live.id), live.deadline_s)
    state.live[live.id] = live
    state.enqueue(live, now)
    pump(state, now, out)
    if live in state.queue:
        error = never_fits(state, live, now)  # the pump may not have come to it
        if error is not None:
            reject(state, live, error, now, out)
        else:
            shed(state, live, now, out)


def never_fits(state: State, live: Live, now: float) -> BatonError | None:
    """The error, if no node that serves now could take it even with all the room there is."""
    ask = state.ask(live, now)
    prefills, decodes, _ = eligible(ask, state.registry)
    return None if prefills and decodes else never(why_none(ask, state.registry))


def never(blocked: Blocked) -> BatonError | None:
    """The error, if waiting cannot help."""
    if blocked.why is Why.INCOMPATIBLE:
        return FailedPrecondition("no two nodes fit together: " + "; ".join(blocked.items))
    if blocked.why is Why.TOO_LONG:
        return InvalidArgument("longer than any serving node's context", field="prompt")
    return None


def shed(state: State, live: Live, now: float, out: list[Effect]) -> None:
    """Turn somebody away if the queue is too long for the newcomer: the last in order that has not run."""
    wait_s = predicted_wait_s(state, now)
    if len(state.queue) > state.config.max_queued:
        last = state.queue[-1]
        victim = last if last.request.attempt == 0 else live  # a retry may have text out already
        why = f"{len(state.queue) - 1} requests wait already, the limit is {state.config.max_queued}"
    elif wait_s > state.config.max_queue_wait_s:
        victim, why = live, f"the predicted wait of {wait_s:.1f} s is beyond the limit"
    elif live.deadline_s is not None and wait_s > live.deadline_s - now:
        victim, why = live, f"the predicted wait of {wait_s:.1f} s is beyond the deadline"
    else:
        return
    retry_after_s = max(MIN_RETRY_AFTER_S, min(wait_s, 60.0))
    out.append(Record("shed", {"request": victim.id, "queued": len(state.queue) - 1, "wait_s": wait_s}))
    reject(state, victim, ResourceExhausted(why, retry_after_s=retry_after_s), now, out)


def predicted_wait_s(state: State, now: float) -> float:
    """Seconds until today's queue is drained: by its prompts' work spread over the prefill nodes, or by
    the rate at which requests have been leaving it, whichever is longer."""
    queue = state.queue
    speeds = [1.0 / node.cost.prefill_token_s() for node in state.registry if node.may_prefill]
    work_s = queue.prefill_tokens / sum(speeds) if speeds else 0.0
    left = state.departures
    if len(left) < 4:
        return work_s
    span_s = max(now - left[0], 1e-6)
    return max(work_s, len(queue) * span_s / len(left))


def pump(state: State, now: float, out: list[Effect]) -> None:
    """Dispatch from the queue, in order, until there is no room. Requests that wait for something of their
    own (a large room, a node that has not failed them) are passed by a few others, but not for ever."""
    queue, config = state.queue, state.config
    position = 0
    while position < len(queue) and position < config.lookahead:
        live = queue[position]
        verdict = state.policy.choose(state.ask(live, now), state.registry)
        if isinstance(verdict, Choice):
            send(state, live, verdict, now, out)
            continue
        error = never(verdict)
        if error is not None:
            reject(state, live, error, now, out)
            continue
        if verdict.why is Why.FULL or (verdict.why is Why.NO_NODE and live.fingerprint is None):
            return
        if live.passed_since_s is None:
            live.passed_since_s = now
        elif verdict.why is Why.NO_ROOM and now - live.passed_since_s > config.starve_s and not live.avoid:
            return
        position += 1


def send(state: State, live: Live, choice: Choice, now: float, out: list[Effect]) -> None:
    """The queued request goes to its nodes."""
    queued = len(state.queue) - 1
    state.queue.remove(live)
    state.timers.clear(("wait", live.id))
    if queued:
        state.departures.append(now)
    else:
        state.departures.clear()
    prefill, decode, prediction = choice.prefill, choice.decode, choice.prediction
    request = live.request
    if live.deadline_s is not None:
        request = live.request = replace(request, timeout_s=live.deadline_s - now)
    tokens = request.prefill_tokens
    live.passed_since_s = None
    live.attempt = Attempt(
        number=request.attempt,
        base=len(live.output),
        prefill_id=prefill.id,
        decode_id=decode.id,
        dispatched_s=now,
        fingerprint=prefill.info.fingerprint,
        context_limit=min(prefill.info.max_model_len, decode.info.max_model_len),
        predicted_ttft_s=prediction.queue_s + prediction.prefill_s,
    )
    prefill.prefill.put(live.id, Work(prediction.prefill_s, tokens, seen_s=now))
    decode.decode.put(live.id, Work(0.0, tokens, decode.blocks_for(tokens + 1)))
    live.facts.prefill_node, live.facts.decode_node = prefill.id, decode.id
    out.append(Dispatch(request, prefill.id, decode.id, prediction))
    out.append(
        Record(
            "dispatch",
            {
                "request": live.id,
                "attempt": request.attempt,
                "prefill": prefill.id,
                "decode": decode.id,
                "waited_s": now - live.facts.arrived_s,
                "score_s": choice.score_s,
                "pairs": choice.pairs,
                "queued": queued,
            },
        )
    )


def give_up_waiting(state: State, live: Live, now: float, out: list[Effect]) -> None:
    """It has waited a while: if no node could take it even with room, say so now."""
    role = missing_role(state, live, now)
    if not role:
        state.timers.set(("wait", live.id), now + state.config.no_node_wait_s)
        return
    error = never(why_none(state.ask(live, now), state.registry))
    if error is None:
        waited_s = now - live.facts.arrived_s
        why = f"no {role} node can take it, and none came within {waited_s:.2g} s"
        error = Unavailable(why, retry_after_s=state.config.no_node_wait_s)
    reject(state, live, error, now, out)
