"""One client's Generate call: its choices, and the loop that writes their messages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from baton.core.request import FinishReason, Request
from baton.proto.v1 import inference_pb2 as pb
from baton.router.choice import Choice, Words
from baton.router.driver import Driver
from baton.router.pacer import Pacer, Waiter
from baton.router.prepare import Job
from baton.router.timings import timings


class GenerateStream:
    """words: the text of a choice; None: none is wanted. received_s: when the call came in. echo_chars:
    length of the text before each choice's own."""

    def __init__(
        self,
        job: Job,
        driver: Driver,
        pacer: Pacer,
        words: Callable[[Request], Words] | None,
        received_s: float,
    ) -> None:
        self.job = job
        self.choices: list[Choice] = []
        self.echo_chars = 0
        self.on_tokens: Callable[[int, float | None], None] = lambda count, interval_s: None
        self._driver = driver
        self._pacer = pacer
        self.received_s = received_s
        self._waiter = Waiter()
        self._written_s: dict[int, float] = {}
        for index, request in enumerate(job.requests):
            own = None if words is None else words(request)
            choice = Choice(request, index, own, self._wake, self._stop_found)
            choice.piece_bytes = job.piece_bytes
            self.choices.append(choice)

    def begin_with(self, text: str) -> None:
        """Put `text` before each choice's own."""
        self.echo_chars = len(text)
        for choice in self.choices:
            choice.begin_with(text)

    async def run(self, write: Callable[[pb.GenerateResponse], Any], deadline_s: float | None) -> None:
        """Submit, write until every choice has ended. Raises a choice's error, or whatever `write` does; the
        machine is told of everything that is then still open."""
        try:
            for choice in self.choices:
                self._driver.submit(choice.request, deadline_s, choice)
            open_choices, first = list(self.choices), set(self.choices)
            while open_choices:
                await self._waiter.wait()
                for choice in list(open_choices):
                    if choice.error is not None:
                        raise choice.error
                    more = True
                    while more:
                        message = choice.take(with_text=not self.job.tokens_only)
                        if message is None:
                            break
                        more = choice.backlog
                        if choice.taken:
                            open_choices.remove(choice)
                        if choice in first:
                            first.discard(choice)
                            message.request_id = self.job.client_id
                        if not open_choices:
                            self._conclude(message)
                        self._count(choice, len(message.token_ids))
                        await write(message)
        finally:
            for choice in self.choices:
                if not choice.ended:
                    self._driver.cancel(choice.request.id)

    def _count(self, choice: Choice, tokens: int) -> None:
        if tokens:
            now, last = self._driver.now(), self._written_s.get(choice.index)
            self._written_s[choice.index] = now
            self.on_tokens(tokens, None if last is None else now - last)

    def _conclude(self, message: pb.GenerateResponse) -> None:
        outcomes = [choice.outcome for choice in self.choices if choice.outcome is not None]
        made = [choice.output_tokens for choice in self.choices]
        message.usage.CopyFrom(
            pb.Usage(
                prompt_tokens=len(self.job.requests[0].prompt_ids),
                completion_tokens=sum(made),
                cached_tokens=outcomes[0].cached_tokens,
            )
        )
        message.timings.CopyFrom(timings(outcomes, self.received_s, made))

    def _wake(self) -> None:
        self._pacer.notify(self._waiter)

    def _stop_found(self, request_id: str) -> None:
        self._driver.cancel(request_id, FinishReason.STOP)


def echo_text(job: Job, decode: Callable[[Sequence[int], bool], str]) -> str:
    """The prompt as text: as the client wrote it, or decoded."""
    if not job.echo or job.tokens_only:
        return ""
    return job.text if job.text is not None else decode(job.requests[0].prompt_ids, job.skip_special_tokens)
