"""Turn tokens into text as they come: never half a character, never a retraction, constant work per token.

Nearly every vocabulary maps a token to bytes, whatever its neighbours: then a stream is those bytes through
an incremental UTF-8 decoder. The few rules about the very start of a text are `Leading`. Vocabularies of
another kind (WordPiece, say) go through `WindowDetokenizer`.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

EACH_BYTE = "baton.each_byte"
FEW = 32  # tokens whose bytes are appended one by one: the fastest for a step's, quadratic for a prompt's
LOOK_BACK = 64  # prompt tokens: a prompt may end in any number that make no text


def _each_byte(error: UnicodeError) -> tuple[str, int]:
    """One U+FFFD per ill-formed byte, as SentencePiece writes them."""
    assert isinstance(error, UnicodeDecodeError)
    return "\ufffd" * (error.end - error.start), error.end


codecs.register_error(EACH_BYTE, _each_byte)


class Detokenizer(Protocol):
    def push(self, ids: Sequence[int]) -> str:
        """The text that these tokens made certain; may be empty."""

    def flush(self) -> str:
        """What an unfinished character leaves (U+FFFD); nothing may be pushed after it."""


@dataclass(frozen=True, slots=True)
class ByteTable:
    """A vocabulary as bytes. pieces[id]: the token's bytes; None: no such id, or one that is left out.

    errors: the codec error handler for ill-formed bytes. strip_spaces: spaces dropped at the start of the
    whole text. first: what the very first visible token gives instead, by id, where that differs.
    """

    pieces: list[bytes | None]
    errors: str = "replace"
    strip_spaces: int = 0
    first: dict[int, bytes] | None = None

    def without(self, ids: frozenset[int]) -> ByteTable:
        """The same, leaving out `ids`."""
        pieces: list[bytes | None] = list(self.pieces)
        for i in ids:
            if i < len(pieces):
                pieces[i] = None
        return ByteTable(pieces, self.errors, self.strip_spaces, self.first)


class ByteDetokenizer:
    """A detokenizer over a ByteTable, continuing after `prompt_ids`.

    If the prompt ends inside a character, the delta that finishes it holds the whole character.
    """

    __slots__ = ("_errors", "_first", "_held", "_pieces", "_strip")

    def __init__(self, table: ByteTable, prompt_ids: Sequence[int]) -> None:
        self._pieces = table.pieces
        self._errors = table.errors
        self._first = table.first
        self._strip = table.strip_spaces
        if self._strip or self._first:
            self._start_after(prompt_ids)
        tail = b""
        for i in reversed(prompt_ids[-LOOK_BACK:]):  # no UTF-8 character is longer than 4 bytes
            tail = (self._piece(i) or b"") + tail
            if len(tail) >= 4:
                break
        self._held = tail[codecs.utf_8_decode(tail, self._errors, False)[1] :]

    def push(self, ids: Sequence[int]) -> str:
        if self._first or self._strip:
            return self._push_at_start(ids)
        pieces, data = self._pieces, self._held
        try:
            if len(ids) <= FEW:
                for i in ids:
                    data += pieces[i] or b""
            else:
                data += b"".join([pieces[i] or b"" for i in ids])
        except IndexError:  # padding of the model's vocabulary: no text
            data = self._held + b"".join([self._piece(i) or b"" for i in ids])
        text, used = codecs.utf_8_decode(data, self._errors, False)
        self._held = data[used:]
        return text

    def flush(self) -> str:
        text, self._held = codecs.utf_8_decode(self._held, self._errors, True)[0], b""
        return text

    def _piece(self, token_id: int) -> bytes | None:
        return self._pieces[token_id] if 0 <= token_id < len(self._pieces) else None

    def _push_at_start(self, ids: Sequence[int]) -> str:
        """Slow and rare: until the first visible text, spaces may have to go."""
        data = self._held + b"".join([self._visible(i) for i in ids])
        text, used = codecs.utf_8_decode(data, self._errors, False)
        self._held = data[used:]
        return text

    def _visible(self, token_id: int) -> bytes:
        """The token's bytes, with the rules for a text's start applied; they end with the first visible
        text."""
        piece = self._piece(token_id)
        if piece is None:
            return b""
        if self._first is not None:
            piece = self._first.get(token_id, piece)
            self._first = None
        if self._strip and piece:
            bare = piece.lstrip(b" ")
            cut = min(len(piece) - len(bare), self._strip)
            self._strip = self._strip - cut if cut == len(piece) else 0
            piece = piece[cut:]
        return piece

    def _start_after(self, prompt_ids: Sequence[int]) -> None:
        for i in prompt_ids:
            self._visible(i)
            if not (self._strip or self._first):
                return


class WindowDetokenizer:
    """For decoders whose rules are unknown: decode a short window again and take what it adds.

    The window starts some visible tokens back, and moves only over text that is final. Text that ends in
    U+FFFD is held: the next token may finish the character.
    """

    CONTEXT_TOKENS = 8

    def __init__(self, decode: Callable[[Sequence[int]], str], prompt_ids: Sequence[int]) -> None:
        self._decode = decode
        self._ids = list(prompt_ids)
        self._known = len(self._ids)  # tokens whose text is out
        self._base = ""  # that text
        self._narrow()

    def push(self, ids: Sequence[int]) -> str:
        self._ids.extend(ids)
        text = self._decode(self._ids)
        if text.endswith("\ufffd") or not text.startswith(self._base):
            return ""
        delta = text[len(self._base) :]
        self._known = len(self._ids)
        self._narrow()
        return delta

    def flush(self) -> str:
        delta = self._decode(self._ids)[len(self._base) :]
        self._known = len(self._ids)
        self._base = self._decode(self._ids)
        return delta

    def _narrow(self) -> None:
        """Drop old tokens, but keep enough that the window neither looks like the start of a text nor starts
        inside a character."""
        context = self.CONTEXT_TOKENS
        while True:
            start = max(0, self._known - context)
            base = self._decode(self._ids[start : self._known])
            if start == 0 or (base.strip() and "\ufffd" not in base):
                break
            context *= 2
        self._ids, self._known, self._base = self._ids[start:], self._known - start, base
