"""Files, comparisons and reports."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from baton.bench.load.compare import comparison, verdict
from baton.bench.load.report import page_of, page_of_comparison
from baton.bench.load.report_charts import in_flight
from baton.bench.load.results import Found, pooled, read, schema, to_json, write
from baton.bench.load.tables import complaints, pool_name, three_digits
from baton.core.errors import InvalidArgument
from tests.bench.records import record, results, run


@pytest.mark.parametrize("name", ["r.json", "r.json.gz"])
def test_a_file_comes_back_as_it_was(tmp_path: Path, name: str) -> None:
    made = results(run(), run("b", seed=1))
    write(made, tmp_path / name)
    assert read(tmp_path / name) == made


def test_the_schema_describes_the_file() -> None:
    described = schema()
    content = json.loads(to_json(results(run())))
    assert set(content) == set(described["properties"])
    assert content["format"] == described["properties"]["format"]["const"] == "baton-bench/1"
    for name, value in (("Run", content["runs"][0]), ("Record", content["runs"][0]["records"][0])):
        assert set(value) == set(described["$defs"][name]["properties"])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{", "holds no baton-bench/1 results"),
        (b"[]", "holds no baton-bench/1 results"),
        (b'{"format": "baton-bench/2"}', "holds no baton-bench/1 results"),
    ],
)
def test_what_is_no_results_file_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "r.json").write_bytes(content)
    with pytest.raises(InvalidArgument, match=message):
        read(tmp_path / "r.json")
    (tmp_path / "r.json.gz").write_bytes(content)
    for name in ("r.json.gz", "none.json"):
        with pytest.raises(InvalidArgument, match="cannot read"):
            read(tmp_path / name)


def test_rounds_are_pooled_and_what_does_not_count_stays_out() -> None:
    bad = run(seed=2, invalid="the generator was late")
    cut = run(seed=3)
    cut.stopped_s = 1.0
    pools = pooled([run("z"), run("a"), run("z", seed=1), bad, cut, run("z", rate=1.0)])
    assert [(pool.target, pool.rate, pool.rounds) for pool in pools] == [
        ("z", 1.0, 1),
        ("z", 2.0, 2),
        ("a", 2.0, 1),
    ]
    assert pools[1].summary.requests == 120
    assert pools[1].summary.window_s == 60.0
    assert not any(pool.invalid for pool in pools)
    (only,) = pooled([bad])
    assert (only.rounds, only.invalid, pool_name(only)) == (1, "the generator was late", "a (!)")
    assert complaints([bad]) == ["a at 2/s, round 1 does not count: the generator was late"]


def test_only_the_window_counts() -> None:
    one = run()
    one.from_s, one.until_s = 10.0, 20.0
    assert {10.0 <= each.intended_s < 20.0 for each in one.counted} == {True}
    assert len(one.counted) == 20


def test_a_slower_side_is_told_so() -> None:
    found = comparison(results(run(count=200)), results(run(seed=5, slow=1.6, count=200)), ("old", "new"))
    (pair,) = found.pairs
    said = {metric.name: verdict(metric, difference) for metric, difference in pair.differences}
    assert said["TTFT P50"] == said["TPOT P50"] == said["attained"] == said["goodput"] == "worse"
    assert (pair.a.name, pair.b.name) == ("old: a", "new: a")
    text = json.loads(found.as_json())
    assert text["pairs"][0]["differences"]["TTFT P50"]["clear"] is True
    same = comparison(results(run()), results(run()), ("old", "new"))
    assert {verdict(*each) for each in same.pairs[0].differences} == {"unclear"}


def test_targets_are_paired_by_name_or_when_there_is_no_choice() -> None:
    ab = results(run("a"), run("b", seed=1))
    assert [p.b.name for p in comparison(ab, ab, ("x", "y")).pairs] == ["y: a", "y: b"]
    (pair,) = comparison(results(run("a")), results(run("c")), ("x", "y")).pairs
    assert (pair.a.name, pair.b.name) == ("x: a", "y: c")
    with pytest.raises(InvalidArgument, match="same rate"):
        comparison(results(run("a")), results(run("a", rate=3.0)), ("x", "y"))


def test_what_makes_comparing_hard_is_told() -> None:
    other = results(run())
    other.machine = {"cores": "64"}
    assert comparison(results(run()), other, ("x", "y")).notes == (
        "the generators ran on different machines",
    )


class Checking(HTMLParser):
    """Collects text; AssertionError for tags that do not match."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: object) -> None: ...

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def checked(page: str) -> str:
    parser = Checking()
    parser.feed(page)
    parser.close()
    assert not parser.open
    assert "nan" not in re.sub(r"<style>.*?</style>", "", page).lower().split()
    assert not re.search(r'="[^"]*(nan|inf)\b', page)
    return " ".join(parser.text)


def test_the_report_shows_every_target_and_escapes_names() -> None:
    made = results(run("<b>&"), run("b", seed=1), run("b", rate=1.0), run("c", invalid="late <1>"))
    made.found = [Found("<b>&", 2.0, 2.1, 1.9), Found("b", 0.0, 0.5, 0.0)]
    text = checked(page_of(made))
    for wanted in ("<b>&", "late <1>", "Highest rate", "Over the rate", "Attainment", "The generator"):
        assert wanted in text


def test_a_report_of_nothing_good_is_still_one() -> None:
    failed = run(count=3)
    failed.records = [record(0, first_s=None, error="no")]
    checked(page_of(results(failed)))
    checked(page_of(results(run(invalid="late"))))


def test_the_comparison_has_a_page() -> None:
    found = comparison(results(run()), results(run(seed=1)), ("x<", "y"))
    assert "x<: a" in checked(page_of_comparison(found))


def test_requests_under_way() -> None:
    one, two = record(0, 1.0), record(1, 2.0)
    one.ended_s, two.ended_s = 3.0, 2.5
    assert in_flight([one, two]) == [(0.0, 0.0), (1.0, 1.0), (2.0, 2.0), (2.5, 1.0), (3.0, 0.0)]


def test_three_digits() -> None:
    assert [three_digits(v) for v in (0.1234, 1.234, 12.34, 123.4, 1234.0)] == [
        "0.123",
        "1.23",
        "12.3",
        "123",
        "1234",
    ]
