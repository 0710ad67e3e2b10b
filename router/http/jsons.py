"""JSON as it goes out."""

from __future__ import annotations

import json
from typing import Any

from baton.core.slices import SLICE, slices


def to_json(content: Any) -> bytes:
    """Compact; a number that JSON does not know raises ValueError rather than going out."""
    return _text(content).encode("utf-8", "replace")


def large_to_json(content: Any) -> bytes:
    """The same bytes, made in steps: for threads, since each step of the encoder keeps all others waiting."""
    return _stepwise(content).encode("utf-8", "replace")


def _text(content: Any) -> str:
    return json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def _stepwise(content: Any) -> str:
    if isinstance(content, dict):
        return "{" + ",".join(f"{_text(name)}:{_stepwise(value)}" for name, value in content.items()) + "}"
    if isinstance(content, list):
        if len(content) <= SLICE and any(isinstance(item, dict) for item in content):
            return "[" + ",".join(map(_stepwise, content)) + "]"
        return "[" + ",".join(_text(part)[1:-1] for part in slices(content) if part) + "]"
    return _text(content)
