"""One choice of a client's call: tokens come in from the driver, messages for the client go out.

What arrives between two writes becomes one message. Text is made when a message is, except where stop strings
are given: those are looked for at once, so that the nodes stop as soon as one is complete.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from baton.core.batch import TokenLogprobs
from baton.core.errors import BatonError
from baton.core.request import FinishReason, Request
from baton.proto.v1 import inference_pb2 as pb
from baton.router.events import Complete, Deliver, Outcome, Reject
from baton.router.text.choice import ChoiceText
from baton.router.text.detokenize import Detokenizer
from baton.runtime import codec


class Words:
    """The text of one choice: stop strings count only in what follows the first `min_tokens` tokens."""

    def __init__(
        self, detokenizer: Detokenizer, stops: Sequence[str] = (), *, include_stop: bool, min_tokens: int
    ) -> None:
        self.looks_for_stop = bool(stops)
        self.include_stop = include_stop
        self._matching = ChoiceText(detokenizer, stops, include_stop=include_stop)
        self._plain = ChoiceText(detokenizer) if stops and min_tokens else None
        self._plain_left = min_tokens

    def push(self, token_ids: Sequence[int], silent: int) -> tuple[str, int, str | None]:
        """Text, how many of the tokens count, and the stop string that the last of those completed. silent:
        how many of the last tokens make no text."""
        before, text = 0, ""
        if self._plain is not None:
            before = min(self._plain_left, len(token_ids))
            text = self._plain.push(token_ids[:before], silent=max(0, silent + before - len(token_ids))).text
            self._plain_left -= before
            if self._plain_left == 0:
                self._plain = None
            token_ids = token_ids[before:]
            silent = min(silent, len(token_ids))
        delta = self._matching.push(token_ids, silent=silent)
        return text + delta.text, before + len(delta.token_ids), delta.stop

    def finish(self) -> tuple[str, str | None]:
        """What was held back, and the stop string that it completed after all."""
        delta = self._matching.finish()
        return delta.text, delta.stop


class Choice:
    """The driver's Outlet for one request.

    wake: called when `take` has something new. stop_found: tells the machine, given the request's id. text:
    None where the client wants none and no stop string is looked for.
    """

    def __init__(
        self,
        request: Request,
        index: int,
        words: Words | None,
        wake: Callable[[], None],
        stop_found: Callable[[str], None],
    ) -> None:
        self.request = request
        self.index = index
        self.output_tokens = 0
        self.outcome: Outcome | None = None
        self.reason: FinishReason | None = None
        self.error: BatonError | None = None
        self._words = words
        self._eager = words is not None and words.looks_for_stop
        self._wake = wake
        self._stop_found = stop_found
        self._stop: str | None = None
        self._stop_token: int | None = None
        ids = request.sampling.stop_token_ids
        self._ends = frozenset(ids if request.sampling.ignore_eos else (*ids, *request.eos_token_ids))
        self._ids: list[int] = []  # not sent yet
        self._text = ""  # of tokens that were looked at for stop strings, not sent yet
        self._logprobs: list[TokenLogprobs] = []
        self._prompt_logprobs: list[TokenLogprobs] = []

    @property
    def ended(self) -> bool:
        return self.outcome is not None

    # -- the driver's side ----------------------------------------------------------------------------------

    def deliver(self, effect: Deliver) -> None:
        if self._stop is not None:
            return  # sampled before the nodes knew of the stop string
        ids = effect.token_ids
        if ids and ids[-1] in self._ends:
            self._stop_token = ids[-1]  # the model's own end, or a stop id: only ever the last one
        kept = self._look_for_stop(ids) if self._eager else len(ids)
        self._ids.extend(ids[:kept])
        self.output_tokens += kept
        if effect.logprobs:
            self._logprobs.extend(effect.logprobs[:kept])
        if effect.prompt_logprobs:
            self._prompt_logprobs.extend(effect.prompt_logprobs)
        if self._stop is not None:
            self._stop_found(self.request.id)
        self._wake()

    def complete(self, effect: Complete) -> None:
        self.reason = effect.reason if self._stop is None else FinishReason.STOP
        self.outcome = effect.outcome
        self._wake()

    def reject(self, effect: Reject) -> None:
        self.outcome = effect.outcome
        if self._stop is None:
            self.error = effect.error
        else:  # its answer was complete before anything went wrong
            self.reason = FinishReason.STOP
        self._wake()

    def _look_for_stop(self, ids: Sequence[int]) -> int:
        """Make the tokens' text now; returns how many of them count."""
        assert self._words is not None
        text, kept, self._stop = self._words.push(ids, self._silent)
        self._text += text
        return kept

    @property
    def _silent(self) -> int:
        """A token that ends the choice is counted and reported, but is not part of the text."""
        return int(self._stop_token is not None and self._words is not None and not self._words.include_stop)

    # -- the stream's side ----------------------------------------------------------------------------------

    def take(self, *, with_text: bool) -> pb.GenerateResponse | None:
        """All that is new, as one message; None: nothing is. The message of an ended choice is its last."""
        if not (self._ids or self.ended or self._prompt_logprobs):
            return None
        text = self._take_text()
        message = pb.GenerateResponse(index=self.index, token_ids=self._ids, text=text if with_text else "")
        self._ids = []
        if self._logprobs:
            message.logprobs.extend(codec.logprobs_to_proto(self._logprobs))
            self._logprobs = []
        if self._prompt_logprobs:
            message.prompt_logprobs.extend(codec.logprobs_to_proto(self._prompt_logprobs))
            self._prompt_logprobs = []
        if self.reason is not None:
            message.finish_reason = codec.reason_to_proto(self.reason)
            if self._stop is not None:
                message.stop_text = self._stop
            elif self.reason is FinishReason.STOP and self._stop_token is not None:
                message.stop_token_id = self._stop_token
        return message

    def _take_text(self) -> str:
        text, self._text = self._text, ""
        if self._words is None:
            return ""
        if not self._eager and self._ids:
            text = self._words.push(self._ids, self._silent)[0]
        if self.ended and self._stop is None:
            rest, self._stop = self._words.finish()
            text += rest
            if self._stop is not None:
                self.reason = FinishReason.STOP
        return text
