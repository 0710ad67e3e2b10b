"""The report's HTML: well formed, escaped, and true to the data it draws."""

import math
import re
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton.sim.report.bars import Bar, bars
from baton.sim.report.figure import HEIGHT, WIDTH, Mark
from baton.sim.report.lanes import Span, lanes
from baton.sim.report.lines import Series, cdf, lines
from baton.sim.report.page import code, facts, page, section, table, tiles
from baton.sim.report.scale import Axis, fit, number, seconds, share


class Checker(HTMLParser):
    """Every tag that opens is closed, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag, attrs):
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        pass

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def check(html: str) -> None:
    checker = Checker()
    checker.feed(html)
    assert checker.open == []
    assert "nan" not in html.lower()
    assert "inf," not in html


HOSTILE = "<q>&\"'"


def test_a_whole_page_is_well_formed_and_escaped():
    series = [
        Series(HOSTILE, [(0.0, 1.0), (1.0, math.nan), (2.0, 3.0)], dots=True),
        cdf("b", [3.0, 1.0, 2.0]),
    ]
    html = page(
        HOSTILE,
        HOSTILE,
        [
            tiles([(HOSTILE, HOSTILE, HOSTILE)]),
            section(
                HOSTILE,
                lines(HOSTILE, series, Axis(HOSTILE), Axis("y"), [Mark(HOSTILE, x=1.0), Mark("m", y=2.0)]),
                bars(
                    HOSTILE,
                    [Bar(HOSTILE, 3.0, strong=True), Bar("no", math.nan)],
                    Axis("x"),
                    [Mark("m", x=2.0)],
                ),
                lanes(HOSTILE, [(HOSTILE, [Span(0.0, 1.0, HOSTILE)])], [HOSTILE], Axis("s")),
                table([HOSTILE], [[HOSTILE], [1], [2.5]], best=[0]),
                facts([(HOSTILE, HOSTILE)]),
                code(HOSTILE),
                note=HOSTILE,
            ),
        ],
    )
    check(html)
    assert "<q>" not in html
    assert "<script" not in html
    assert html.count("<figure") == 3


@pytest.mark.parametrize(
    "figure",
    [
        lines("t", [], Axis("x"), Axis("y")),
        lines("t", [Series("a", [])], Axis("x", log=True), Axis("y")),
        lines("t", [Series("a", [(1.0, 5.0)])], Axis("x"), Axis("y", log=True)),
        lines("t", [Series("a", [(1.0, 0.0), (2.0, 0.0)])], Axis("x"), Axis("y", log=True)),
        bars("t", [], Axis("x")),
        lanes("t", [], [], Axis("s")),
    ],
)
def test_little_or_no_data_draws_an_empty_chart(figure):
    check(figure)
    assert "<svg" in figure


def test_a_line_goes_through_its_points():
    html = lines("t", [Series("a", [(0.0, 0.0), (10.0, 10.0)])], Axis("x"), Axis("y"))
    [path] = re.findall(r'class="line l0" d="M([\d.]+),([\d.]+)L([\d.]+),([\d.]+)"', html)
    x0, y0, x1, y1 = map(float, path)
    assert 0 < x0 < x1 <= WIDTH
    assert 0 <= y1 < y0 < HEIGHT


def test_a_long_line_is_thinned_but_keeps_its_ends():
    html = lines("t", [Series("a", [(float(i), 1.0) for i in range(100_000)])], Axis("x"), Axis("y"))
    assert len(html) < 60_000
    [path] = re.findall(r'class="line l0" d="([^"]*)"', html)
    assert path.endswith(f"L{WIDTH - 14:.1f},{path.rsplit(',', 1)[1]}")


FLOATS = st.floats(-1e9, 1e9, allow_nan=False)


@given(st.lists(FLOATS, min_size=1, max_size=20), st.booleans())
def test_scales_keep_everything_inside_and_ticks_are_few(values, log):
    scale = fit(Axis("x", log=log), values, 10.0, 110.0)
    assert scale.low < scale.high
    assert all(10.0 - 1e-6 <= scale(value) <= 110.0 + 1e-6 for value in values)
    assert len(scale.ticks) <= 20
    assert list(scale.ticks) == sorted(scale.ticks)
    for a in values:
        for b in values:
            if a < b:
                assert scale(a) <= scale(b)


def test_numbers_as_a_person_writes_them():
    assert [number(v) for v in (0.25, 12.0, 1500.0, 2.5e6, 3e9, math.nan)] == [
        "0.25", "12", "1,500", "2.5M", "3G", "–",
    ]  # fmt: skip
    assert [seconds(v) for v in (0.0123, 0.5, 1.239, 600.0, math.inf)] == [
        "12.3 ms", "500 ms", "1.24 s", "10.0 min", "–",
    ]  # fmt: skip
    assert share(0.912) == "91.2%"
    assert share(math.nan) == "–"
