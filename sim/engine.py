"""The engine thread of a simulated node: the turns of `node.engine_thread`, with modelled steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

from baton.core.batch import Row, RowOutput, StepOutput
from baton.core.node_effects import Key
from baton.node.commands import Command
from baton.node.core import NodeCore, Out
from baton.sim.clock import Entry
from baton.sim.cost import StepWork
from baton.sim.hub import Hub
from baton.sim.sampling import token
from baton.sim.spec import NodeSpec

MIN_NOISE = 0.2


class Engine:
    """busy_s: seconds of steps so far. pace: factor on every step's time from now on."""

    def __init__(
        self, hub: Hub, core: NodeCore, spec: NodeSpec, dice: Random, emit: Callable[[Sequence[Out]], None]
    ) -> None:
        self.core = core
        self.pace = spec.pace
        self.busy_s = 0.0
        self._hub = hub
        self._clock = hub.clock
        self._profile = spec.profile
        self._node_id = spec.node_id
        self._dice = dice
        self._emit = emit
        self._mail: list[Command] = []
        self._timer: Entry | None = None  # the next turn, while nothing runs
        self._timer_s = 0.0
        self._running: tuple[Row, ...] = ()
        self._stopped = False

    @property
    def running(self) -> bool:
        """A step is under way."""
        return bool(self._running)

    def post(self, command: Command) -> None:
        """It is read at the next turn, which is now if no step is under way."""
        self._mail.append(command)
        if not self._running:
            self._wake(self._clock.now)

    def settle(self) -> None:
        """Have the core show what has come of the steps that are over."""

    def forget(self, key: Key) -> None:
        """The router does not want to hear of that request any more."""

    def stop(self) -> None:
        """The process is dead: nothing more happens here."""
        self._stopped = True
        self._clock.cancel(self._timer)

    # ---- turns -------------------------------------------------------------------------------------------

    def _wake(self, when: float) -> None:
        if self._stopped or (self._timer is not None and self._timer_s <= when):
            return
        self._clock.cancel(self._timer)
        self._timer_s = when
        self._timer = self._clock.at(when, self._turn)

    def _turn(self) -> None:
        self._clock.cancel(self._timer)
        self._timer = None
        self._hub.touched.add(self._node_id)
        core, now = self.core, self._clock.now
        mail, self._mail = self._mail, []
        for command in mail:
            core.handle(now, command)
        core.tick(now)
        rows = core.schedule(now)
        core.take_dirty()
        if rows:
            self._depart(rows)
        self._flush()
        if not rows:
            if self._mail:
                self._wake(now)
            elif (wakeup := core.next_wakeup()) is not None:
                self._wake(wakeup)

    def _depart(self, rows: tuple[Row, ...]) -> None:
        self._running = rows
        seconds = self._step_s(rows)
        self._clock.at(self._clock.now + seconds, self._land, seconds)

    def _land(self, seconds: float) -> None:
        if self._stopped:
            return
        rows, self._running = self._running, ()
        self.busy_s += seconds
        outputs = tuple([RowOutput(row.seq, self._token(row)) for row in rows])
        self.core.complete(self._clock.now, StepOutput(outputs, duration_s=seconds))
        self._flush()
        self._turn()

    def _flush(self) -> None:
        outs = self.core.drain(report=False)
        if outs:
            self._emit(outs)

    # ---- a step ------------------------------------------------------------------------------------------

    def _token(self, row: Row) -> int | None:
        if not row.sample:
            return None
        return token(len(row.history) - row.prompt_len, self._hub.lengths.get(row.seq[0], 1))

    def _step_s(self, rows: Sequence[Row]) -> float:
        return self._profile.cost.step_s(work_of(rows, self.core.decode_rows)) * self.pace * self._noise()

    def _noise(self) -> float:
        sigma = self._profile.noise
        return max(MIN_NOISE, self._dice.gauss(1.0, sigma)) if sigma else 1.0


def work_of(rows: Sequence[Row], decode_rows: int) -> StepWork:
    """decode_rows: how many of the first rows are decode's. What is computed again there counts as prompt."""
    count = context = tokens = chunks = 0
    pairs = 0.0
    for number, row in enumerate(rows):
        length = len(row.token_ids)
        if length == 1 and number < decode_rows:
            count += 1
            context += row.start + 1
        else:
            chunks += 1
            tokens += length
            pairs += length * (row.start + length / 2)
    return StepWork(tokens, pairs, chunks, count, context)
