"""A run as lines that a person can read: who came, where it was sent and why, what became of it, of nodes."""

from __future__ import annotations

from collections.abc import Sequence

from baton.router.events import (
    Arrived,
    Cancelled,
    CancelOn,
    Complete,
    Dispatch,
    Effect,
    Event,
    HandedOff,
    NodeFailed,
    NodeJoined,
    NodeLost,
    Outcome,
    Record,
    Reject,
    SetDrain,
    SetRole,
    TokensMade,
)


class Transcript:
    """Give it to a World as `watch`. Reports, decode's tokens and ticks leave no line, unless something came
    of them."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._begun: set[str] = set()

    def __call__(self, now: float, event: Event, effects: Sequence[Effect]) -> None:
        said = self._event(event)
        shown = [line for effect in effects if (line := show_effect(effect))]
        if said is None and not shown:
            return
        self.lines.append(f"{now:8.3f} {said or type(event).__name__}")
        self.lines += [f"             {line}" for line in shown]

    def text(self) -> str:
        return "\n".join(self.lines) + "\n"

    def _event(self, event: Event) -> str | None:
        match event:
            case Arrived(request):
                priority = f", priority {request.priority}" if request.priority else ""
                return f"{request.id} arrives: {len(request.prompt_ids)} prompt tokens{priority}"
            case Cancelled(name, reason):
                return f"{name} is {reason.value} by its client"
            case NodeJoined(info):
                return f"{info.incarnation} joins as {info.load.role.value}"
            case NodeLost(node_id, _, reason):
                return f"{node_id} is lost: {reason}"
            case NodeFailed(name, attempt, node_id, error):
                return f"{node_id} gives up {name}#{attempt}: {error}"
            case TokensMade(name, attempt, node_id, index) if name not in self._begun:
                self._begun.add(name)
                return f"{node_id} makes token {index} of {name}#{attempt}"
            case HandedOff(name, attempt, node_id, prefill_s, transfer_s, transfer_bytes):
                took = f"prefill {prefill_s:.3f} s, then {transfer_s:.3f} s to send {transfer_bytes} bytes"
                return f"{node_id} hands {name}#{attempt} off: {took}"
            case _:
                return None


def show_effect(effect: Effect) -> str | None:
    match effect:
        case Dispatch(request, prefill, decode, said):
            waits = f"queue {said.queue_s:.3f} + prefill {said.prefill_s:.3f} s"
            cached = f", {said.cached_tokens} cached" if said.cached_tokens else ""
            return f"{request.id}#{request.attempt} to {prefill} and {decode}: {waits}{cached}"
        case CancelOn(node_id, name, attempt):
            return f"cancel {name}#{attempt} on {node_id}"
        case Complete(name, reason, facts):
            return f"{name} ends ({reason.value}): {_figures(facts)}"
        case Reject(name, error, facts):
            hint = "" if error.retry_after_s is None else f", come again in {error.retry_after_s:.2f} s"
            return f"{name} rejected, {error.code.value}: {error}{hint}"
        case SetDrain(node_id, draining):
            return f"tell {node_id} to {'drain' if draining else 'resume'}"
        case SetRole(node_id, role):
            return f"tell {node_id} to be {role.value}"
        case Record("node", data) if data["what"] not in ("joined", "role", "draining", "resumed"):
            return f"{data['node']}: {data['what']}"
        case _:
            return None


def _figures(facts: Outcome) -> str:
    parts = [f"{facts.output_tokens} tokens"]
    if facts.first_token_s is not None:
        parts.append(f"TTFT {facts.first_token_s - facts.arrived_s:.3f} s")
    if facts.first_token_s is not None and facts.last_token_s is not None and facts.output_tokens > 1:
        tpot_s = (facts.last_token_s - facts.first_token_s) / (facts.output_tokens - 1)
        parts.append(f"TPOT {tpot_s * 1000:.1f} ms")
    if facts.cached_tokens:
        parts.append(f"{facts.cached_tokens} cached")
    if facts.retries:
        parts.append(f"{facts.retries} retries")
    return ", ".join(parts)
