"""JSON made in steps is JSON made at once."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton.core.slices import SLICE
from baton.router.http.jsons import large_to_json, to_json

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(VALUES)
def test_the_same_bytes(value: Any) -> None:
    data = to_json(value)
    assert large_to_json(value) == data
    json.loads(data)


@pytest.mark.parametrize("length", [0, 1, SLICE, SLICE + 1, 2 * SLICE, 2 * SLICE + 5])
def test_lists_that_are_cut(length: int) -> None:
    value = {"ids": list(range(length)), "top": [{"a": -0.5}] * length, "none": None, "empty": [[], {}, ()]}
    assert large_to_json(value) == to_json(value)


def test_no_number_that_json_does_not_know() -> None:
    for make in (to_json, large_to_json):
        for bad in (math.nan, math.inf):
            with pytest.raises(ValueError, match="JSON"):
                make({"choices": [{"logprob": bad}]})


def test_half_a_surrogate_does_not_break_the_encoder() -> None:
    assert json.loads(to_json({"text": "a\ud800b"}))["text"] == "a?b"
