"""The engine of a node that shares its host: its steps take longer while others run theirs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

from baton.core.batch import Row
from baton.node.core import NodeCore, Out
from baton.sim.engine import Engine
from baton.sim.host import PROMPT, Beside
from baton.sim.hub import Hub
from baton.sim.spec import NodeSpec


class HostedEngine(Engine):
    """What begins or ends beside a step changes the pace of what is left of it, and ends a leap."""

    def __init__(
        self,
        hub: Hub,
        core: NodeCore,
        spec: NodeSpec,
        dice: Random,
        emit: Callable[[Sequence[Out]], None],
        beside: Beside,
    ) -> None:
        super().__init__(hub, core, spec, dice, emit)
        self._host = hub.host(spec.host)
        self._beside = beside
        self._alone = spec.pace
        self._kind = PROMPT
        self._held_up = 1.0  # so many times as long as alone the step under way takes

    def set_pace(self, pace: float) -> None:
        super().set_pace(pace)
        self._alone = pace

    def repace(self) -> None:
        if not self._ends:
            return
        self._cut(self._clock.now)
        before, now, end_s = self._held_up, self._clock.now, self._ends[-1]
        self._held_up = self._beside.pace(self._kind, self._host.beside(self))
        later_s = now + (end_s - now) * (self._held_up / before)
        self._ends[-1] = later_s
        self._seconds[-1] += later_s - end_s
        self._set_timer(later_s, self._land)

    def stop(self) -> None:
        super().stop()
        self._host.runs(self, None)

    def _turn(self) -> None:
        super()._turn()
        if not self._ends:
            self._host.runs(self, None)

    def _depart(self, rows: tuple[Row, ...]) -> None:
        decode = self.core.decode_rows
        self._kind = decode if decode == len(rows) else PROMPT
        self._host.runs(self, self._kind)
        self._held_up = self._beside.pace(self._kind, self._host.beside(self))
        self._pace = self._alone * self._held_up
        super()._depart(rows)
