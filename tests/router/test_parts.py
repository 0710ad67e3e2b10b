"""The machine's small parts: timers, ledgers, the pending queue, the prefix view."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton.core.prefix import chain, root_key
from baton.core.request import Slo
from baton.router.ledger import Ledger, Work
from baton.router.live import Live
from baton.router.machine_config import RouterConfig
from baton.router.pending import Pending
from baton.router.prefix_view import NodePrefixes, PromptChains
from baton.router.timers import Timers

from .machine_kit import request


def test_timers_fire_in_order_once() -> None:
    timers = Timers()
    timers.set(("a", "x"), 3.0)
    timers.set(("b", "x"), 1.0)
    timers.set(("c", "x"), 1.0)
    assert timers.next() == 1.0
    assert timers.pop_due(0.5) == []
    assert timers.pop_due(2.0) == [("b", "x"), ("c", "x")]
    assert timers.pop_due(2.0) == []
    assert timers.next() == 3.0


def test_timer_set_again_or_cleared_does_not_fire_at_its_old_time() -> None:
    timers = Timers()
    timers.set(("a", "x"), 1.0)
    timers.set(("a", "x"), 5.0)
    timers.set(("b", "x"), 2.0)
    timers.clear(("b", "x"))
    timers.clear(("never", "set"))
    assert timers.pop_due(4.0) == []
    assert timers.pop_due(5.0) == [("a", "x")]
    assert timers.next() is None


@given(
    st.lists(
        st.tuples(st.sampled_from("abcde"), st.none() | st.integers(0, 9), st.integers(0, 9)), max_size=400
    )
)
def test_timers_agree_with_a_plain_table(steps: list[tuple[str, int | None, int]]) -> None:
    timers, table = Timers(), dict[tuple[str, str], float]()
    for name, when, now in steps:
        key = (name, "")
        if when is None:
            timers.clear(key)
            table.pop(key, None)
        else:
            timers.set(key, when)
            table[key] = when
        if now == 9:
            due = {k for k, w in table.items() if w <= 4}
            assert set(timers.pop_due(4)) == due
            table = {k: w for k, w in table.items() if k not in due}
        assert timers.next() == min(table.values(), default=None)
        assert len(timers) == len(table)


def test_ledger_totals_and_what_reports_do_to_them() -> None:
    ledger = Ledger()
    ledger.put("a", Work(1.5, 100, 7, seen_s=0.0))
    ledger.put("b", Work(0.5, 50, 3))
    assert (ledger.seconds, ledger.recent_tokens, ledger.recent_blocks) == (2.0, 150, 10)
    ledger.reported(0.01, lag_s=0.02)  # too soon after the dispatch to include it
    assert ledger.recent == 2
    ledger.reported(1.0, lag_s=0.02)
    assert (ledger.recent, ledger.recent_tokens, ledger.seconds) == (1, 50, 2.0)
    ledger.see("b", 1.0)
    ledger.done("a", 1.0)
    assert (ledger.working, len(ledger), ledger.seconds) == (1, 2, 0.5)
    ledger.reported(2.0, lag_s=0.02)
    for name in ("a", "b", "never"):
        ledger.drop(name)
        ledger.check()
    assert (len(ledger), ledger.seconds, ledger.recent) == (0, 0.0, 0)


def test_a_report_includes_what_it_names_however_soon_it_comes() -> None:
    ledger = Ledger()
    ledger.put("a", Work(1.5, 100, seen_s=0.0))
    ledger.put("b", Work(0.5, 50, seen_s=0.0))
    ledger.reported(0.001, 0.25, ("b", "another router's"))
    assert (ledger.recent, ledger.recent_tokens, ledger.working) == (1, 100, 2)
    ledger.reported(0.3, 0.25, ())
    assert (ledger.recent, ledger.recent_seconds) == (0, 0.0)
    ledger.check()


def test_work_ends_after_it_was_sent_and_after_what_is_before_it() -> None:
    ledger = Ledger()
    assert ledger.free_s(3.0) == 3.0
    ledger.put("a", Work(1.0, sent_s=10.0))
    assert (ledger.free_s(3.0), ledger.free_s(10.5)) == (11.0, 11.5)
    ledger.put("b", Work(2.0, sent_s=10.25))
    ledger.put("c", Work(0.5, sent_s=20.0))
    assert ledger.free_s(3.0) == 20.5
    assert ledger.behind_s == 2.5  # the first may be all but done
    ledger.reported(30.0, 0.0, ("a",))
    assert ledger.behind_s == 2.5  # it is not done
    ledger.done("a", 40.0)
    assert (ledger.behind_s, ledger.free_s(3.0)) == (0.5, 42.5)


def test_ledger_takes_a_request_once() -> None:
    ledger = Ledger()
    ledger.put("a", Work())
    with pytest.raises(AssertionError):
        ledger.put("a", Work())


def test_pending_removes_from_the_middle() -> None:
    pending = Pending(RouterConfig(aging_s=1.0, order="fcfs"))
    lives = [Live(request(name), now, None) for name, now in (("a", 2.0), ("b", 1.0), ("c", 1.0))]
    for live in lives:
        pending.push(live, 0.1, 3.0)
    assert [live.id for live in pending] == ["b", "c", "a"]
    pending.remove(lives[2])
    pending.remove(lives[2])
    assert [live.id for live in pending] == ["b", "a"]
    assert lives[2] not in pending
    pending.check()


def waiting(*works: tuple[str, float]) -> Pending:
    """All came at once, and want their first token within a second."""
    pending = Pending(RouterConfig(margin=0.0))
    for name, work_s in works:
        pending.push(Live(replace(request(name), slo=Slo(ttft_s=1.0)), 0.0, None), work_s, 0.0)
    return pending


def test_who_must_start_first_goes_first() -> None:
    pending = waiting(("short", 0.1), ("long", 0.7), ("middle", 0.3))
    assert [live.id for live in pending] == ["long", "middle", "short"]


def test_the_queue_is_planned_on_the_nodes_as_they_become_free() -> None:
    """Whole prompts on single nodes, each from when it is free: the second node's time does not add to the
    first's."""
    pending = waiting(("one", 0.7), ("two", 0.6), ("short", 0.2))
    pending.triage(0.0, [0.0, 0.2], 1.0)
    assert [live.id for live in pending] == ["one", "two", "short"]
    pending.triage(1.0, [], 1.0)
    assert not any(pending.is_late(live) for live in pending), "without nodes there is no telling"
    pending = waiting(("one", 0.7), ("two", 0.6), ("short", 0.2))
    pending.triage(0.0, [0.0, 0.5], 1.0)
    assert {live.id for live in pending if pending.is_late(live)} == {"one"}


