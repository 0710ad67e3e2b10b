"""The engine thread of a simulated node: the turns of `node.engine_thread`, with modelled steps.

Steps whose batch stays the same are taken in one leap, to the end of a sequence or the next deadline. What
comes meanwhile ends the leap with the step that is under way: there it is read, as it would be step by step.
Tokens of a leap come together, at its end or when somebody looks.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from functools import cache
from itertools import accumulate
from random import Random

from baton.core.batch import Row, RowOutput, StepOutput
from baton.node.commands import Command, Reserve
from baton.node.core import NodeCore, Out
from baton.sim.clock import Entry
from baton.sim.cost import StepWork
from baton.sim.hub import Hub
from baton.sim.sampling import run, token
from baton.sim.spec import NodeSpec

MAX_LEAP = 32  # a leap that is cut short was computed in vain
MIN_NOISE = 0.2
NOISE_TURNS = 4093
_dice = Random(NOISE_TURNS)
NORMAL = tuple(_dice.gauss(0.0, 1.0) for _ in range(NOISE_TURNS))
"""Standard normal deviates, which every node goes through from a place of its own."""


class Engine:
    """busy_s: seconds of steps so far. emit: gets each turn's effects."""

    def __init__(
        self, hub: Hub, core: NodeCore, spec: NodeSpec, dice: Random, emit: Callable[[Sequence[Out]], None]
    ) -> None:
        self.core = core
        self.busy_s = 0.0
        self._pace = spec.pace
        self._hub = hub
        self._clock = hub.clock
        self._node_id = spec.node_id
        self._cost = spec.profile.cost
        self._factors = _factors(spec.profile.noise)
        self._turn_of_noise = (dice.randrange(NOISE_TURNS) + 1) % NOISE_TURNS
        self._emit = emit
        self._mail: list[Command] = []
        self._timer: Entry | None = None  # the next turn, or the end of what is under way
        self._timer_s = 0.0
        self._look: Entry | None = None  # into the mail, between steps of a leap that goes on
        self._rows: tuple[Row, ...] = ()
        self._ends: list[float] = []  # of the steps under way
        self._seconds: list[float] = []
        self._plain = False  # nothing but a token for each row
        self._stopped = False

    @property
    def decoding(self) -> tuple[Row, ...]:
        """Decode's rows of the step under way."""
        return self._rows[: self.core.decode_rows] if self._ends else ()

    @property
    def running(self) -> bool:
        """A step is under way."""
        return bool(self._ends)

    @property
    def age_s(self) -> float:
        """Since the core last read its mail: when the step under way began."""
        return self._clock.now - (self._ends[0] - self._seconds[0]) if self._ends else 0.0

    def post(self, command: Command) -> None:
        """It is read at the next turn, which is now if no step is under way."""
        self._mail.append(command)
        if not self._ends:
            self._wake(self._clock.now)
        elif self._leaves_alone(command):
            end_s = self._ends[bisect_left(self._ends, self._clock.now)]
            if self._look is None and end_s < self._ends[-1]:
                self._look = self._clock.at(end_s, self._read)
        else:
            self._cut(self._clock.now)

    def set_pace(self, pace: float) -> None:
        """Steps take so many times as long as the profile says, from the next one on."""
        self._cut(self._clock.now)
        self._pace = pace

    def settle(self) -> None:
        """Have the core show what has come of the steps that are over."""
        over = bisect_right(self._ends, self._clock.now)
        if not 0 < over < len(self._ends):
            return
        keys = [row.seq for row in self._rows]
        self._complete(over)
        self._rows = self.core.schedule(self._clock.now)
        self.core.take_dirty()
        assert [row.seq for row in self._rows] == keys, "a steady batch changed"
        del self._ends[:over], self._seconds[:over]
        self._flush()

    def stop(self) -> None:
        """The process is dead: nothing more happens here."""
        self.settle()
        self._stopped = True
        self._clock.cancel(self._timer)
        self._clock.cancel(self._look)

    # ---- turns -------------------------------------------------------------------------------------------

    def _wake(self, when: float) -> None:
        if self._stopped or (self._timer is not None and self._timer_s <= when):
            return
        self._set_timer(when, self._turn)

    def _set_timer(self, when: float, action: Callable[[], None]) -> None:
        self._clock.cancel(self._timer)
        self._timer_s = when
        self._timer = self._clock.at(when, action)

    def _turn(self) -> None:
        self._clock.cancel(self._timer)
        self._timer = None
        core, now = self.core, self._clock.now
        self._handle(now)
        wakeup = core.next_wakeup() if core.quiet else now
        if wakeup is not None and wakeup <= now:
            core.tick(now)
            self._rows = core.schedule(now)
            core.take_dirty()
        if self._rows:
            self._depart(self._rows)
        self._flush()
        if not self._rows and (wakeup := core.next_wakeup()) is not None:
            self._wake(wakeup)

    def _handle(self, now: float) -> None:
        self._hub.touched.add(self._node_id)
        mail, self._mail = self._mail, []
        for command in mail:
            self.core.handle(now, command)

    def _leaves_alone(self, command: Command) -> bool:
        """It can be read between steps of the leap, which takes what it takes all the same: room for a
        hand-off, of which there is enough without anybody's giving way."""
        core, kv = self.core, self.core.kv
        if not isinstance(command, Reserve) or not self._plain or len(self._mail) > 1 or core.sink.waits:
            return False
        ahead = len(self._rows) * (MAX_LEAP // kv.block_size + 2) + core.decode.headroom_blocks()
        return kv.blocks_for(command.request.prefill_tokens) + ahead <= kv.available

    def _read(self) -> None:
        """A turn that leaves the leap alone, unless something becomes due in it, or the newcomer takes the
        blocks that it was to take. It finds what the steps until then have brought: a block that they filled
        may be the newcomer's, too."""
        self._look = None
        self.settle()
        now = self._clock.now
        self._handle(now)
        self.core.tick(now)
        self._keep(self.core.steady_steps(len(self._ends)))
        if (wakeup := self.core.next_wakeup()) is not None:
            self._cut(wakeup)
        self._flush()

    def _depart(self, rows: tuple[Row, ...]) -> None:
        work = work_of(rows, self.core.decode_rows)
        self._plain = self._hub.leaps and not work.chunks and all(row.sample for row in rows)
        if self._plain:
            seconds = self._leap(work, self._steady(rows))
        else:
            seconds = [self._cost.step_s(work) * self._pace * self._noise(1)[0]]
        ends = list(accumulate(seconds, initial=self._clock.now))
        until_s = self.core.next_wakeup() if len(seconds) > 1 else None
        last = len(seconds) if until_s is None else min(len(seconds), bisect_left(ends, until_s, 1))
        self._ends, self._seconds = ends[1 : last + 1], seconds[:last]
        self._used(last)
        self._set_timer(self._ends[-1], self._land)

    def _leap(self, work: StepWork, steps: int) -> list[float]:
        """Seconds of as many decode steps, each over a token more of each row."""
        rows, pace = work.rows, self._pace
        contexts = range(work.context, work.context + steps * rows, rows)
        noise = self._noise(steps)
        lines = self._cost.decode_lines(rows)
        first, last = ([line[0] + line[1] * at for line in lines] for at in (contexts[0], contexts[-1]))
        slowest = first.index(max(first))
        if slowest == last.index(max(last)):  # at both ends, so all the way
            fixed_s, each_s = lines[slowest]
            return [(fixed_s + each_s * at) * pace * each for at, each in zip(contexts, noise, strict=True)]
        curves = [[fixed_s + each_s * at for at in contexts] for fixed_s, each_s in lines]
        return [step_s * pace * each for step_s, each in zip(map(max, *curves), noise, strict=True)]

    def _steady(self, rows: Sequence[Row]) -> int:
        """Steps until a sequence ends, or until the batch would change by itself."""
        left = min([row.sampling.seed - len(row.history) + row.prompt_len for row in rows])
        return self.core.steady_steps(min(left, MAX_LEAP)) if left > 1 else 1

    def _cut(self, when: float) -> None:
        """End the leap with the step that is under way then."""
        self._clock.cancel(self._look)
        self._look = None
        self._keep(bisect_left(self._ends, when) + 1)

    def _keep(self, steps: int) -> None:
        """Leave away those after the next so many."""
        if steps < len(self._ends):
            self._used(steps - len(self._ends))
            del self._ends[steps:], self._seconds[steps:]
            self._set_timer(self._ends[-1], self._land)

    def _land(self) -> None:
        self._complete(len(self._ends))
        self._rows = ()
        self._ends.clear()
        self._seconds.clear()
        self._timer = None
        self._flush()
        self._turn()

    def _complete(self, steps: int) -> None:
        seconds = self._seconds[:steps]
        self.busy_s = sum(seconds, self.busy_s)
        if self._plain:
            self.core.complete_steps(
                [run(len(row.history) - row.prompt_len, steps, row.sampling.seed) for row in self._rows],
                seconds,
            )
            return
        outputs = tuple([RowOutput(row.seq, _token(row)) for row in self._rows])
        self.core.complete(self._clock.now, StepOutput(outputs, duration_s=seconds[0]))

    def _flush(self) -> None:
        outs = self.core.drain(report=False)
        if outs:
            self._emit(outs)

    def _noise(self, steps: int) -> tuple[float, ...]:
        """What the next steps' times are multiplied with."""
        return self._factors[self._turn_of_noise : self._turn_of_noise + steps]

    def _used(self, steps: int) -> None:
        """So many more were taken; less than none: a leap did not come to them."""
        self._turn_of_noise = (self._turn_of_noise + steps) % NOISE_TURNS


@cache
def _factors(sigma: float) -> tuple[float, ...]:
    """What the times of steps are multiplied with, one after the other; a leap more than a turn of them."""
    turn = tuple(max(MIN_NOISE, 1.0 + sigma * deviate) for deviate in NORMAL)
    return turn + turn[:MAX_LEAP]


def _token(row: Row) -> int | None:
    return token(len(row.history) - row.prompt_len, row.sampling.seed) if row.sample else None


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
