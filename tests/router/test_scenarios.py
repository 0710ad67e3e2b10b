"""Readable transcripts of the machine's behaviour: `scenarios/*.txt` are replayed and compared, line by line.

A line that starts with `>` is an event, at its time since the start; indented lines are its effects.
Record anew with BATON_RECORD_SCENARIOS=1, and explain each changed line in the commit.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from baton.core.load import Role
from baton.core.request import FinishReason
from baton.router.events import (
    Arrived,
    CancelOn,
    Complete,
    Deliver,
    Dispatch,
    Effect,
    Event,
    HandedOff,
    NodeFinished,
    NodeJoined,
    NodeLost,
    NodeReported,
    OperatorDrain,
    Pair,
    PrefillStarted,
    Record,
    Reject,
    SetDrain,
    SetRole,
    Tick,
    TokensMade,
)
from baton.router.machine_config import RouterConfig

from .machine_kit import FINGERPRINT, Bench, load, node, request

FOLDER = Path(__file__).parent / "scenarios"
SCENARIOS: dict[str, Callable[[Script], None]] = {}


class Script:
    """Runs events and writes down what came of them."""

    def __init__(self, config: RouterConfig | None = None) -> None:
        self.bench = Bench(config or RouterConfig())
        self.lines: list[str] = []

    def say(self, text: str) -> None:
        self.lines.append(f"# {text}")

    def at(self, seconds: float, *events: Event) -> None:
        """Ticks that fall due before come first, as with any driver."""
        while (due := self.bench.machine.next_wakeup()) is not None and due < seconds:
            self._do(due, Tick())
        for event in events:
            self._do(seconds, event)

    def _do(self, now: float, event: Event) -> None:
        self.bench.now = now
        self.lines.append(f"> {now:.3f} {show_event(event)}")
        self.lines += [f"    {show_effect(effect)}" for effect in self.bench.step(event, after_s=0.0)]


def show_event(event: Event) -> str:
    match event:
        case Arrived(asked, deadline_s):
            until = "" if deadline_s is None else f" deadline {deadline_s:.3f}"
            return f"Arrived {asked.id}: {len(asked.prompt_ids)} prompt, {asked.max_tokens} max{until}"
        case NodeJoined(info):
            return f"NodeJoined {info.node_id} ({info.incarnation}, {info.load.role.value})"
        case NodeReported(node_id, _, said):
            return f"NodeReported {node_id} seq {said.seq}: {said.waiting} waiting, {said.running} running"
        case TokensMade(name, attempt, node_id, index, ids):
            return f"TokensMade {name}#{attempt} {node_id} [{index}] {list(ids)}"
        case PrefillStarted(name, attempt, node_id) | HandedOff(name, attempt, node_id):
            return f"{type(event).__name__} {name}#{attempt} {node_id}"
        case NodeFinished(name, attempt, node_id, reason, output_tokens):
            return f"NodeFinished {name}#{attempt} {node_id} {reason.value} {output_tokens}"
        case NodeLost(node_id, _, reason):
            return f"NodeLost {node_id}: {reason}"
        case OperatorDrain(node_id, draining):
            return f"OperatorDrain {node_id} {draining}"
        case _:
            return type(event).__name__


def show_effect(effect: Effect) -> str:
    match effect:
        case Dispatch(asked, prefill, decode, said):
            parts = f"queue {said.queue_s:.4f} prefill {said.prefill_s:.4f} transfer {said.transfer_s:.4f}"
            after = f" after {list(asked.output_ids)}" if asked.output_ids else ""
            return f"Dispatch {asked.id}#{asked.attempt} {prefill} -> {decode}{after} ({parts})"
        case CancelOn(node_id, name, attempt):
            return f"CancelOn {node_id} {name}#{attempt}"
        case Deliver(name, index, ids):
            return f"Deliver {name} [{index}] {list(ids)}"
        case Complete(name, reason, facts):
            return f"Complete {name} {reason.value}: {facts.output_tokens} tokens, {facts.retries} retries"
        case Reject(name, error):
            hint = "" if error.retry_after_s is None else f" (retry after {error.retry_after_s:.2f} s)"
            return f"Reject {name} {error.code.value}: {error}{hint}"
        case Pair(one, other, items):
            return f"Pair {one} {other}: {'; '.join(items)}"
        case SetDrain(node_id, draining):
            return f"SetDrain {node_id} {draining}"
        case SetRole(node_id, role):
            return f"SetRole {node_id} {role.value}"
        case Record("node", data):
            return f"Record node {data['node']} {data['what']}"
        case Record(kind, data):
            return f"Record {kind} {data['request']}"


def scenario(play: Callable[[Script], None]) -> Callable[[Script], None]:
    SCENARIOS[play.__name__] = play
    return play


def serve(script: Script, name: str, pair: tuple[str, str], first: int, last: int, attempt: int = 0) -> None:
    """Output positions [first, last) come out as a node pair makes them, the finish left out."""
    now = script.bench.now
    prefill, decode = pair
    script.at(now + 0.001, PrefillStarted(name, attempt, prefill, 0, 0.0))
    script.at(now + 0.020, TokensMade(name, attempt, prefill, first, (100 + first,)))
    script.at(now + 0.022, HandedOff(name, attempt, prefill, 0.019, 0.002, 8192))
    for i in range(first + 1, last):
        script.at(now + 0.02 + 0.01 * (i - first), TokensMade(name, attempt, decode, i, (100 + i,)))


@scenario
def plain_1p1d(script: Script) -> None:
    script.at(0.0, NodeJoined(node("p", Role.PREFILL)), NodeJoined(node("d", Role.DECODE)))
    script.at(1.0, Arrived(request("r", prompt=100)))
    serve(script, "r", ("p", "d"), 0, 4)
    script.at(1.06, NodeFinished("r", 0, "d", FinishReason.LENGTH, 4))


@scenario
def decode_dies_mid_stream(script: Script) -> None:
    script.at(0.0, NodeJoined(node("p", Role.PREFILL)))
    script.at(0.0, NodeJoined(node("d1", Role.DECODE)), NodeJoined(node("d2", Role.DECODE)))
    script.at(1.0, Arrived(request("r", prompt=100, max_tokens=6)))
    serving = script.bench.dispatches("r")[0].decode_node
    other = "d1" if serving == "d2" else "d2"
    serve(script, "r", ("p", serving), 0, 3)
    script.at(1.1, NodeLost(serving, serving, "its stream broke"))
    script.say("late news of the first attempt is dropped")
    script.at(1.101, TokensMade("r", 0, serving, 3, (999,)))
    serve(script, "r", ("p", other), 3, 6, attempt=1)
    script.at(1.2, NodeFinished("r", 1, other, FinishReason.LENGTH, 6))


@scenario
def burst_is_shed_early(script: Script) -> None:
    full = load(Role.DECODE, max_running=1)
    script.at(0.0, NodeJoined(node("p", Role.PREFILL)), NodeJoined(node("d", Role.DECODE, load=full)))
    for i in range(8):
        script.at(1.0 + i / 1000, Arrived(request(f"r{i}", prompt=400, max_tokens=2)))
    serve(script, "r0", ("p", "d"), 0, 2)
    script.at(1.5, NodeFinished("r0", 0, "d", FinishReason.LENGTH, 2))


@scenario
def stale_reports(script: Script) -> None:
    script.at(0.0, NodeJoined(node("p", Role.PREFILL)), NodeJoined(node("d", Role.DECODE)))
    script.at(0.5, NodeReported("p", "p", load(Role.PREFILL, 7, waiting=1, waiting_tokens=300)))
    script.say("older than what is known: counts as a sign of life only")
    script.at(0.6, NodeReported("p", "p", load(Role.PREFILL, 6)))
    script.say("of another incarnation: nothing at all")
    script.at(0.6, NodeReported("p", "p-0", load(Role.PREFILL, 99, draining=True)))
    script.at(0.7, Arrived(request("r", prompt=100)))
    script.say("no report any more: suspect, then lost, and its work done elsewhere")
    script.at(3.0, NodeReported("d", "d", load(Role.DECODE, 2)), NodeJoined(node("p2", Role.PREFILL)))
    script.at(5.5, NodeReported("d", "d", load(Role.DECODE, 3)))
    script.at(5.5, NodeReported("p2", "p2", load(Role.PREFILL, 2)))
    script.at(7.0)


@scenario
def drain(script: Script) -> None:
    script.at(0.0, NodeJoined(node("b1", Role.BOTH)), NodeJoined(node("b2", Role.BOTH)))
    script.at(1.0, OperatorDrain("b1", True), Arrived(request("r", prompt=20)))
    script.at(1.1, OperatorDrain("b2", True), Arrived(request("s", prompt=20)))
    script.at(1.2, TokensMade("r", 0, "b2", 0, (100, 101, 102, 103)))
    script.at(1.2, NodeFinished("r", 0, "b2", FinishReason.LENGTH, 4))
    script.at(1.3, OperatorDrain("b1", False))


@scenario
def incompatible_pair(script: Script) -> None:
    other = replace(FINGERPRINT, weights="w1")
    script.at(0.0, NodeJoined(node("p", Role.PREFILL)), NodeJoined(node("d", Role.DECODE, fingerprint=other)))
    script.at(1.0, Arrived(request("r", prompt=20)))
    script.at(2.0, NodeJoined(node("d2", Role.DECODE)))
    script.at(2.1, Arrived(request("s", prompt=20)))


CONFIGS = {"burst_is_shed_early": RouterConfig(max_queued=3, decode_slack=1)}


@pytest.mark.parametrize("name", sorted(SCENARIOS))
def test_transcript(name: str) -> None:
    script = Script(CONFIGS.get(name))
    SCENARIOS[name](script)
    written = "\n".join(script.lines) + "\n"
    path = FOLDER / f"{name}.txt"
    if os.environ.get("BATON_RECORD_SCENARIOS"):
        FOLDER.mkdir(exist_ok=True)
        path.write_text(written)
    assert written == path.read_text(), f"{name} went another way: see the module's docstring"


def test_no_transcript_without_a_scenario() -> None:
    assert {path.stem for path in FOLDER.glob("*.txt")} == set(SCENARIOS)
