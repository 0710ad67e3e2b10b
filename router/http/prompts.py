"""The `prompt` of a completion: a text, several, the token ids of one, or those of several."""

from __future__ import annotations

from typing import Any

from baton.core.errors import InvalidArgument

Prompt = str | list[int]

LARGEST = 2**63 - 1  # that the protocol holds; what the vocabulary holds is looked at later


def prompts_of(value: Any, most: int) -> list[Prompt]:
    """At least one, at most `most`. InvalidArgument names the place."""
    if isinstance(value, str):
        return [value]
    if not isinstance(value, list):
        told = "is missing" if value is None else "must be a text, token ids, or a list of either"
        raise InvalidArgument(told, field="prompt")
    if not value:
        raise InvalidArgument("holds nothing", field="prompt")
    if isinstance(value[0], int):
        return [_token_ids(value, "prompt")]
    if len(value) > most:
        raise InvalidArgument(f"at most {most} prompts allowed, got {len(value)}", field="prompt")
    found: list[Prompt] = []
    for i, item in enumerate(value):
        if type(item) is not type(value[0]) or not isinstance(item, str | list):
            raise InvalidArgument(
                "must be a text or a list of token ids, as all the others are", field=f"prompt[{i}]"
            )
        found.append(item if isinstance(item, str) else _token_ids(item, f"prompt[{i}]"))
    return found


def size_of(prompt: Prompt) -> int:
    """Characters or ids."""
    return len(prompt)


def _token_ids(ids: list[Any], field: str) -> list[int]:
    if not set(map(type, ids)) <= {int}:  # bool is no int here
        place = next(i for i, item in enumerate(ids) if type(item) is not int)
        raise InvalidArgument("must be a token id", field=f"{field}[{place}]")
    if ids and (max(ids) > LARGEST or min(ids) < 0):
        place = next(i for i, item in enumerate(ids) if not 0 <= item <= LARGEST)
        raise InvalidArgument(f"token id {ids[place]} is outside the vocabulary", field=f"{field}[{place}]")
    return ids
