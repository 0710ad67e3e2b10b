"""Ready-made nodes and requests, and a driver's half of the machine's contract, for tests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from baton.core.load import LoadReport, Role
from baton.core.model import Fingerprint
from baton.core.request import FinishReason, Request, SamplingParams
from baton.router.events import (
    Arrived,
    Complete,
    Deliver,
    Dispatch,
    Effect,
    Event,
    HandedOff,
    NodeFinished,
    NodeInfo,
    NodeJoined,
    NodeLost,
    NodeReported,
    PrefillStarted,
    Reject,
    Tick,
    TokensMade,
)
from baton.router.machine import RouterMachine
from baton.router.machine_config import RouterConfig

FINGERPRINT = Fingerprint("1", "llama", "w0", "t0", "g0", "none", "float32", "native")
E = TypeVar("E")


def load(role: Role = Role.PREFILL, seq: int = 1, **fields: object) -> LoadReport:
    base = LoadReport(seq, role, blocks_total=1000, blocks_free=1000, block_size=4, max_running=8)
    return replace(base, **fields)  # type: ignore[arg-type]


def node(node_id: str, role: Role, incarnation: str = "", **fields: object) -> NodeInfo:
    """A node; its incarnation is its id unless given. Keyword `load` replaces the report."""
    base = NodeInfo(
        node_id, incarnation or node_id, f"{node_id}:1", "host", FINGERPRINT, 4, 1000, 1024, 4096, load(role)
    )
    return replace(base, **fields)  # type: ignore[arg-type]


def request(request_id: str, prompt: int = 8, max_tokens: int = 4, **fields: object) -> Request:
    base = Request(request_id, tuple(range(1, prompt + 1)), SamplingParams(), max_tokens=max_tokens)
    return replace(base, **fields)  # type: ignore[arg-type]


def of(kind: type[E], effects: Sequence[Effect]) -> list[E]:
    return [effect for effect in effects if isinstance(effect, kind)]


@dataclass
class Bench:
    """A machine with a clock; remembers all effects and checks the machine after each step."""

    config: RouterConfig = field(default_factory=RouterConfig)
    now: float = 0.0

    def __post_init__(self) -> None:
        self.machine = RouterMachine(self.config)
        self.all: list[Effect] = []

    def step(self, event: Event, after_s: float = 0.001) -> list[Effect]:
        self.now += after_s
        effects = self.machine.step(self.now, event)
        self.machine.check()
        self.all += effects
        return effects

    def join(self, *infos: NodeInfo) -> list[Effect]:
        return [effect for info in infos for effect in self.step(NodeJoined(info))]

    def one_of_each(self) -> None:
        self.join(node("p", Role.PREFILL), node("d", Role.DECODE))

    def arrive(self, request_id: str, deadline_s: float | None = None, **fields: object) -> list[Effect]:
        return self.step(Arrived(request(request_id, **fields), deadline_s))  # type: ignore[arg-type]

    def lose(self, node_id: str, incarnation: str = "") -> list[Effect]:
        return self.step(NodeLost(node_id, incarnation or node_id, "gone"))

    def report(self, node_id: str, report: LoadReport, incarnation: str = "") -> list[Effect]:
        return self.step(NodeReported(node_id, incarnation or node_id, report))

    def tokens(self, request_id: str, node_id: str, index: int, *ids: int, attempt: int = 0) -> list[Effect]:
        return self.step(TokensMade(request_id, attempt, node_id, index, ids))

    def started(self, request_id: str, node_id: str, attempt: int = 0) -> list[Effect]:
        return self.step(PrefillStarted(request_id, attempt, node_id, 0, 0.0))

    def handed_off(self, request_id: str, node_id: str, attempt: int = 0) -> list[Effect]:
        return self.step(HandedOff(request_id, attempt, node_id, 0.01, 0.002, 100))

    def finished(self, request_id: str, node_id: str, output_tokens: int, attempt: int = 0) -> list[Effect]:
        return self.step(NodeFinished(request_id, attempt, node_id, FinishReason.LENGTH, output_tokens))

    def run_until(self, now: float) -> list[Effect]:
        """Tick whenever the machine asks to, as a driver does, up to `now`."""
        out: list[Effect] = []
        while (due := self.machine.next_wakeup()) is not None and due <= now:
            self.now = max(self.now, due)
            out += self.step(Tick(), after_s=0.0)
        self.now = max(self.now, now)
        return out

    def text(self, request_id: str) -> list[int]:
        """Delivered tokens; fails on a gap, a repeat, or anything after the end."""
        got: list[int] = []
        ended = False
        for effect in self.all:
            if isinstance(effect, Deliver) and effect.request_id == request_id:
                assert effect.index == len(got), f"delivered {effect.index} after {len(got)} tokens"
                assert not ended
                got.extend(effect.token_ids)
            if isinstance(effect, (Complete, Reject)) and effect.request_id == request_id:
                assert not ended
                ended = True
        return got

    def end(self, request_id: str) -> Complete | Reject | None:
        ends = [e for e in self.all if isinstance(e, (Complete, Reject)) and e.request_id == request_id]
        assert len(ends) <= 1
        return ends[0] if ends else None

    def dispatches(self, request_id: str) -> list[Dispatch]:
        return [d for d in of(Dispatch, self.all) if d.request.id == request_id]
