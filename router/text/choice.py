"""The text of one choice: tokens in, text out, cut exactly where a stop string completes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from baton.core.batch import TokenLogprobs
from baton.router.text.detokenize import Detokenizer
from baton.router.text.stop import StopMatcher


@dataclass(frozen=True, slots=True)
class Delta:
    """What one push gave. token_ids and logprobs: those that count, up to and including the one that
    completed the stop string; stop: that string, after which the choice is over."""

    text: str
    token_ids: Sequence[int]
    logprobs: Sequence[TokenLogprobs]
    stop: str | None = None


class ChoiceText:
    """Detokenizes and looks for stop strings. Every token is counted, also one that made no text.

    The end of a choice for another reason (EOS, length) is `finish`. A token that ends the choice and has no
    business in the text (EOS, a stop id) is passed as `silent`: counted, but not detokenized.
    """

    __slots__ = ("_detokenizer", "_done", "_matcher", "tokens")

    def __init__(
        self, detokenizer: Detokenizer, stops: Sequence[str] = (), *, include_stop: bool = False
    ) -> None:
        self._detokenizer = detokenizer
        self._matcher = StopMatcher(stops, include_stop) if stops else None
        self._done = False
        self.tokens = 0  # counted so far: the usage

    def push(
        self,
        token_ids: Sequence[int],
        logprobs: Sequence[TokenLogprobs] = (),
        *,
        silent: int = 0,
    ) -> Delta:
        """silent: how many of the last tokens make no text. logprobs: one per token, or none at all."""
        if self._done:
            raise ValueError("pushed to after the end")
        spoken = token_ids[: len(token_ids) - silent] if silent else token_ids
        if self._matcher is None:
            self.tokens += len(token_ids)
            return Delta(self._detokenizer.push(spoken), token_ids, logprobs)
        parts: list[str] = []
        for i in range(len(spoken)):
            text, stop = self._matcher.push(self._detokenizer.push(spoken[i : i + 1]))
            parts.append(text)
            if stop is not None:
                self._done = True
                self.tokens += i + 1
                return Delta("".join(parts), token_ids[: i + 1], logprobs[: i + 1], stop)
        self.tokens += len(token_ids)
        return Delta("".join(parts), token_ids, logprobs)

    def finish(self) -> Delta:
        """The last text: what was held back. Nothing after a stop string. May itself complete one (a stop
        string that ends in U+FFFD)."""
        if self._done:
            return Delta("", (), ())
        self._done = True
        tail = self._detokenizer.flush()
        if self._matcher is None:
            return Delta(tail, (), ())
        text, stop = self._matcher.push(tail)
        return Delta(text if stop is not None else text + self._matcher.flush(), (), (), stop)
