"""A tokenizer without a file: one token per byte. The detokenizer is the router's own."""

from __future__ import annotations

from collections.abc import Sequence

from baton.router.text.detokenize import ByteDetokenizer, ByteTable

OFFSET = 3  # ids 0, 1, 2 are special: padding, BOS, EOS


class ByteTokenizer:
    """Token OFFSET + b is the byte b. Special tokens write themselves as <i> where they are not skipped."""

    longest_token = 1

    def __init__(self) -> None:
        special: list[bytes | None] = [b"<%d>" % i for i in range(OFFSET)]
        self._table = ByteTable([*special, *(bytes([b]) for b in range(256))])
        self._skipping = self._table.without(frozenset(range(OFFSET)))

    def encode(self, text: str) -> list[int]:
        return [OFFSET + byte for byte in text.encode()]

    def encode_chat(self, messages: Sequence[tuple[str, str]], *, continue_final: bool = False) -> list[int]:
        body = "".join(f"{role}:{content}\n" for role, content in messages)
        return [1, *self.encode(body.removesuffix("\n") if continue_final else body)]

    def decode(self, token_ids: Sequence[int], skip_special: bool = True) -> str:
        detokenizer = self.detokenizer((), skip_special)
        return detokenizer.push(token_ids) + detokenizer.flush()

    def detokenizer(self, prompt_ids: Sequence[int] = (), skip_special: bool = True) -> ByteDetokenizer:
        return ByteDetokenizer(self._skipping if skip_special else self._table, prompt_ids)

    def token_bytes(self, token_id: int) -> bytes:
        return self._table.pieces[token_id] or b"" if token_id < len(self._table.pieces) else b""
