"""One request's way through the machine, and each rule about its tokens, one by one."""

from __future__ import annotations

import pytest

from baton.core.batch import TokenLogprobs
from baton.core.errors import Code, IllegalTransition, Unavailable
from baton.core.load import Role
from baton.core.request import FinishReason, SamplingParams
from baton.router.events import (
    Arrived,
    Cancelled,
    CancelOn,
    Complete,
    Deliver,
    Dispatch,
    NodeFailed,
    Reject,
    TokensMade,
)

from .machine_kit import Bench, load, node, of, request


@pytest.fixture
def bench() -> Bench:
    made = Bench()
    made.one_of_each()
    return made


def test_plain_request_runs_and_completes(bench: Bench) -> None:
    [dispatch] = of(Dispatch, bench.arrive("r"))
    assert (dispatch.prefill_node, dispatch.decode_node) == ("p", "d")
    bench.started("r", "p")
    assert of(Deliver, bench.tokens("r", "p", 0, 10)) == [Deliver("r", 0, (10,))]
    bench.handed_off("r", "p")
    assert bench.machine.node_in_flight("p") == 0
    assert bench.machine.node_in_flight("d") == 1
    bench.tokens("r", "d", 1, 11, 12, 13)
    [done] = of(Complete, bench.finished("r", "d", 4))
    assert done.reason is FinishReason.LENGTH
    assert bench.text("r") == [10, 11, 12, 13]
    facts = done.outcome
    assert facts.output_tokens == 4
    stamps = [facts.arrived_s, facts.dispatched_s, facts.first_token_s, facts.decode_start_s]
    stamps += [facts.last_token_s, facts.ended_s]
    assert None not in stamps
    assert stamps == sorted(stamps)  # type: ignore[type-var]
    assert (facts.prefill_node, facts.decode_node, facts.transfer_bytes) == ("p", "d", 100)
    assert bench.machine.in_flight == bench.machine.queued == 0


def test_request_that_ends_with_its_first_token_never_needs_decode(bench: Bench) -> None:
    bench.arrive("r", max_tokens=1)
    bench.tokens("r", "p", 0, 10)
    assert of(Complete, bench.finished("r", "p", 1))
    assert bench.machine.node_in_flight("d") == 0


def test_decode_tokens_before_the_first_are_held(bench: Bench) -> None:
    bench.arrive("r")
    assert not of(Deliver, bench.tokens("r", "d", 1, 11))
    assert not of(Deliver, bench.tokens("r", "d", 3, 13))
    assert [d.token_ids for d in of(Deliver, bench.tokens("r", "p", 0, 10))] == [(10,), (11,)]
    assert [d.token_ids for d in of(Deliver, bench.tokens("r", "d", 2, 12))] == [(12,), (13,)]


def test_duplicates_and_overlaps_are_dropped(bench: Bench) -> None:
    bench.arrive("r")
    bench.tokens("r", "p", 0, 10)
    assert not of(Deliver, bench.tokens("r", "p", 0, 10))
    bench.tokens("r", "d", 1, 11)
    assert of(Deliver, bench.tokens("r", "d", 1, 11, 12)) == [Deliver("r", 2, (12,))]
    assert not of(Deliver, bench.tokens("r", "d", 1, 11, 12))


def test_no_more_than_max_tokens_are_delivered(bench: Bench) -> None:
    bench.arrive("r", max_tokens=2)
    bench.tokens("r", "p", 0, 10)
    bench.handed_off("r", "p")
    bench.tokens("r", "d", 1, 11, 12, 13)
    bench.tokens("r", "d", 4, 14)
    assert bench.text("r") == [10, 11]
    assert of(Complete, bench.finished("r", "d", 2))


LP = tuple(TokenLogprobs(i, -float(i)) for i in range(9))


def test_logprobs_are_cut_with_their_tokens(bench: Bench) -> None:
    bench.arrive("r")
    bench.step(TokensMade("r", 0, "p", 0, (10,), LP[:1]))
    [second] = of(Deliver, bench.step(TokensMade("r", 0, "d", 0, (10, 11), LP[:2])))
    assert second == Deliver("r", 1, (11,), LP[1:2], ())


def test_prompt_logprobs_come_once_over_all_parts_and_attempts(bench: Bench) -> None:
    """A node sends many of them in parts; one that is lost in between leaves the rest to the next attempt."""
    bench.arrive("r", prompt=8)  # the first token has none
    assert of(Deliver, bench.step(TokensMade("r", 0, "p", 0, (), (), LP[1:4])))
    bench.step(NodeFailed("r", 0, "p", Unavailable("it broke")))
    bench.run_until(bench.now + 1.0)
    for part in (LP[1:3], LP[3:6], LP[6:9]):
        bench.step(TokensMade("r", 1, "p", 0, (), (), part))
    bench.step(TokensMade("r", 1, "p", 0, (10,), LP[:1], LP[1:2]))
    got = [entry for deliver in of(Deliver, bench.all) for entry in deliver.prompt_logprobs]
    assert got == [*LP[1:8]]
    assert bench.text("r") == [10]


