"""What a node's own steps take, and how many prompt tokens fit into one beside the rows that it decodes."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence

from baton.core.batch import Row
from baton.core.fitted_cost import FittedCost
from baton.node.samples import KEEP, Sample, as_one_chunk

THIN_AFTER = 64  # steps of a kind measured, from which on every THIN_OUT-th tells enough
THIN_OUT = 8
QUANTILE = 0.8  # so many of the steps are to keep the limit
FEW = 16  # decode steps without prompts; as long as there were fewer, those with prompts must tell
LEAST_PART = 0.1  # of a mixed step's time is decode's, whatever its prompt tokens are thought to take


class Pace:
    """Mixed steps are taken to cost what decode alone does, and what their prompt tokens add.

    Decode steps are looked at when somebody asks: of a node without prompts nobody does.

    step_tokens: the most of prompts in one step."""

    def __init__(self, step_tokens: int) -> None:
        self._cost = FittedCost(step_tokens=step_tokens)
        self._prompts = self._steps = 0  # steps of prompts alone, and those of decode
        self._alone = 0  # decode steps without prompts
        self._decoded: deque[Sample] = deque(maxlen=KEEP)

    def observe(self, rows: Sequence[Row], decode_rows: int, seconds: float) -> None:
        """A step that ran. Of mixed ones, see `decode_part`."""
        if 0 < decode_rows < len(rows) or not rows:
            return
        if not decode_rows:
            self._prompts += 1
            if _tells(self._prompts):
                self._cost.observe_prefill(*as_one_chunk(rows), seconds)
            return
        self._alone += 1
        self._steps += 1
        if _tells(self._steps):
            self._decoded.append((decode_rows, sum(row.context for row in rows), seconds))

    def decode_part(self, rows: Sequence[Row], decode_rows: int, seconds: float) -> Sample | None:
        """What decode took of a mixed step, by what its prompt tokens usually add; observed, too. None: other
        steps told enough. A node that gets work faster than it does it runs no others from the first on."""
        if not 0 < decode_rows < len(rows) or self._alone >= FEW or not self._cost.samples[0]:
            return None
        tokens, before = as_one_chunk(rows[decode_rows:])
        _, each_s, pair_s = self._cost.as_prior().prefill
        added_s = each_s * tokens + pair_s * tokens * (before + tokens / 2)
        context = sum(row.context for row in rows[:decode_rows])
        sample = (decode_rows, context, max(seconds - added_s, LEAST_PART * seconds))
        self._decoded.append(sample)
        return sample

    def observe_steady(self, rows: int, context: int, seconds: Sequence[float]) -> None:
        """Decode steps that followed one another, the first over `context` tokens, each over `rows` more."""
        self._alone += len(seconds)
        first, self._steps = self._steps + 1, self._steps + len(seconds)
        every = 1 if first <= THIN_AFTER else THIN_OUT
        self._decoded.extend(
            [
                (rows, context + number * rows, seconds[number])
                for number in range(-first % every, len(seconds), every)
                if _tells(first + number)
            ]
        )

    @property
    def token_s(self) -> float:
        """Seconds per prompt token."""
        return self._cost.prefill_token_s()

    def prompt_tokens(self, rows: Sequence[Row], limit_s: float, context: int) -> int:
        """How many prompt tokens, after `context` earlier ones, may join decode rows in a step of limit_s."""
        while self._decoded:
            self._cost.observe_decode_step(*self._decoded.popleft())
        factor = self._cost.decode_factor(QUANTILE)
        taken_s = self._cost.decode_mean_s(len(rows), sum(row.context for row in rows)) * factor
        _, each_s, pair_s = self._cost.as_prior().prefill
        left_s = limit_s - taken_s
        slope_s = each_s + pair_s * context
        if left_s <= 0.0:
            return 0
        if pair_s <= 0.0:
            return round(left_s / slope_s) if slope_s > 0.0 else 1 << 30
        # slope n + pair n^2 / 2 = left
        return int((math.sqrt(slope_s**2 + 2.0 * pair_s * left_s) - slope_s) / pair_s)


def _tells(step: int) -> bool:
    """Whether the n-th step of its kind is worth a look."""
    return step <= THIN_AFTER or step % THIN_OUT == 0
