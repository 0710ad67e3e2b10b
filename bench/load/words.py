"""Prompts of words with an exact number of tokens, for servers that take no token ids.

Of the vocabulary those tokens are taken that are a space and a lower-case word, and that stay themselves in
each other's company; any sequence of them is a text that the tokenizer takes apart into that very sequence.
"""

from __future__ import annotations

import re
from typing import Protocol

from baton.bench.load.plan import Prompt, Writer
from baton.core.errors import InvalidArgument
from baton.sim.workload.arrival import Arrival, prompt_ids

WORD = re.compile(r" [a-z]{2,12}")
LEAST = 64
MOST = 4096
CHECKED = 512  # words that are tried beside each other


class Tokenizer(Protocol):
    """What of `router.text.TextCodec` is used here."""

    @property
    def vocab_size(self) -> int: ...

    def encode(self, text: str) -> list[int]: ...

    def encode_chat(self, messages: list[tuple[str, str]]) -> list[int]: ...

    def decode(self, ids: list[int]) -> str: ...


def word_ids(tokenizer: Tokenizer) -> tuple[int, ...]:
    """Tokens to write prompts with. InvalidArgument: the tokenizer has too few."""
    before = len(tokenizer.encode(""))
    found: list[int] = []
    for token in range(tokenizer.vocab_size):
        if WORD.fullmatch(text := tokenizer.decode([token])) and tokenizer.encode(text)[before:] == [token]:
            found.append(token)
            if len(found) == MOST:
                break
    if len(found) < LEAST or not _stay(tokenizer, found[:CHECKED], before):
        raise InvalidArgument("the tokenizer has no words that stay whole in a text", field="tokenizer")
    return tuple(found)


def _stay(tokenizer: Tokenizer, ids: list[int], before: int) -> bool:
    return tokenizer.encode(tokenizer.decode(ids))[before:] == ids


def word_writer(tokenizer: Tokenizer, *, chat: bool) -> Writer:
    """Prompts as words, and as the token ids that a server makes of them: begin-of-text and, for a chat, the
    template counted. A prompt shorter than these becomes one word."""
    ids = word_ids(tokenizer)
    before = tokenizer.encode("")
    sample = tokenizer.decode(list(ids[:8]))
    around = len(tokenizer.encode_chat([("user", sample)])) - 8 if chat else len(before)

    def write(arrival: Arrival, number: int) -> Prompt:
        wanted = max(1, arrival.prompt_tokens - around)
        own = [ids[place] for place in prompt_ids(arrival, len(ids), number)[:wanted]]
        text = tokenizer.decode(own)
        return Prompt(() if chat else (*before, *own), text, around + len(own))

    return write
