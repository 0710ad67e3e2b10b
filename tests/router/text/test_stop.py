"""TOK2: stop strings never leak and never swallow; which one wins depends on the text alone."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from baton.core.errors import InvalidArgument
from baton.router.text import StopMatcher
from baton.router.text.stop import MAX_STOP_CHARS, MAX_STOPS

TEXT = "ABCDEFGHIJ"


def run(pieces: list[str], stops: list[str], include: bool = False) -> tuple[list[str], str | None]:
    matcher = StopMatcher(stops, include)
    deltas = []
    for piece in pieces:
        emitted, stop = matcher.push(piece)
        deltas.append(emitted)
        if stop is not None:
            return deltas, stop
    return [*deltas, matcher.flush()], None


def cut(text: str, size: int) -> list[str]:
    return [text[i : i + size] for i in range(0, len(text), size)]


@pytest.mark.parametrize("size", [1, 2, 3, 10])
@pytest.mark.parametrize(
    ("stops", "include", "text", "matched"),
    [
        (["DEFGHIJ"], False, "ABC", "DEFGHIJ"),
        (["DEFGHIJ"], True, "ABCDEFGHIJ", "DEFGHIJ"),
        (["DEFGHIX"], False, TEXT, None),
        (["DEF", "DEFGH"], False, "ABC", "DEF"),
        (["DEFGH", "DEF"], False, "ABC", "DEF"),
        (["DEF", "DEFGH"], True, "ABCDEF", "DEF"),
        (["EF", "CDEF", "F"], False, "AB", "CDEF"),
        (["BCDEFGHIX", "DE"], False, "ABC", "DE"),
        (["A"], False, "", "A"),
        (["J"], False, "ABCDEFGHI", "J"),
        (["JX"], False, TEXT, None),
    ],
)
def test_cases(size: int, stops: list[str], include: bool, text: str, matched: str | None) -> None:
    deltas, stop = run(cut(TEXT, size), stops, include)
    assert ("".join(deltas), stop) == (text, matched)


def test_only_what_may_become_a_stop_string_is_held() -> None:
    deltas, _ = run(list(TEXT + "ABC"), ["DEFGHIX", "BD"])
    assert deltas == ["A", "", "BC", "", "", "", "", "", "", "DEFGHIJ", "A", "", "BC", ""]


def test_nothing_is_held_when_the_stop_string_stays() -> None:
    deltas, stop = run(list(TEXT), ["DEFGHIJ"], include=True)
    assert (deltas, stop) == (list(TEXT), "DEFGHIJ")


def test_an_end_inside_a_half_formed_stop_flushes_it() -> None:
    assert run(list("ABCDEF"), ["DEFGHIJ"]) == (["A", "B", "C", "", "", "", "DEF"], None)


def naive(text: str, stops: list[str], include: bool) -> tuple[str, str | None]:
    for end in range(1, len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            stop = max(ending, key=len)
            return text[:end] if include else text[: end - len(stop)], stop
    return text, None


@settings(max_examples=500)
@given(
    st.text("abé", max_size=40),
    st.lists(st.text("abé", min_size=1, max_size=6), min_size=1, max_size=4),
    st.booleans(),
    st.lists(st.integers(1, 7), min_size=1),
)
def test_any_text_cut_anyhow(text: str, stops: list[str], include: bool, sizes: list[int]) -> None:
    pieces, at = [], 0
    for i in range(len(text)):
        pieces.append(text[at : at + sizes[i % len(sizes)]])
        at += sizes[i % len(sizes)]
    expected, matched = naive(text, stops, include)
    matcher = StopMatcher(stops, include)
    out, seen = "", ""
    for piece in pieces:
        emitted, stop = matcher.push(piece)
        out, seen = out + emitted, seen + piece
        if stop is not None:
            assert (out, stop) == (expected, matched)
            return
        if not include:  # held: the longest end of the text that begins a stop string, no more
            longest = max(
                (k for stop in stops for k in range(len(stop)) if seen.endswith(stop[:k])), default=0
            )
            assert len(seen) - len(out) == longest
    assert matched is None
    assert out + matcher.flush() == text


@pytest.mark.parametrize("stops", [[""], ["a", ""], ["a"] * (MAX_STOPS + 1), ["a" * (MAX_STOP_CHARS + 1)]])
def test_stops_that_cannot_be(stops: list[str]) -> None:
    with pytest.raises(InvalidArgument) as caught:
        StopMatcher(stops)
    assert caught.value.field == "stop"


def test_a_hostile_stop_string_costs_linear_time() -> None:
    """Backing up at every character would be 10^8 steps."""
    matcher = StopMatcher(["a" * (MAX_STOP_CHARS - 1) + "b"])
    out = "".join(matcher.push("a" * 10)[0] for _ in range(10_000))
    assert len(out) == 100_000 - (MAX_STOP_CHARS - 1)
    assert matcher.push("b")[1] is not None


def test_nothing_may_follow_a_match() -> None:
    matcher = StopMatcher(["x"])
    matcher.push("x")
    with pytest.raises(ValueError, match="after a stop string"):
        matcher.push("y")
