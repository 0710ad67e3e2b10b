"""The phases of a request on a node and the one table of legal moves between them.

    QUEUED ──start──▶ PREFILL ──prefilled──▶ EXPORT ──end──▶ ENDED               prefill node
       ▲                 │                      │
       └────preempt──────┘ (KV given back)      └──localise──▶ READY             role `both`

    RESERVED ──commit──▶ READY ──run──▶ DECODE ──end──▶ ENDED                    decode node
                           ▲               │
                           └────preempt────┘ (KV given back, recomputed on its way back)

`end` is legal from every phase but ENDED: whatever happens, a request ends exactly once.
"""

from __future__ import annotations

from baton.core.errors import IllegalTransition
from baton.core.quick_enum import QuickEnum


class Phase(QuickEnum):
    QUEUED = "queued"
    PREFILL = "prefill"
    EXPORT = "export"
    RESERVED = "reserved"
    READY = "ready"
    DECODE = "decode"
    ENDED = "ended"


class Move(QuickEnum):
    START = "start"
    PREFILLED = "prefilled"
    LOCALISE = "localise"
    COMMIT = "commit"
    RUN = "run"
    PREEMPT = "preempt"
    END = "end"


TRANSITIONS: dict[tuple[Phase, Move], Phase] = {
    (Phase.QUEUED, Move.START): Phase.PREFILL,
    (Phase.PREFILL, Move.PREEMPT): Phase.QUEUED,
    (Phase.PREFILL, Move.PREFILLED): Phase.EXPORT,
    (Phase.EXPORT, Move.LOCALISE): Phase.READY,
    (Phase.RESERVED, Move.COMMIT): Phase.READY,
    (Phase.READY, Move.RUN): Phase.DECODE,
    (Phase.DECODE, Move.PREEMPT): Phase.READY,
} | {(phase, Move.END): Phase.ENDED for phase in Phase if phase is not Phase.ENDED}


def next_phase(phase: Phase, move: Move) -> Phase:
    """The phase that `move` leads to; IllegalTransition (and no change) where the table has none."""
    try:
        return TRANSITIONS[phase, move]
    except KeyError:
        raise IllegalTransition(f"{move.value!r} is not legal in phase {phase.value!r}") from None
