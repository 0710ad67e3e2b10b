"""Read a `tokenizers` decoder and, where it maps each token to bytes of its own, make the ByteTable of it."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

from tokenizers import Tokenizer

from baton.router.text.detokenize import EACH_BYTE, ByteTable


def byte_table(tokenizer: Tokenizer) -> ByteTable | None:
    """The table, or None for a decoder that is not known to work token by token."""
    steps = _steps(tokenizer)
    kinds = [step["type"] for step in steps]
    if kinds == ["ByteLevel"]:
        return ByteTable([None if token is None else _byte_level(token) for token in _tokens(tokenizer)])
    fallback = "ByteFallback" in kinds
    rest = [step for step in steps if step["type"] != "ByteFallback"]
    if len(rest) == 1 and rest[0]["type"] == "Metaspace":
        return _metaspace_table(_tokens(tokenizer), rest[0], fallback)
    return _replace_table(_tokens(tokenizer), rest, fallback)


def longest_token(tokenizer: Tokenizer) -> int | None:
    """Bytes of text that one token spells at most; None where a token may stand for any amount of text: what
    is unknown, stripped, or normalized away."""
    if tokenizer.normalizer is not None or [step["type"] for step in _steps(tokenizer)] != ["ByteLevel"]:
        return None
    vocab = tokenizer.get_vocab(with_added_tokens=True)
    added = tokenizer.get_added_tokens_decoder().values()
    if any(token.lstrip or token.rstrip for token in added) or not _alphabet().keys() <= vocab.keys():
        return None
    return max(len(_byte_level(token)) for token in vocab)


def _steps(tokenizer: Tokenizer) -> list[dict[str, Any]]:
    if tokenizer.decoder is None:
        return []
    state: dict[str, Any] = json.loads(tokenizer.decoder.__getstate__())
    return list(state["decoders"]) if state["type"] == "Sequence" else [state]


def _tokens(tokenizer: Tokenizer) -> list[str | None]:
    vocab = tokenizer.get_vocab(with_added_tokens=True)
    tokens: list[str | None] = [None] * (max(vocab.values(), default=-1) + 1)
    for token, i in vocab.items():
        tokens[i] = token
    return tokens


@cache
def _alphabet() -> dict[str, int]:
    """GPT-2's way of writing bytes as printable characters: character -> byte."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(plain)]
    return {chr(b): b for b in plain} | {chr(256 + n): b for n, b in enumerate(others)}


def _byte_level(token: str) -> bytes:
    """An added token outside the alphabet stands for its own text."""
    alphabet = _alphabet()
    try:
        return bytes([alphabet[char] for char in token])
    except KeyError:
        return token.encode()


def _fallback_byte(token: str) -> bytes | None:
    """<0xNN> is the byte NN."""
    if len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
        try:
            return bytes([int(token[3:5], 16)])
        except ValueError:
            return None
    return None


def _pieces(tokens: list[str | None], old: str, new: str, fallback: bool) -> list[bytes | None]:
    pieces: list[bytes | None] = []
    for token in tokens:
        if token is None:
            pieces.append(None)
            continue
        byte = _fallback_byte(token) if fallback else None
        pieces.append(byte if byte is not None else token.replace(old, new).encode())
    return pieces


def _metaspace_table(tokens: list[str | None], step: dict[str, Any], fallback: bool) -> ByteTable:
    """Metaspace: the mark is a space, except in the text's first token, where it is nothing."""
    mark = step["replacement"]
    first = None
    if step["prepend_scheme"] != "never":
        first = {i: t.replace(mark, "").encode() for i, t in enumerate(tokens) if t and mark in t}
    return ByteTable(_pieces(tokens, mark, " ", fallback), EACH_BYTE, first=first or None)


def _replace_table(tokens: list[str | None], steps: list[dict[str, Any]], fallback: bool) -> ByteTable | None:
    """SentencePiece as Llama and Gemma files spell it: Replace, (ByteFallback,) Fuse, and maybe Strip."""
    kinds = [step["type"] for step in steps]
    if kinds not in (["Replace", "Fuse"], ["Replace", "Fuse", "Strip"]):
        return None
    pattern, strip = steps[0]["pattern"].get("String"), 0
    if not pattern:
        return None
    if len(steps) == 3:
        if steps[2]["content"] != " " or steps[2]["stop"]:
            return None
        strip = int(steps[2]["start"])
    pieces = _pieces(tokens, pattern, steps[0]["content"], fallback)
    return ByteTable(pieces, EACH_BYTE, strip_spaces=strip)
