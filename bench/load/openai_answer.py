"""What an OpenAI-like server answers, as a record of it."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

from baton.bench.load.record import Outcome, Record, shared_out
from baton.bench.load.sse import SseError, SseReader

DONE = "[DONE]"
WORDS = ("content", "reasoning_content", "reasoning", "tool_calls")
_STATUS = {408: Outcome.TIMEOUT, 429: Outcome.REJECTED, 503: Outcome.REJECTED, 504: Outcome.TIMEOUT}


class Answer:
    """Feed it what comes. Of each piece of words the time is kept; tokens are what `usage` says in the end,
    shared out among the pieces, or else one per piece."""

    def __init__(self, record: Record) -> None:
        self._record = record
        self._reader = SseReader()
        self._finished_s: float | None = None
        self._used: int | None = None
        self.over = False

    def feed(self, piece: bytes, now_s: float) -> None:
        """SseError: no event stream."""
        for data in self._reader.feed(piece):
            if self.over:
                return
            if data.strip() == DONE:
                self._close()
            else:
                self._event(data, now_s)

    def end(self) -> None:
        """The stream is at its end."""
        if self._finished_s is not None and not self._reader.open:
            self._close()  # some servers leave out [DONE]
            return
        self._record.outcome = Outcome.DISCONNECTED
        self._record.error = "the stream ended before the answer did"

    def malformed(self, why: str) -> None:
        self._record.outcome = Outcome.MALFORMED
        self._record.error = why
        self.over = True

    def _event(self, data: str, now_s: float) -> None:
        try:
            event = json.loads(data)
        except ValueError:
            raise SseError(f"an event that is not JSON: {data[:80]!r}") from None
        if not isinstance(event, dict):
            raise SseError(f"an event that is no object: {data[:80]!r}")
        if event.get("error") is not None:
            self._record.outcome = Outcome.SERVER_ERROR
            self._record.error = message_of(event)
            self.over = True
            return
        choices, usage = event.get("choices"), event.get("usage")
        if not isinstance(choices, list) and not isinstance(usage, dict):
            raise SseError(f"an event with neither choices nor usage: {data[:80]!r}")
        for choice in choices if isinstance(choices, list) else ():
            self._choice(choice, now_s)
        if isinstance(usage, dict):
            self._usage(usage)

    def _choice(self, choice: Any, now_s: float) -> None:
        if not isinstance(choice, dict):
            raise SseError(f"a choice that is no object: {str(choice)[:80]!r}")
        delta = choice.get("delta")
        words = delta if isinstance(delta, dict) else {}
        if choice.get("text") or any(words.get(name) for name in WORDS):
            self._record.chunks.append((now_s, 1))
            self._record.output_tokens += 1
        if choice.get("finish_reason") is not None:
            self._finished_s = now_s

    def _usage(self, usage: dict[str, Any]) -> None:
        record = self._record
        record.used_prompt_tokens = _count(usage.get("prompt_tokens"))
        details = usage.get("prompt_tokens_details")
        record.cached_tokens = _count(details.get("cached_tokens")) if isinstance(details, dict) else None
        self._used = _count(usage.get("completion_tokens"))

    def _close(self) -> None:
        record = self._record
        self.over = True
        record.outcome = Outcome.OK
        if not self._used:
            return
        if not record.chunks and self._finished_s is not None:
            record.chunks.append((self._finished_s, 1))  # tokens without words
        record.output_tokens = self._used
        if self._used > len(record.chunks):
            shares = shared_out(self._used, len(record.chunks))
            record.chunks = [(at_s, n) for (at_s, _), n in zip(record.chunks, shares, strict=True)]


def refused(record: Record, status: int, retry_after: str | None, head: bytes) -> None:
    """An HTTP status that is not 200. head: the body's beginning."""
    record.outcome = _STATUS.get(status, Outcome.BAD_REQUEST if 400 <= status < 500 else Outcome.SERVER_ERROR)
    record.retry_after_s = retry_after_s(retry_after)
    try:
        why = message_of(json.loads(head))
    except ValueError:
        why = head.decode(errors="replace").strip()[:200]
    record.error = f"HTTP {status}: {why}" if why else f"HTTP {status}"


def message_of(answer: Any) -> str:
    """Of an error in OpenAI's shape, or near it."""
    error = answer.get("error", answer) if isinstance(answer, dict) else answer
    if isinstance(error, dict):
        error = error.get("message") or error.get("detail") or error
    return str(error)[:200]


def retry_after_s(header: str | None) -> float | None:
    """Seconds, or a date (RFC 9110, 10.2.3). None: neither."""
    if header is None:
        return None
    if re.fullmatch(r"\s*[0-9]+\s*", header):
        return float(header)
    try:
        left = parsedate_to_datetime(header) - datetime.now(UTC)
    except (ValueError, TypeError):  # a date without a zone, too
        return None
    return max(0.0, left.total_seconds())


def _count(value: Any) -> int | None:
    return value if type(value) is int and value >= 0 else None
