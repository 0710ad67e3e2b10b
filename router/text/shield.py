"""A twin of a tokenizer that knows the special tokens only under names that nobody outside can write."""

from __future__ import annotations

import json
import secrets
from collections.abc import Sequence
from typing import Any

from tokenizers import Tokenizer


def encoded(tokenizer: Tokenizer, text: str) -> list[int]:
    """The ids of a text, nothing added. By the call for batches: the one for single texts keeps all other
    threads of the process waiting."""
    ids: list[int] = tokenizer.encode_batch_fast([text], add_special_tokens=False)[0].ids
    return ids


class ShieldedTokenizer:
    """Encodes text in which special tokens are given apart from it, with the ids and the splitting of the
    original: the twin's special tokens are the same entries under secret names, so their usual text is
    nothing but text, for every kind of model."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        state: dict[str, Any] = json.loads(tokenizer.to_str())
        prefix = f"\ufdd2{secrets.randbelow(10**18)}-"
        self._secret: dict[str, str] = {}
        for token in state["added_tokens"]:
            if token["special"]:
                name = f"{prefix}{token['id']}\ufdd3"
                self._secret[token["content"]] = name
                token.update(content=name, normalized=False)
        _rename_in_model(state["model"], self._secret)
        state["post_processor"] = None
        self._tokenizer = Tokenizer.from_str(json.dumps(state))

    def encode(self, pieces: Sequence[tuple[str, str]]) -> list[int]:
        """pieces: (plain text, special token that follows it or "")."""
        text = "".join(plain + (self._secret[special] if special else "") for plain, special in pieces)
        return encoded(self._tokenizer, text)


def _rename_in_model(model: dict[str, Any], secret: dict[str, str]) -> None:
    """The model's vocabulary, in either of its forms, and its unknown token."""
    vocab = model["vocab"]
    if isinstance(vocab, dict):
        model["vocab"] = {secret.get(token, token): i for token, i in vocab.items()}
    else:
        model["vocab"] = [[secret.get(token, token), score] for token, score in vocab]
    if isinstance(model.get("unk_token"), str):
        model["unk_token"] = secret.get(model["unk_token"], model["unk_token"])
