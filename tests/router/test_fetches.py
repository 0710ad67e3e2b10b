"""Prompts whose beginning another node has: fetched where that is faster than computing it, only there."""

from __future__ import annotations

from dataclasses import replace

import pytest

from baton.core.load import Role
from baton.core.prefix import chain, root_key
from baton.router.events import Dispatch, Fetch, KvChanged, NodeInfo, OperatorDrain, PrefillStarted, Record
from baton.router.fetches import MOST_SHARE
from baton.router.lent import PAUSE_S
from baton.router.machine_config import RouterConfig

from .machine_kit import FINGERPRINT, Bench, load, node, of, request

LONG = 800
KEYS = tuple(chain(root_key(revision=FINGERPRINT.weights), request("r", LONG).token_ids, 4))
USABLE = (LONG - 1) // 4 * 4


def bench(
    *extra: NodeInfo, config: RouterConfig | None = None, tokens: int = LONG, holder: str = "d"
) -> Bench:
    """A prefill node without anything, and a decode node that has the first `tokens` of the prompt."""
    one = Bench(config or RouterConfig())
    one.join(node("p", Role.PREFILL), node("d", Role.DECODE), *extra)
    one.step(KvChanged(holder, holder, KEYS[: tokens // 4]))
    return one


def asked(one: Bench, name: str = "r", prompt: int = LONG) -> Dispatch:
    one.arrive(name, prompt=prompt)
    (dispatch,) = one.dispatches(name)
    return dispatch


def test_a_long_beginning_is_fetched_from_the_decode_node() -> None:
    one = bench()
    dispatch = asked(one)
    assert dispatch.fetch is not None
    assert (dispatch.prefill_node, dispatch.fetch.node_id, dispatch.fetch.tokens) == ("p", "d", USABLE)
    prediction = dispatch.prediction
    assert prediction.cached_tokens == USABLE
    assert prediction.fetch_s > 0.0
    assert prediction.ttft_s < 0.08, "less than computing it"
    (record,) = [r for r in of(Record, one.all) if r.kind == "dispatch"]
    assert record.data["fetch_from"] == "d"
    assert record.data["fetch_s"] == prediction.fetch_s


def test_its_patience_is_what_computing_would_take() -> None:
    plain = asked(bench(config=RouterConfig(fetch=False)))
    dispatch = asked(bench())
    assert plain.fetch is None
    assert dispatch.fetch is not None
    saved_s = plain.prediction.prefill_s - dispatch.prediction.prefill_s
    assert dispatch.fetch.patience_s == pytest.approx(saved_s)
    assert dispatch.prediction.fetch_s < MOST_SHARE * saved_s


def test_a_part_is_better_than_nothing() -> None:
    dispatch = asked(bench(tokens=400))
    assert dispatch.fetch is not None
    assert dispatch.fetch.tokens == 400


def test_what_is_fast_to_compute_is_not_fetched() -> None:
    assert asked(bench(), prompt=60).fetch is None
    assert asked(bench(tokens=40)).fetch is None


def test_what_is_here_already_is_not_fetched() -> None:
    one = bench()
    one.step(KvChanged("p", "p", KEYS))
    assert asked(one).fetch is None


def test_over_a_slow_link_it_is_computed() -> None:
    one = bench()
    samples = tuple((1_000_000 * i, 0.5 * i) for i in range(1, 9)) * 8
    one.report("d", replace(load(Role.DECODE, seq=2), transfer_samples=samples))
    assert asked(one).fetch is None


@pytest.mark.parametrize(
    "extra",
    [
        node("q", Role.PREFILL, kv_dtype="int8"),
        node("q", Role.DECODE, kv_dtype="int8"),
    ],
)
def test_while_kv_of_several_types_is_about_nothing_is_fetched(extra: NodeInfo) -> None:
    one = bench(extra)
    assert asked(one).fetch is None


def test_only_nodes_that_serve_lend() -> None:
    one = bench(node("e", Role.DECODE), config=RouterConfig(max_node_wait_s=1.0))
    one.step(OperatorDrain("d", True))
    assert asked(one).fetch is None
    one.step(OperatorDrain("d", False))
    assert asked(one, "again").fetch is not None
    one = bench(node("e", Role.DECODE))
    one.lose("d")
    assert asked(one).fetch is None


def test_a_hot_prefix_spreads_when_its_node_has_a_queue() -> None:
    """As long as nothing is ahead of it, it goes where it is cached; then the other node copies it."""
    one = bench(node("q", Role.PREFILL), holder="q")
    first = asked(one)
    assert (first.prefill_node, first.fetch) == ("q", None)
    one.report("q", replace(load(Role.PREFILL, seq=2), waiting=2, waiting_tokens=4000, waiting_work=10**6))
    second = asked(one, "second")
    assert second.fetch is not None
    assert (second.prefill_node, second.fetch.node_id) == ("p", "q")


def test_links_are_taken_for_what_is_booked_on_them() -> None:
    one = bench(node("q", Role.PREFILL))
    first, second = asked(one), asked(one, "second")
    assert {first.prefill_node, second.prefill_node} == {"p", "q"}
    assert first.fetch is not None
    assert second.fetch is not None
    assert second.prediction.fetch_s > first.prediction.fetch_s


def begun(one: Bench, dispatch: Dispatch, cached: int, fetched: int) -> Record:
    name = dispatch.request.id
    effects = one.step(PrefillStarted(name, 0, dispatch.prefill_node, cached, 0.02, fetched))
    (record,) = of(Record, effects)
    one.tokens(name, dispatch.prefill_node, 0, 1)
    one.handed_off(name, dispatch.prefill_node)
    return record


def test_a_lender_that_gives_nothing_is_left_alone_for_a_while() -> None:
    one = bench()
    record = begun(one, asked(one), 0, 0)
    assert (record.kind, record.data["lender"], record.data["fetched_tokens"]) == ("fetch", "d", 0)
    assert asked(one, "second").fetch is None
    one.tokens("second", "p", 0, 1)
    one.handed_off("second", "p")
    one.now += PAUSE_S
    for seq, name, role in ((2, "p", Role.PREFILL), (2, "d", Role.DECODE)):
        one.report(name, load(role, seq=seq))
    third = asked(one, "third")
    assert isinstance(third.fetch, Fetch)
    begun(one, third, USABLE, USABLE)
    assert asked(one, "fourth").fetch is not None


def test_who_lacked_nothing_in_the_end_blames_nobody() -> None:
    one = bench()
    begun(one, asked(one), USABLE, 0)
    assert asked(one, "second").fetch is not None
