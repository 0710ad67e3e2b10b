"""Conversations as requests: each answer is one, with all earlier turns as its prompt."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

from baton.core.errors import InvalidArgument
from baton.sim.workload.arrival import Arrival

BLOCK_TOKENS = 16  # of the prefix that a conversation's turns share
ASSISTANT = frozenset(("gpt", "chatgpt", "assistant", "bing", "bard", "model"))
CONVERSATION_BLOCKS = 1 << 24  # block ids of one conversation begin at a multiple of this


def json_items(text: str) -> Iterator[tuple[int, Any]]:
    """Items of a JSON list with the lines they begin on. Raises json.JSONDecodeError."""
    decoder = json.JSONDecoder()
    at, line, counted = _skip(text, 0), 1, 0
    if text[at : at + 1] != "[":
        raise json.JSONDecodeError("a list is wanted", text, at)
    at = _skip(text, at + 1)
    while text[at : at + 1] != "]":
        line, counted = line + text.count("\n", counted, at), at
        item, at = decoder.raw_decode(text, at)
        yield line, item
        at = _skip(text, at)
        if text[at : at + 1] == ",":
            at = _skip(text, at + 1)
        elif text[at : at + 1] != "]":
            raise json.JSONDecodeError("the list does not end", text, min(at, len(text)))


def _skip(text: str, at: int) -> int:
    while at < len(text) and text[at].isspace():
        at += 1
    return at


def conversation_arrivals(item: Any, number: int, count: Callable[[str], int]) -> Iterator[Arrival]:
    """Raises InvalidArgument. A conversation without an answer to something gives none."""
    turns = item.get("conversations") if isinstance(item, dict) else None
    if not isinstance(turns, list):
        raise InvalidArgument("no list of conversations")
    before = 0
    for turn in turns:
        if not isinstance(turn, dict) or not isinstance(turn.get("value"), str):
            raise InvalidArgument("a turn without a value")
        tokens = count(turn["value"])
        if turn.get("from") in ASSISTANT and before and tokens:
            blocks = -(-before // BLOCK_TOKENS)
            first = number * CONVERSATION_BLOCKS
            yield Arrival(0.0, before, tokens, tuple(range(first, first + blocks)), BLOCK_TOKENS)
        before += tokens
