"""An answer as JSON: completions and chats, whole and in chunks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from baton.core.request import FinishReason
from baton.router.http.logprobs import CompletionLogprobs, TokenBytes, of_chat
from baton.router.http.parts import Part
from baton.router.http.requests import Asked

_FINISH = {
    None: None,
    FinishReason.STOP: "stop",
    FinishReason.LENGTH: "length",
    FinishReason.CANCELLED: "cancelled",
    FinishReason.ERROR: "error",
}


class ChoiceShape(Protocol):
    """One choice's. Either `whole` once, or `chunk` for every part."""

    def whole(self, part: Part) -> dict[str, Any]: ...

    def chunk(self, part: Part) -> dict[str, Any]: ...


@dataclass(frozen=True, slots=True)
class Envelope:
    """What every object of an answer begins with."""

    id: str
    kind: str
    created: int
    model: str
    fingerprint: str | None

    def around(self, choices: Sequence[dict[str, Any]], **more: Any) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": self.kind,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": self.fingerprint,
            "choices": choices,
            **more,
        }


class CompletionChoice:
    """prompt_ids: of its prompt. A chunk is shaped as the whole is."""

    prefix, whole_kind, chunk_kind = "cmpl", "text_completion", "text_completion"

    def __init__(self, index: int, asked: Asked, prompt_ids: Sequence[int], token_bytes: TokenBytes) -> None:
        self._index = index
        self._asked = asked
        self._prompt_ids = prompt_ids
        self._begun = False
        self._logprobs = CompletionLogprobs(token_bytes) if asked.logprobs else None

    def whole(self, part: Part) -> dict[str, Any]:
        choice = {
            "index": self._index,
            "text": part.text,
            "logprobs": self._taken(part),
            "finish_reason": _FINISH[part.finish],
            "stop_reason": part.stop,
        }
        if self._asked.token_ids:
            choice["token_ids"] = part.token_ids
            if not self._begun:
                choice["prompt_token_ids"] = list(self._prompt_ids)
        self._begun = True
        return choice

    chunk = whole

    def _taken(self, part: Part) -> dict[str, Any] | None:
        if self._logprobs is None:
            return None
        if self._asked.echo:
            if not self._begun:
                self._logprobs.add_first(self._prompt_ids[0])
            self._logprobs.add(part.prompt_logprobs)
        self._logprobs.add(part.logprobs)
        return self._logprobs.take()


class ChatChoice:
    """As CompletionChoice, for chats."""

    prefix, whole_kind, chunk_kind = "chatcmpl", "chat.completion", "chat.completion.chunk"

    def __init__(self, index: int, asked: Asked, prompt_ids: Sequence[int], token_bytes: TokenBytes) -> None:
        self._index = index
        self._asked = asked
        self._prompt_ids = prompt_ids
        self._begun = False
        self._bytes = token_bytes

    def whole(self, part: Part) -> dict[str, Any]:
        return self._choice(part, "message", {"role": "assistant", "content": part.text, "refusal": None})

    def chunk(self, part: Part) -> dict[str, Any]:
        """The first one says the role."""
        delta = {"content": part.text} if part.text or not self._begun else {}
        return self._choice(part, "delta", delta if self._begun else {"role": "assistant"} | delta)

    def _choice(self, part: Part, name: str, said: dict[str, Any]) -> dict[str, Any]:
        choice = {
            "index": self._index,
            name: said,
            "logprobs": of_chat(part.logprobs, self._bytes) if self._asked.logprobs else None,
            "finish_reason": _FINISH[part.finish],
            "stop_reason": part.stop,
        }
        if self._asked.token_ids:
            choice["token_ids"] = part.token_ids
            if not self._begun:
                choice["prompt_token_ids"] = list(self._prompt_ids)
        self._begun = True
        return choice
