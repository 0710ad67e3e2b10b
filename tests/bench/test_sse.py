"""Event streams, however they are cut."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton.bench.load import sse
from baton.bench.load.openai_answer import message_of, retry_after_s
from baton.bench.load.sse import SseError, SseReader

ENDS = st.sampled_from(["\n", "\r\n", "\r"])
LINES = st.text(st.characters(blacklist_characters="\r\n", blacklist_categories=("Cs",)), max_size=20)


@given(st.lists(st.lists(LINES, min_size=1, max_size=3), max_size=5), ENDS, st.data())
def test_pieces_may_end_anywhere(events: list[list[str]], end: str, data: st.DataObject) -> None:
    parts = [f": a comment{end}id: 7{end}event: x{end}"]
    parts += ["".join(f"data: {line}{end}" for line in lines) + end for lines in events]
    whole = "".join(parts).encode() + b"\n"  # tells the last \r from half of \r\n
    reader, found, at = SseReader(), [], 0
    while at < len(whole):
        size = data.draw(st.integers(1, len(whole) - at))
        found += reader.feed(whole[at : at + size])
        at += size
    assert found == ["\n".join(lines) for lines in events]
    assert not reader.open


def test_the_byte_order_mark_is_no_data() -> None:
    assert list(SseReader().feed(b"\xef\xbb\xbfdata:x\n\n")) == ["x"]


def test_an_event_that_does_not_end_is_open() -> None:
    reader = SseReader()
    assert list(reader.feed(b"data: x\n")) == []
    assert reader.open
    assert list(reader.feed(b"\n")) == ["x"]
    assert not reader.open


def test_what_grows_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "MAX_EVENT_BYTES", 100)
    for piece in (b"data: " + b"x" * 200, b"data: xx\n" * 40):
        with pytest.raises(SseError, match="more than 100 bytes"):
            fed(piece)


def fed(whole: bytes) -> list[str]:
    reader = SseReader()
    return [data for i in range(0, len(whole), 10) for data in reader.feed(whole[i : i + 10])]


@pytest.mark.parametrize(
    ("header", "low", "high"),
    [("3", 3.0, 3.0), ("0", 0.0, 0.0), ("Wed, 21 Oct 2015 07:28:00 GMT", 0.0, 0.0)],
)
def test_retry_after_is_seconds_or_a_date(header: str, low: float, high: float) -> None:
    assert low <= (retry_after_s(header) or 0.0) <= high


def test_retry_after_in_the_future_or_not_at_all() -> None:
    soon = format_datetime(datetime.now(UTC) + timedelta(seconds=90), usegmt=True)
    assert 60 < (retry_after_s(soon) or 0) <= 90
    for odd in (None, "", "soon", "-3", "1.5", "²"):
        assert retry_after_s(odd) is None


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ({"error": {"message": "m"}}, "m"),
        ({"error": "m"}, "m"),
        ({"detail": "m"}, "m"),
        ({"message": "m"}, "m"),
        (["m"], "['m']"),
    ],
)
def test_errors_in_many_shapes(answer: object, message: str) -> None:
    assert message_of(answer) == message
