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
from baton.core.request import Slo
from baton.router.events import Dispatch, Effect, Record
from baton.router.fate import missing_role, reject
from baton.router.ledger import Work
from baton.router.live import Attempt, Live
from baton.router.policy import Blocked, Choice, Why, why_none
from baton.router.shortlist import may_serve
from baton.router.state import State

MIN_RETRY_AFTER_S, MAX_RETRY_AFTER_S = 0.05, 60.0
MIN_BUSY_S = 1.0  # what nodes are busy with, where it is not the queue, lasts longer than a moment
HARMLESS = 0.05  # so many others may miss their targets for one in vain
MOST_HARMFUL = 2  # requests that would do others harm; those behind them would, too


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
    state.demand.arrived(live.work_s, live.request.slo.ttft_s, now)
    pump(state, now, out, newcomer=live)
    if live in state.queue:
        error = never_fits(state, live, now)  # the pump may not have come to it
        if error is not None:
            reject(state, live, error, now, out)
        elif state.config.admission == "reject" and state.queue.is_late(live):
            turn_away(state, live, predicted_wait_s(state, live, now), now, out)
        else:
            shed(state, live, now, out)


def turn_away(state: State, live: Live, wait_s: float, now: float, out: list[Effect]) -> None:
    """It would not meet its targets, and the work done for it would cost others theirs."""
    _come_later(state, live, "its latency targets cannot be met now", wait_s, now, out)


def _come_later(state: State, live: Live, why: str, wait_s: float, now: float, out: list[Effect]) -> None:
    """Refuse one that waits. queued: the others."""
    out.append(Record("shed", {"request": live.id, "queued": len(state.queue) - 1, "wait_s": wait_s}))
    retry_after_s = max(MIN_RETRY_AFTER_S, min(wait_s, MAX_RETRY_AFTER_S))
    reject(state, live, ResourceExhausted(why, retry_after_s=retry_after_s), now, out)


def never_fits(state: State, live: Live, now: float) -> BatonError | None:
    """The error, if no node that serves now could take it even with all the room there is."""
    ask = state.ask(live, now)
    return None if may_serve(ask, state.registry) else never(why_none(ask, state.registry))


def never(blocked: Blocked) -> BatonError | None:
    """The error, if waiting cannot help."""
    if blocked.why is Why.INCOMPATIBLE:
        return FailedPrecondition("no two nodes fit together: " + "; ".join(blocked.items))
    if blocked.why is Why.TOO_LONG:
        return InvalidArgument("longer than any serving node's context", field="prompt")
    return None


def shed(state: State, live: Live, now: float, out: list[Effect]) -> None:
    """Turn somebody away if the queue is too long for the newcomer: the last in order that has not run."""
    wait_s = predicted_wait_s(state, live, now)
    if len(state.queue) > state.config.max_queued:
        last = state.queue.last
        victim = last if last.request.attempt == 0 else live  # a retry may have text out already
        why = f"{len(state.queue) - 1} requests wait already, the limit is {state.config.max_queued}"
    elif wait_s > state.config.max_queue_wait_s:
        victim, why = live, f"the predicted wait of {wait_s:.1f} s is beyond the limit"
    elif live.deadline_s is not None and wait_s > live.deadline_s - now:
        victim, why = live, f"the predicted wait of {wait_s:.1f} s is beyond the deadline"
    else:
        return
    _come_later(state, victim, why, wait_s, now, out)


def predicted_wait_s(state: State, live: Live, now: float) -> float:
    """Seconds until what goes before it has left the queue: by its prompts' work spread over the prefill
    nodes, or by the rate at which requests have been leaving, whichever is longer."""
    speed = state.registry.board.prefill_speed
    count, tokens = state.queue.before(live)
    work_s = tokens / speed if speed else 0.0
    left = state.departures
    if len(left) < 4:
        return work_s
    span_s = max(now - left[0], 1e-6)
    return max(work_s, count * span_s / len(left))


def pump(state: State, now: float, out: list[Effect], newcomer: Live | None = None) -> None:
    """Dispatch from the queue, in order, until there is no room. Requests that wait for something of their
    own (a large room, a node that has not failed them) are passed by a few others, but not for ever."""
    queue, config = state.queue, state.config
    board = state.registry.board
    if len(queue) > 1 or (newcomer is None and len(queue)):
        queue.triage(now, board.next_free(len(queue)), _slower(state))
    if config.admission == "reject" and board.next_free(1) > [now]:  # else it is tried below
        for late in queue.hopeless(now):
            if late is not newcomer:  # of whom a choice says more: a cached prefix, an idle node
                turn_away(state, late, predicted_wait_s(state, late, now), now, out)
    passed: dict[Live, None] = {}
    harmful = 0
    while len(passed) < config.lookahead:
        live = next((head for head in queue.heads(now, len(passed) + 1) if head not in passed), None)
        if live is None:
            return
        verdict = state.policy.choose(state.ask(live, now), state.registry)
        if isinstance(verdict, Choice):
            in_vain = _in_vain(state, live, verdict, now)
            if in_vain and (verdict.whole or verdict.slow > verdict.late):
                turn_away(state, live, max(MIN_BUSY_S, predicted_wait_s(state, live, now)), now, out)
                continue
            if not (in_vain or _harmful(state, live, verdict, now)):
                send(state, live, verdict, now, out)
                continue
            harmful += 1
            if harmful > MOST_HARMFUL:
                return
            verdict = Blocked(Why.HARMFUL)
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
        passed[live] = None


