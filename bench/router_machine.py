"""What the router's decisions cost, without any I/O: microseconds per token event and per arrival.

The limits are budgets: one core that relays 20,000 tokens/s has 50 us per token for everything (gRPC,
detokenizing, the client's stream), of which the machine may take a tenth.
"""

from __future__ import annotations

import gc
from dataclasses import replace
from time import perf_counter

from baton.bench.report import Figure
from baton.core.load import LoadReport, Role
from baton.core.model import Fingerprint
from baton.core.request import FinishReason, Request
from baton.router.events import (
    Arrived,
    Dispatch,
    Event,
    HandedOff,
    NodeFinished,
    NodeInfo,
    NodeJoined,
    PrefillStarted,
    TokensMade,
)
from baton.router.machine import RouterMachine
from baton.router.machine_config import RouterConfig

SMALL, LARGE = 16, 1000  # nodes
STREAMS = 256
TOKENS = 100
FINGERPRINT = Fingerprint("1", "llama", "w", "t", "g", "none", "float32", "native")


def machine(nodes: int) -> RouterMachine:
    made = RouterMachine(RouterConfig(max_node_wait_s=1e9, max_node_requests=10**6))
    for i in range(nodes):
        role = Role.PREFILL if i % 2 else Role.DECODE
        load = LoadReport(1, role, blocks_total=10**6, blocks_free=10**6, block_size=16, max_running=1000)
        info = NodeInfo(f"n{i}", "i", "a:1", "h", FINGERPRINT, 16, 10**6, 1024, 8192, load)
        made.step(0.0, NodeJoined(info))
    return made


def timed(router: RouterMachine, events: list[Event]) -> float:
    """Microseconds per event."""
    step, wakeup = router.step, router.next_wakeup
    gc.collect()
    start = perf_counter()
    for event in events:
        step(1.0, event)
        wakeup()
    return (perf_counter() - start) / len(events) * 1e6


def arrivals(router: RouterMachine, first: int) -> tuple[float, dict[str, Dispatch]]:
    """Bring STREAMS requests in; microseconds each, and where they went."""
    base = Request("", tuple(range(1, 513)), max_tokens=TOKENS)
    events = [Arrived(replace(base, id=f"r{first + i}")) for i in range(STREAMS)]
    gc.collect()
    sent: dict[str, Dispatch] = {}
    start = perf_counter()
    effects = [router.step(1.0, event) for event in events]
    spent_us = (perf_counter() - start) / STREAMS * 1e6
    for effect in (effect for step in effects for effect in step):
        if isinstance(effect, Dispatch):
            sent[effect.request.id] = effect
    assert len(sent) == STREAMS, "an arrival was not dispatched: the figure would mean nothing"
    return spent_us, sent


def stream(router: RouterMachine, sent: dict[str, Dispatch]) -> float:
    """Run all streams to their end, token by token; microseconds per token event of decode."""
    for name, to in sent.items():
        router.step(1.0, PrefillStarted(name, 0, to.prefill_node, 0, 0.0))
        router.step(1.0, TokensMade(name, 0, to.prefill_node, 0, (1,)))
        router.step(1.0, HandedOff(name, 0, to.prefill_node, 0.1, 0.1, 1))
    events: list[Event] = [
        TokensMade(name, 0, to.decode_node, index, (index,))
        for index in range(1, TOKENS)
        for name, to in sent.items()
    ]
    spent_us = timed(router, events)
    for name, to in sent.items():
        router.step(1.0, NodeFinished(name, 0, to.decode_node, FinishReason.LENGTH, TOKENS))
    assert router.in_flight == 0
    return spent_us


def best(nodes: int) -> tuple[float, float]:
    """Microseconds of an arrival and of a token event, of several rounds the least."""
    router = machine(nodes)
    rounds = []
    for i in range(4):
        arrival_us, sent = arrivals(router, i * STREAMS)
        rounds.append((arrival_us, stream(router, sent)))
    return min(arrival for arrival, _ in rounds), min(token for _, token in rounds)


def run() -> list[Figure]:
    arrival_us, token_us = best(SMALL)
    large_us, _ = best(LARGE)
    added = "2 ms added to TTFT"
    return [
        Figure(
            "router machine, one token event", token_us, "us", 50.0, "20,000 tokens/s on a core", 0.1, False
        ),
        Figure(
            f"router machine, one arrival over {SMALL} nodes", arrival_us, "us", 2000.0, added, 0.25, False
        ),
        Figure(f"router machine, one arrival over {LARGE} nodes", large_us, "us", 2000.0, added, 0.25, False),
    ]


if __name__ == "__main__":
    for figure in run():
        print(f"{figure.name}: {figure.value:.2f} {figure.unit} ({figure.ratio:.3f} of {figure.limit_name})")
