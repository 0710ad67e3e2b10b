"""The transition table: every legal move, and every illegal one."""

import itertools

import pytest

from baton.core.errors import IllegalTransition
from baton.core.phase import TRANSITIONS, Move, Phase, next_phase
from baton.core.request import Request
from baton.core.sequence import Sequence

LEGAL = {
    ("queued", "start"): "prefill",
    ("prefill", "preempt"): "queued",
    ("prefill", "prefilled"): "export",
    ("export", "localise"): "ready",
    ("reserved", "commit"): "ready",
    ("ready", "run"): "decode",
    ("decode", "preempt"): "ready",
    ("queued", "end"): "ended",
    ("prefill", "end"): "ended",
    ("export", "end"): "ended",
    ("reserved", "end"): "ended",
    ("ready", "end"): "ended",
    ("decode", "end"): "ended",
}


def test_the_table_is_what_the_page_says() -> None:
    assert {(p.value, m.value): to.value for (p, m), to in TRANSITIONS.items()} == LEGAL


@pytest.mark.parametrize(
    ("phase", "move"), list(itertools.product(Phase, Move)), ids=lambda part: part.value
)  # all 49 pairs
def test_every_move_from_every_phase(phase: Phase, move: Move) -> None:
    sequence = Sequence(Request("r", (1, 2)), phase, 0.0)
    target = LEGAL.get((phase.value, move.value))
    if target is None:
        with pytest.raises(IllegalTransition, match=f"'{move.value}' is not legal in phase '{phase.value}'"):
            sequence.move(move)
        assert sequence.phase is phase, "an illegal move changed something"
    else:
        assert next_phase(phase, move).value == target
        sequence.move(move)
        assert sequence.phase.value == target


def test_every_phase_can_end_and_ended_is_final() -> None:
    for start in Phase:
        reached, frontier = {start}, [start]
        while frontier:
            here = frontier.pop()
            for (phase, _), to in TRANSITIONS.items():
                if phase is here and to not in reached:
                    reached.add(to)
                    frontier.append(to)
        assert Phase.ENDED in reached
    assert not [phase for phase, _ in TRANSITIONS if phase is Phase.ENDED]