def _slower(state: State) -> float:
    """How many times a prompt's work it keeps a node, on average: nodes that decode have less time for it."""
    board = state.registry.board
    alone = board.prefill_speed * state.registry.average.prefill_token_s()  # as nodes of prompts alone
    return board.prefill_nodes / max(0.1, alone)


def _in_vain(state: State, live: Live, choice: Choice, now: float) -> bool:
    """Whether it had better come back later; or, where other nodes may have room soon, wait for them. Not
    where nothing runs: if predictions are too bad, only what is tried can mend them."""
    config = state.config
    if config.admission != "reject" or live.output or live.request.attempt or live.request.slo == Slo():
        return False
    if not choice.whole and now - live.facts.arrived_s > config.late_wait_s:
        return False
    hope = choice.gain if choice.whole else (1.0 - choice.late) * (1.0 - choice.slow)
    return hope < config.least_chance and not (choice.prefill.idle and choice.decode.idle)


def _harmful(state: State, live: Live, choice: Choice, now: float) -> bool:
    """Whether sending it now would make more of those already there miss their targets than it is likely to
    meet its own. One with text out, or that has waited long, goes all the same."""
    config = state.config
    if choice.gain >= -HARMLESS or live.output or config.order == "fcfs":
        return False
    return now - live.facts.arrived_s <= config.late_wait_s


def send(state: State, live: Live, choice: Choice, now: float, out: list[Effect]) -> None:
    """The queued request goes to its nodes."""
    queued = len(state.queue) - 1
    state.queue.spend(live)
    state.queue.remove(live)
    state.timers.clear(("wait", live.id))
    if queued:
        state.departures.append(now)
    else:
        state.departures.clear()
    live.passed_since_s = None
    live.attempt = _attempt(live, choice, now)
    _book(live, choice, now)
    prefill, decode, prediction = choice.prefill, choice.decode, choice.prediction
    out.append(Dispatch(live.request, prefill.id, decode.id, prediction, choice.order))
    data: dict[str, object] = {
        "request": live.id,
        "attempt": live.request.attempt,
        "prefill": prefill.id,
        "decode": decode.id,
        "waited_s": live.request.waited_s,
        "predicted_ttft_s": live.request.waited_s + prediction.ttft_s,
        "predicted_tpot_s": prediction.tpot_s,
        "gain": choice.gain,
        "score_s": choice.score_s,
        "pairs": choice.pairs,
        "queued": queued,
    }
    if choice.fetch is not None:
        data["fetch_from"], data["fetch_tokens"] = choice.fetch.lender.id, choice.fetch.tokens
        data["fetch_s"], data["fetch_saves_s"] = choice.fetch.wait_s, choice.fetch.saved_s
    out.append(Record("dispatch", data))


def _attempt(live: Live, choice: Choice, now: float) -> Attempt:
    prefill, decode = choice.prefill, choice.decode
    left_s = None if live.deadline_s is None else live.deadline_s - now
    live.request = replace(live.request, timeout_s=left_s, waited_s=now - live.facts.arrived_s)
    live.facts.prefill_node, live.facts.decode_node = prefill.id, decode.id
    return Attempt(
        number=live.request.attempt,
        base=len(live.output),
        prefill_id=prefill.id,
        decode_id=decode.id,
        dispatched_s=now,
        fingerprint=prefill.info.fingerprint,
        context_limit=min(prefill.info.max_model_len, decode.info.max_model_len),
        prediction=choice.prediction,
        fetch=choice.order,
    )


def _book(live: Live, choice: Choice, now: float) -> None:
    """The work is on the nodes from now on, as far as this router's figures of them go."""
    prefill, decode, prediction = choice.prefill, choice.decode, choice.prediction
    tokens, tpot_s = live.request.prefill_tokens, live.request.slo.tpot_s
    prefill.cost.try_prefill()
    decode.cost.try_decode()
    prefill.prefill.put(live.id, Work(prediction.prefill_s, tokens, seen_s=now, sent_s=now))
    decode.decode.put(live.id, Work(0.0, tokens, decode.blocks_for(tokens + 1), tpot_s=tpot_s))
    if prefill is not decode:
        lacking = tokens - live.chains.matched_tokens(decode.prefixes)
        sends_s = prefill.cost.transfer_s(lacking * prefill.info.kv_bytes_per_token).mean_s
        prefill.cost.try_transfer()
        prefill.sending_until_s = max(prefill.sending_until_s, now) + sends_s
        decode.receiving_until_s = max(decode.receiving_until_s, now) + sends_s
    if (fetch := choice.fetch) is not None:
        fetch.lender.cost.try_transfer()
        fetch.lender.sending_until_s = max(fetch.lender.sending_until_s, now) + fetch.send_s
        prefill.receiving_until_s = max(prefill.receiving_until_s, now) + fetch.send_s


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