def test_finish_waits_for_the_missing_tokens(bench: Bench) -> None:
    bench.arrive("r")
    bench.handed_off("r", "p")
    bench.tokens("r", "d", 1, 11, 12, 13)
    assert not of(Complete, bench.finished("r", "d", 4))
    effects = bench.tokens("r", "p", 0, 10)
    assert [type(e) for e in effects[:3]] == [Deliver, Deliver, Complete]
    assert bench.text("r") == [10, 11, 12, 13]


@pytest.mark.parametrize("stale", [("r", 1, "p"), ("r", 0, "x"), ("q", 0, "p")])
def test_events_of_other_attempts_nodes_and_requests_are_dropped(
    bench: Bench, stale: tuple[str, int, str]
) -> None:
    bench.arrive("r")
    name, attempt, node_id = stale
    assert bench.tokens(name, node_id, 0, 99, attempt=attempt) == []
    assert bench.finished(name, node_id, 0, attempt=attempt) == []
    assert bench.machine.stale_events == 2


def test_cancel_tells_both_nodes_and_completes_once(bench: Bench) -> None:
    bench.arrive("r")
    effects = bench.step(Cancelled("r"))
    assert {c.node_id for c in of(CancelOn, effects)} == {"p", "d"}
    assert [c.reason for c in of(Complete, effects)] == [FinishReason.CANCELLED]
    assert bench.step(Cancelled("r")) == []
    assert bench.tokens("r", "p", 0, 1) == []


def test_stop_string_found_at_the_edge_completes_with_stop(bench: Bench) -> None:
    bench.arrive("r")
    bench.tokens("r", "p", 0, 10)
    bench.handed_off("r", "p")
    effects = bench.step(Cancelled("r", FinishReason.STOP))
    assert [c.node_id for c in of(CancelOn, effects)] == ["d"]
    assert [c.reason for c in of(Complete, effects)] == [FinishReason.STOP]


def test_cancel_of_the_unknown_leaves_no_trace(bench: Bench) -> None:
    assert bench.step(Cancelled("nobody")) == []


def test_deadline_rejects_and_cancels_both(bench: Bench) -> None:
    bench.arrive("r", deadline_s=bench.now + 1.0)
    assert bench.dispatches("r")[0].request.timeout_s == pytest.approx(1.0, abs=0.01)
    assert not bench.run_until(bench.now + 0.9)
    effects = bench.run_until(bench.now + 0.2)
    assert {c.node_id for c in of(CancelOn, effects)} == {"p", "d"}
    assert [r.error.code for r in of(Reject, effects)] == [Code.DEADLINE_EXCEEDED]


def test_deadline_in_the_past_is_rejected_at_once(bench: Bench) -> None:
    assert [r.error.code for r in of(Reject, bench.arrive("r", deadline_s=0.0))] == [Code.DEADLINE_EXCEEDED]


def test_id_of_a_living_request_is_refused_and_changes_nothing(bench: Bench) -> None:
    bench.arrive("r")
    with pytest.raises(IllegalTransition):
        bench.step(Arrived(request("r")))
    bench.tokens("r", "p", 0, 10)
    assert bench.text("r") == [10]


def test_node_of_both_roles_serves_alone() -> None:
    bench = Bench()
    bench.join(node("b", Role.BOTH))
    [dispatch] = of(Dispatch, bench.arrive("r"))
    assert (dispatch.prefill_node, dispatch.decode_node) == ("b", "b")
    assert bench.machine.node_in_flight("b") == 1
    bench.tokens("r", "b", 0, 10)
    bench.tokens("r", "b", 1, 11, 12, 13)
    assert of(Complete, bench.finished("r", "b", 4))


def test_cached_tokens_are_those_of_the_first_attempt(bench: Bench) -> None:
    bench.join(node("d2", Role.DECODE))
    bench.arrive("r")
    first = bench.dispatches("r")[0].decode_node
    bench.started("r", "p")
    bench.lose(first)
    bench.started("r", "p", attempt=1)
    bench.tokens("r", "p", 0, 10, attempt=1)
    bench.step(Cancelled("r"))
    end = bench.end("r")
    assert isinstance(end, Complete)
    assert end.outcome.cached_tokens == 0
    assert end.outcome.retries == 1


def test_sampling_is_passed_on_untouched(bench: Bench) -> None:
    sampling = SamplingParams(seed=7, temperature=0.5, min_tokens=2)
    bench.arrive("r", sampling=sampling)
    assert bench.dispatches("r")[0].request.sampling == sampling


def test_prompt_longer_than_every_context_is_an_invalid_argument() -> None:
    bench = Bench()
    bench.join(node("b", Role.BOTH, max_model_len=8, load=load(Role.BOTH)))
    [reject] = of(Reject, bench.arrive("r", prompt=8))
    assert (reject.error.code, reject.error.field) == (Code.INVALID_ARGUMENT, "prompt")
    assert of(Dispatch, bench.arrive("s", prompt=7))
