"""One choice of a client's call: tokens come in from the driver, messages for the client go out.

What arrives between two writes becomes one message, or several if it is much. Text is made when a message is,
except where stop strings are given: those are looked for at once, so that the nodes stop as soon as one is
complete.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from baton.core.batch import TokenLogprobs
from baton.core.errors import BatonError
from baton.core.request import FinishReason, Request
from baton.proto.v1 import inference_pb2 as pb
from baton.router.events import Complete, Deliver, Outcome, Reject
from baton.router.text.choice import ChoiceText
from baton.router.text.detokenize import Detokenizer
from baton.runtime import codec
from baton.runtime.grpc_channel import PIECE_BYTES

ID_BYTES = 5  # of a token id on the wire, at most
UTF8_BYTES = 4  # of a character, at most
SMALL = 512  # ids and characters together that need no look at their size


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

    wake: called when `take` has something new. stop_found: tells the machine, given the request's id. words:
    None where the client wants no text and no stop string is looked for. `taken`: its last message was.
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
        self.taken = False
        self.piece_bytes = PIECE_BYTES
        self._words = words
        self._eager = words is not None and words.looks_for_stop
        self._wake = wake
        self._stop_found = stop_found
        self._stop: str | None = None
        self._stop_token: int | None = None
        ids = request.sampling.stop_token_ids
        self._ends = frozenset(ids if request.sampling.ignore_eos else (*ids, *request.eos_token_ids))
        self._ids: list[int] = []  # not sent yet
        self._spelt = 0  # so many of them are in the text already
        self._echo: deque[str] = deque()  # not sent yet, in pieces
        self._text = ""  # not sent yet
        self._flushed = False
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

    def begin_with(self, text: str) -> None:
        """Text to send before the answer's own."""
        most = self.piece_bytes // UTF8_BYTES
        self._echo.extend(text[start : start + most] for start in range(0, len(text), most))

    @property
    def backlog(self) -> bool:
        """Whether there is more to take at once."""
        return bool(self._ids or self._text or self._prompt_logprobs or self._echo)

    def take(self, *, with_text: bool) -> pb.GenerateResponse | None:
        """What is new, or the next piece of it if it is much; None: nothing is. The last sets `taken`."""
        if self.taken or not (self.backlog or self.ended):
            return None
        self._spell()
        long = self._logprobs or self._prompt_logprobs or self._echo
        if long or len(self._ids) + len(self._text) > SMALL:
            message = self._take_piece(with_text=with_text)
        else:  # nearly all
            text = self._text if with_text else ""
            message = pb.GenerateResponse(index=self.index, token_ids=self._ids, text=text)
            self._ids, self._spelt, self._text = [], 0, ""
        if self.ended and not self.backlog:
            self._conclude(message)
        return message

    def _take_piece(self, *, with_text: bool) -> pb.GenerateResponse:
        message = pb.GenerateResponse(index=self.index)
        self._take_text(message, with_text=with_text)
        self._take_prompt_logprobs(message)
        if not self._prompt_logprobs:  # all of them come before the first token
            self._take_ids(message)
        return message

    def _spell(self) -> None:
        """Make the text of new tokens, and at the end what was held back."""
        if self._words is None:
            return
        if not self._eager and self._spelt < len(self._ids):
            self._text += self._words.push(self._ids[self._spelt :], self._silent)[0]
            self._spelt = len(self._ids)
        if self.ended and self._stop is None and not self._flushed:
            self._flushed = True
            rest, self._stop = self._words.finish()
            self._text += rest
            if self._stop is not None:
                self.reason = FinishReason.STOP

    def _take_text(self, message: pb.GenerateResponse, *, with_text: bool) -> None:
        if not with_text:
            self._text = ""
        elif self._echo:
            message.text = self._echo.popleft()
            if not self._echo and (len(message.text) + len(self._text)) * UTF8_BYTES <= self.piece_bytes:
                message.text += self._text
                self._text = ""
        elif len(self._text) * UTF8_BYTES <= self.piece_bytes:
            message.text, self._text = self._text, ""
        else:
            most = self.piece_bytes // UTF8_BYTES
            message.text, self._text = self._text[:most], self._text[most:]

    def _take_prompt_logprobs(self, message: pb.GenerateResponse) -> None:
        if entries := self._prompt_logprobs:
            count = self._fitting(entries)
            message.prompt_logprobs.extend(codec.logprobs_to_proto(entries[:count]))
            self._prompt_logprobs = entries[count:]

    def _take_ids(self, message: pb.GenerateResponse) -> None:
        ids, logprobs = self._ids, self._logprobs
        count = self._fitting(logprobs) if logprobs else self.piece_bytes // ID_BYTES
        message.token_ids.extend(ids[:count])
        self._ids = ids[count:]
        self._spelt = max(0, self._spelt - count)
        if logprobs:
            message.logprobs.extend(codec.logprobs_to_proto(logprobs[:count]))
            self._logprobs = logprobs[count:]

    def _fitting(self, entries: Sequence[TokenLogprobs]) -> int:
        """How many make a piece. All entries of a request have lists of about the same length."""
        return max(1, self.piece_bytes // (codec.LOGPROB_BYTES * (1 + len(entries[0].top))))

    def _conclude(self, message: pb.GenerateResponse) -> None:
        self.taken = True
        if self.reason is not None:
            message.finish_reason = codec.reason_to_proto(self.reason)
            if self._stop is not None:
                message.stop_text = self._stop
            elif self.reason is FinishReason.STOP and self._stop_token is not None:
                message.stop_token_id = self._stop_token
