"""Perplexity of a text, computed by the runner that serves: paged KV, chunks, prompt logprobs.

The text is cut into windows that overlap, so that every token but the first ones is predicted from at least
`window - stride` tokens before it, and each is counted once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from baton.core.batch import Batch, Row
from baton.core.errors import InvalidArgument
from baton.core.request import SamplingParams
from baton.engine.runner import ModelRunner

# About 37,000 tokens of English prose and verse; see the README beside it.
TEXT = Path(__file__).parent / "data" / "alice.txt"

_SILENT = SamplingParams(temperature=0.0)
_SCORED = SamplingParams(temperature=0.0, prompt_logprobs=0)


@dataclass(frozen=True, slots=True)
class Perplexity:
    """tokens: how many were predicted. nll: their mean negative log-likelihood, in nats."""

    tokens: int
    nll: float

    @property
    def value(self) -> float:
        return math.exp(min(self.nll, 700.0))  # what still is a number


@dataclass(frozen=True, slots=True)
class Windows:
    """window: tokens that the model sees at once, at most. stride: by how many the next window is further on;
    the window's own length means that windows do not overlap."""

    window: int = 1024
    stride: int = 512

    def __post_init__(self) -> None:
        if self.window < 2:
            raise InvalidArgument(f"must be at least 2, got {self.window}", field="window")
        if not 1 <= self.stride <= self.window:
            raise InvalidArgument(
                f"must be from 1 to the window's {self.window}, got {self.stride}", field="stride"
            )

    def over(self, length: int) -> Iterator[tuple[int, int, int]]:
        """(start, first, end): tokens start..end-1 are seen, first..end-1 of them predicted."""
        start, first = 0, 1
        while first < length:
            end = min(start + self.window, length)
            yield start, first, end
            start, first = start + self.stride, max(end, start + self.stride + 1)


def blocks_for(windows: Windows, block_size: int, prefix: int = 0) -> int:
    """How many blocks the runner's pool must have, the null block included."""
    return 1 + -(-(windows.window + prefix) // block_size)


def perplexity(
    runner: ModelRunner,
    token_ids: Sequence[int],
    windows: Windows,
    *,
    block_size: int,
    prefix: Sequence[int] = (),
    progress: Callable[[int], None] | None = None,
) -> Perplexity:
    """prefix: put before every window and never predicted: the BOS of models that always see one. progress:
    is told after each window how many tokens have been predicted so far. InvalidArgument: the text has fewer
    than two tokens, or the model gives no numbers for it."""
    if len(token_ids) < 2:
        raise InvalidArgument(f"a text of {len(token_ids)} tokens predicts nothing", field="text")
    total: list[float] = []
    for start, first, end in windows.over(len(token_ids)):
        seen = [*prefix, *token_ids[start:end]]
        logprobs = _window(runner, seen, len(prefix) + first - start, block_size)
        if len(logprobs) != end - first:
            raise InvalidArgument("the model gives no numbers for this text", field="model")
        total.extend(logprobs)
        if progress is not None:
            progress(len(total))
    return Perplexity(len(total), -math.fsum(total) / len(total))


def _window(runner: ModelRunner, seen: list[int], first: int, block_size: int) -> list[float]:
    """Logprobs of the tokens from `first` on. The tokens before the one that predicts it come in a step of
    their own, for which no logits are made."""
    table = list(range(1, 1 + -(-len(seen) // block_size)))
    lead = first - 1

    def row(start: int, end: int, sampling: SamplingParams) -> Row:
        return Row(
            seq=("eval", 0),
            token_ids=seen[start:end],
            start=start,
            block_table=table,
            sample=False,
            sampling=sampling,
            history=seen,
            prompt_len=len(seen),
        )

    if lead:
        runner.run(Batch((row(0, lead, _SILENT),), clear=tuple(table)))
    scored = runner.run(
        # The last token predicts nothing.
        Batch((row(lead, len(seen) - 1, _SCORED),), clear=() if lead else tuple(table))
    )
    return [token.logprob for token in scored.rows[0].prompt_logprobs]