def keys_of(tokens: range, block_size: int, salt: str = "") -> list[bytes]:
    return list(chain(root_key(salt=salt, revision="w"), tuple(tokens), block_size))


@pytest.mark.parametrize("block_size", [1, 3, 4, 16])
@pytest.mark.parametrize("length", [1, 2, 15, 16, 17, 33])
def test_match_is_the_longest_prefix_and_leaves_one_token(block_size: int, length: int) -> None:
    view = NodePrefixes(block_size, "w")
    view.change(keys_of(range(100), block_size), (), reset=False)
    matched = PromptChains(tuple(range(length)), "").matched_tokens(view)
    assert matched == (length - 1) // block_size * block_size


def test_match_stops_at_the_first_missing_block() -> None:
    view = NodePrefixes(4, "w")
    keys = keys_of(range(40), 4)
    view.change(keys[:3] + keys[4:], (), reset=False)
    chains = PromptChains(tuple(range(40)), "")
    assert chains.matched_tokens(view) == 12
    view.change((), (keys[0],), reset=False)
    assert chains.matched_tokens(view) == 0
    view.change(keys, (), reset=True)
    assert chains.matched_tokens(view) == 36


def test_chain_is_computed_once_and_only_as_far_as_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []

    def counting(root: bytes, token_ids: tuple[int, ...], block_size: int):  # type: ignore[no-untyped-def]
        for key in chain(root, token_ids, block_size):
            made.append(1)
            yield key

    monkeypatch.setattr("baton.router.prefix_view.chain", counting)
    chains = PromptChains(tuple(range(4000)), "")
    views = [NodePrefixes(4, "w") for _ in range(8)]
    views[0].change(keys_of(range(40), 4), (), reset=False)
    views[1].change([b"other"], (), reset=False)
    for _ in range(3):
        assert [chains.matched_tokens(view) for view in views] == [40] + [0] * 7
    assert len(made) == 11


@given(st.lists(st.tuples(st.booleans(), st.sampled_from([b"a", b"b"])), max_size=8), st.booleans())
def test_key_in_both_lists_ends_as_history_says(steps: list[tuple[bool, bytes]], before: bool) -> None:
    """Any legal history of a cache (store what is absent, remove what is there), told as two lists."""
    view = NodePrefixes(4, "w")
    truth = {b"a", b"b"} if before else set[bytes]()
    view.change(tuple(truth), (), reset=True)
    stored, removed = [], []
    for store, key in steps:
        if store and key not in truth:
            truth.add(key)
            stored.append(key)
        elif not store and key in truth:
            truth.discard(key)
            removed.append(key)
    view.change(stored, removed, reset=False)
    assert view.stored == truth
