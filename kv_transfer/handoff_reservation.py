"""One transfer as its sink sees it: the table of its states, and who owns its blocks in each. Pure.

    WAITING ──grant──▶ GRANTED ──commit──▶ OVER (the decode scheduler owns the blocks)
       │                │   │
    give up          give up└──abandon──▶ OVER (free)
       ▼                ▼
     OVER          QUARANTINED ──abandon / safe──▶ OVER (free)

Cached blocks (the prefix that was found here) are only read by a transfer, so they are released at once; the
fresh ones are where the writer writes, and are quarantined until it cannot.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from baton.core.errors import IllegalTransition
from baton.core.node_effects import Key
from baton.core.quick_enum import QuickEnum
from baton.core.request import Request


class State(QuickEnum):
    WAITING = "waiting"
    GRANTED = "granted"
    QUARANTINED = "quarantined"
    OVER = "over"


class Event(QuickEnum):
    GRANT = "grant"
    COMMIT = "commit"
    ABANDON = "abandon"  # the writer's promise, unasked
    GIVE_UP = "give up"  # cancelled, deadline, link lost, a commit that is not in order
    SAFE = "safe"  # the writer's promise, its death, or the transport's fence


TRANSITIONS: dict[tuple[State, Event], State] = {
    (State.WAITING, Event.GRANT): State.GRANTED,
    (State.WAITING, Event.ABANDON): State.OVER,
    (State.WAITING, Event.GIVE_UP): State.OVER,
    (State.GRANTED, Event.COMMIT): State.OVER,
    (State.GRANTED, Event.ABANDON): State.OVER,
    (State.GRANTED, Event.GIVE_UP): State.QUARANTINED,
    (State.QUARANTINED, Event.ABANDON): State.OVER,
    (State.QUARANTINED, Event.SAFE): State.OVER,
}


@dataclass(slots=True, eq=False)
class Reservation:
    """number: order of arrival. keys: of the prompt's full blocks, once computed. cached: blocks found here,
    one reference each; fresh: those to be written. loan: KV that this node asked for, which belongs to its
    prefix cache when it is committed; the request is then the beginning of the one that waits for it."""

    link: str
    transfer_id: int
    request: Request
    router_id: str
    number: int
    arrived_s: float
    deadline_s: float | None
    state: State = State.WAITING
    bypassed: int = 0
    loan: bool = False
    keys: tuple[bytes, ...] | None = None
    cached: list[int] = field(default_factory=list)
    fresh: list[int] = field(default_factory=list)

    @property
    def id(self) -> tuple[str, int]:
        return self.link, self.transfer_id

    @property
    def key(self) -> Key:
        return self.request.id, self.request.attempt

    @property
    def live(self) -> bool:
        return self.state in (State.WAITING, State.GRANTED)

    def move(self, event: Event) -> None:
        """IllegalTransition, and no change, where the table has none."""
        try:
            self.state = TRANSITIONS[self.state, event]
        except KeyError:
            raise IllegalTransition(
                f"{event.value!r} is not legal for a reservation that is {self.state.value}"
            ) from None
