"""Log-probabilities in the two shapes that OpenAI has for them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from baton.core.batch import TokenLogprobs

TokenBytes = Callable[[int], bytes]


def of_chat(entries: Sequence[TokenLogprobs], token_bytes: TokenBytes) -> dict[str, Any]:
    """{"content": [...]}: half a character in `token` is U+FFFD, `bytes` says exactly what it is."""

    def one(token_id: int, logprob: float) -> dict[str, Any]:
        data = token_bytes(token_id)
        return {"token": data.decode("utf-8", "replace"), "logprob": logprob, "bytes": list(data)}

    content = [
        one(entry.token_id, entry.logprob) | {"top_logprobs": [one(*top) for top in entry.top]}
        for entry in entries
    ]
    return {"content": content, "refusal": None}


class CompletionLogprobs:
    """The parallel lists of completions, with offsets that go on from one part of a choice to the next.

    text_offset counts characters of the tokens' own texts, and so differs from that of the answer where
    special tokens are left out of it, or where a character is made of several tokens.
    """

    def __init__(self, token_bytes: TokenBytes) -> None:
        self._bytes = token_bytes
        self._offset = 0
        self._tokens: list[str] = []
        self._logprobs: list[float | None] = []
        self._top: list[dict[str, float] | None] = []
        self._offsets: list[int] = []

    def add_first(self, token_id: int) -> None:
        """The first token of a prompt: nothing came before it that could make it likely."""
        self._add(token_id, None, None)

    def add(self, entries: Sequence[TokenLogprobs]) -> None:
        for entry in entries:
            # The likelier of two that look alike stays: the list begins with the likeliest.
            top: dict[str, float] = {}
            for token_id, logprob in (*entry.top, (entry.token_id, entry.logprob)):
                top.setdefault(self._word(token_id), logprob)
            self._add(entry.token_id, entry.logprob, top)

    def take(self) -> dict[str, Any]:
        """What was added since the last time."""
        taken = {
            "tokens": self._tokens,
            "token_logprobs": self._logprobs,
            "top_logprobs": self._top,
            "text_offset": self._offsets,
        }
        self._tokens, self._logprobs, self._top, self._offsets = [], [], [], []
        return taken

    def _add(self, token_id: int, logprob: float | None, top: dict[str, float] | None) -> None:
        self._tokens.append(self._word(token_id))
        self._logprobs.append(logprob)
        self._top.append(top)
        self._offsets.append(self._offset)
        self._offset += len(self._bytes(token_id).decode("utf-8", "ignore"))

    def _word(self, token_id: int) -> str:
        r"""The token's text, or `bytes:\xe2\x82` where it is no whole character."""
        data = self._bytes(token_id)
        try:
            return data.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)
