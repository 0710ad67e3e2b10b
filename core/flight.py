"""The rows that run right now, and the endings that must wait for them.

Between a scheduler's `schedule` and `complete` the runner writes into the blocks of the scheduled
sequences, so an abort, a failure or a deadline in that time is only noted, and carried out on landing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from baton.core.batch import Row
from baton.core.errors import BatonError, IllegalTransition
from baton.core.node_effects import Key
from baton.core.request import FinishReason
from baton.core.sequence import Sequence
from baton.core.value import value


@value
class Ending:
    """Why and how a sequence is to end. error: only with reason ERROR."""

    reason: FinishReason
    error: BatonError | None = None
    silent: bool = False


class Flight:
    """At most one batch at a time."""

    def __init__(self) -> None:
        self._rows: dict[Key, Row] = {}
        self._endings: dict[Key, Ending] = {}

    def __contains__(self, key: Key) -> bool:
        return key in self._rows

    def __len__(self) -> int:
        return len(self._rows)

    def must_be_landed(self) -> None:
        if self._rows:
            raise IllegalTransition("schedule was called before complete")

    def depart(self, rows: Iterable[Row]) -> None:
        self.must_be_landed()
        self._rows = {row.seq: row for row in rows}

    def defer(self, key: Key, ending: Ending) -> None:
        """End the sequence on landing. The first word counts: a repeated abort changes nothing."""
        self._endings.setdefault(key, ending)

    def land(self) -> list[tuple[Row, Ending | None]]:
        """What ran, each with the ending that came meanwhile."""
        landed = [(row, self._endings.get(key)) for key, row in self._rows.items()]
        self._rows, self._endings = {}, {}
        return landed


def row_for(sequence: Sequence, count: int, *, prompt_logprobs: bool = False) -> Row:
    """The next `count` uncomputed tokens of a sequence.

    The row shares the sequence's lists where it can: it is valid until the sequence's scheduler completes it.
    prompt_logprobs: whether what the request asks of them is wanted from this row (once is enough).
    """
    tokens, start = sequence.token_ids, sequence.computed
    end = start + count
    request = sequence.request
    sampling = request.sampling
    if sampling.prompt_logprobs is not None and not prompt_logprobs:
        sampling = replace(sampling, prompt_logprobs=None)
    whole = end == len(tokens)
    return Row(
        seq=sequence.key,
        token_ids=tokens[start:end],
        start=start,
        block_table=sequence.blocks,
        sample=whole,
        sampling=sampling,
        # The last token of a chunk gives the logprob of the first one of the next.
        history=tokens if whole or sampling.prompt_logprobs is not None else tokens[:end],
        prompt_len=len(request.prompt_ids),
        eos_token_ids=request.eos_token_ids,
    )
