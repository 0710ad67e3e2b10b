"""What happens to a request when its nodes die or give it up, before and after its first token."""

from __future__ import annotations

from dataclasses import replace

import pytest

from baton.core.errors import BatonError, Code, error_for
from baton.core.load import Role
from baton.core.prefix import chain, root_key
from baton.core.request import FinishReason, SamplingParams
from baton.router.events import (
    CancelOn,
    Complete,
    Dispatch,
    Effect,
    KvChanged,
    NodeFailed,
    NodeFinished,
    Pair,
    Reject,
)
from baton.router.machine_config import RouterConfig

from .machine_kit import FINGERPRINT, Bench, load, node, of


def pair_of_each() -> Bench:
    bench = Bench()
    bench.join(node("p1", Role.PREFILL), node("p2", Role.PREFILL))
    bench.join(node("d1", Role.DECODE), node("d2", Role.DECODE))
    return bench


def fail(bench: Bench, node_id: str, error: BatonError, attempt: int = 0) -> list[Effect]:
    return bench.step(NodeFailed("r", attempt, node_id, error))


def test_decode_lost_mid_stream_goes_on_elsewhere_after_what_was_delivered() -> None:
    bench = pair_of_each()
    [first] = of(Dispatch, bench.arrive("r", max_tokens=6))
    bench.tokens("r", first.prefill_node, 0, 10)
    bench.handed_off("r", first.prefill_node)
    bench.tokens("r", first.decode_node, 1, 11, 12)
    [again] = of(Dispatch, bench.lose(first.decode_node))
    assert again.decode_node != first.decode_node
    assert (again.request.attempt, again.request.output_ids) == (1, (10, 11, 12))
    assert again.request.max_tokens == 6
    assert bench.tokens("r", first.decode_node, 3, 99) == []
    bench.tokens("r", again.prefill_node, 3, 13, attempt=1)
    bench.handed_off("r", again.prefill_node, attempt=1)
    bench.tokens("r", again.decode_node, 4, 14, 15, attempt=1)
    assert of(Complete, bench.finished("r", again.decode_node, 6, attempt=1))
    assert bench.text("r") == [10, 11, 12, 13, 14, 15]


def test_prefill_lost_before_the_first_token_is_retried_and_decode_told() -> None:
    bench = pair_of_each()
    [first] = of(Dispatch, bench.arrive("r"))
    effects = bench.lose(first.prefill_node)
    assert of(CancelOn, effects) == [CancelOn(first.decode_node, "r", 0)]
    [again] = of(Dispatch, effects)
    assert again.prefill_node != first.prefill_node
    assert again.request.output_ids == ()


def test_prefill_lost_between_first_token_and_hand_off_is_retried() -> None:
    bench = pair_of_each()
    [first] = of(Dispatch, bench.arrive("r"))
    bench.tokens("r", first.prefill_node, 0, 10)
    effects = bench.lose(first.prefill_node)
    assert CancelOn(first.decode_node, "r", 0) in effects
    [again] = of(Dispatch, effects)
    assert again.request.output_ids == (10,)


@pytest.mark.parametrize("decode_spoke", [False, True])
def test_prefill_lost_after_its_work_does_not_matter(decode_spoke: bool) -> None:
    bench = pair_of_each()
    [first] = of(Dispatch, bench.arrive("r"))
    bench.tokens("r", first.prefill_node, 0, 10)
    if decode_spoke:  # it decodes, so it has the KV, whether we were told or not
        bench.tokens("r", first.decode_node, 1, 11)
    else:
        bench.handed_off("r", first.prefill_node)
    assert not of(Dispatch, bench.lose(first.prefill_node))
    bench.tokens("r", first.decode_node, 1, 11, 12, 13)
    assert of(Complete, bench.finished("r", first.decode_node, 4))


def test_gap_owed_by_a_lost_prefill_node_is_made_again() -> None:
    bench = pair_of_each()
    [first] = of(Dispatch, bench.arrive("r"))
    bench.tokens("r", first.decode_node, 1, 11, 12, 13)
    bench.finished("r", first.decode_node, 4)
    [again] = of(Dispatch, bench.lose(first.prefill_node))
    assert again.request.output_ids == ()


def test_decode_lost_after_it_finished_does_not_matter() -> None:
    bench = pair_of_each()
    [first] = of(Dispatch, bench.arrive("r"))
    bench.tokens("r", first.decode_node, 1, 11, 12, 13)
    bench.finished("r", first.decode_node, 4)
    assert not of(Dispatch, bench.lose(first.decode_node))
    bench.tokens("r", first.prefill_node, 0, 10)
    assert of(Complete, bench.handed_off("r", first.prefill_node))


def test_all_tokens_delivered_but_the_finish_lost_completes() -> None:
    bench = pair_of_each()
    [first] = of(Dispatch, bench.arrive("r"))
    bench.tokens("r", first.prefill_node, 0, 10)
    bench.tokens("r", first.decode_node, 1, 11, 12, 13)
    [done] = of(Complete, bench.lose(first.decode_node))
    assert done.reason is FinishReason.LENGTH


@pytest.mark.parametrize("as_stop_id", [False, True])
def test_stop_token_delivered_but_the_finish_lost_completes_with_stop(as_stop_id: bool) -> None:
    bench = pair_of_each()
    if as_stop_id:
        [first] = of(Dispatch, bench.arrive("r", sampling=SamplingParams(stop_token_ids=(11,))))
    else:
        [first] = of(Dispatch, bench.arrive("r", eos_token_ids=(11,)))
    bench.tokens("r", first.prefill_node, 0, 10)
    bench.tokens("r", first.decode_node, 1, 11)
    [done] = of(Complete, bench.lose(first.decode_node))
    assert done.reason is FinishReason.STOP


def test_ignored_eos_is_no_end() -> None:
    bench = pair_of_each()
    sampling = SamplingParams(ignore_eos=True)
    [first] = of(Dispatch, bench.arrive("r", sampling=sampling, eos_token_ids=(11,)))
    bench.tokens("r", first.prefill_node, 0, 10)
    bench.tokens("r", first.decode_node, 1, 11)
    assert of(Dispatch, bench.lose(first.decode_node))


@pytest.mark.parametrize(
    "code",
    [
        Code.INVALID_ARGUMENT,
        Code.DEADLINE_EXCEEDED,
        Code.UNIMPLEMENTED,
        Code.UNAUTHENTICATED,
        Code.PERMISSION_DENIED,
    ],
)
def test_errors_that_another_node_would_repeat_are_not_retried(code: Code) -> None:
    bench = pair_of_each()
    [first] = of(Dispatch, bench.arrive("r"))
    effects = fail(bench, first.prefill_node, error_for(code, "no", field="top_k"))
    [reject] = of(Reject, effects)
    assert (reject.error.code, reject.error.field) == (code, "top_k")
    assert CancelOn(first.decode_node, "r", 0) in effects


@pytest.mark.parametrize("code", [Code.UNAVAILABLE, Code.INTERNAL, Code.CANCELLED])
def test_other_errors_are_retried_elsewhere(code: Code) -> None:
    bench = pair_of_each()
    [first] = of(Dispatch, bench.arrive("r"))
    [again] = of(Dispatch, fail(bench, first.prefill_node, error_for(code, "oh")))
    assert again.prefill_node != first.prefill_node
    assert (again.prefill_node, again.decode_node) != (first.prefill_node, first.decode_node)


def test_node_that_failed_a_request_is_left_out_however_good_it_looks() -> None:
    bench = Bench()
    bench.join(*(node(name, Role.BOTH) for name in ("b1", "b2", "b3")))
    keys = tuple(chain(root_key(revision="w0"), tuple(range(1, 801)), 4))
    bench.step(KvChanged("b1", "b1", stored=keys))
    [first] = of(Dispatch, bench.arrive("r", prompt=800))
    assert first.prefill_node == "b1"
    [again] = of(Dispatch, fail(bench, "b1", error_for(Code.INTERNAL, "oh")))
    assert "b1" not in (again.prefill_node, again.decode_node)
    other = of(Dispatch, bench.arrive("another", prompt=800))
    assert other[0].prefill_node == "b1", "only the request that failed there avoids it"


def test_retries_are_bounded_and_the_last_error_is_told() -> None:
    bench = Bench(RouterConfig(max_retries=2))
    bench.one_of_each()
    bench.arrive("r")
    for attempt in range(3):
        fail(bench, "p", error_for(Code.UNAVAILABLE, "broken link"), attempt)
        bench.run_until(bench.now + 0.9)
    end = bench.end("r")
    assert isinstance(end, Reject)
    assert end.error.code is Code.UNAVAILABLE
    assert "3 attempts" in end.error.message
    assert "broken link" in end.error.message
    assert len(bench.dispatches("r")) == 3


def test_same_pair_is_tried_again_only_after_a_pause() -> None:
    bench = Bench()
    bench.one_of_each()
    bench.arrive("r")
    assert not of(Dispatch, fail(bench, "p", error_for(Code.UNAVAILABLE, "x")))
    assert bench.machine.queued == 1
    assert of(Dispatch, bench.run_until(bench.now + 0.06))


def test_refusal_for_lack_of_room_costs_no_retry_and_waits_for_a_report() -> None:
    bench = Bench(RouterConfig(max_retries=0))
    bench.one_of_each()
    bench.arrive("r")
    fail(bench, "p", error_for(Code.RESOURCE_EXHAUSTED, "queue full"))
    assert not of(Dispatch, bench.run_until(bench.now + 1.0))
    assert bench.end("r") is None
    assert of(Dispatch, bench.report("p", load(Role.PREFILL, 2)))


def test_node_that_ends_a_request_by_itself_is_a_failure() -> None:
    bench = pair_of_each()
    [first] = of(Dispatch, bench.arrive("r"))
    event = NodeFinished("r", 0, first.prefill_node, FinishReason.CANCELLED, 0)
    assert of(Dispatch, bench.step(event))


def test_lost_node_without_replacement_is_waited_for() -> None:
    bench = Bench(RouterConfig(no_node_wait_s=5.0))
    bench.one_of_each()
    bench.arrive("r")
    assert not of(Reject, bench.lose("d"))
    assert bench.machine.queued == 1
    [again] = of(Dispatch, bench.join(node("d", Role.DECODE, "d-2")))
    assert again.decode_node == "d"


def test_waiting_for_a_node_ends_with_unavailable() -> None:
    bench = Bench(RouterConfig(no_node_wait_s=5.0))
    bench.join(node("p", Role.PREFILL))
    bench.arrive("r")
    assert not bench.run_until(bench.now + 2.0)
    bench.report("p", load(Role.PREFILL, 2))
    [reject] = of(Reject, bench.run_until(bench.now + 4.0))
    assert reject.error.code is Code.UNAVAILABLE
    assert "decode" in reject.error.message


def test_text_is_never_continued_by_other_weights() -> None:
    bench = Bench(RouterConfig(no_node_wait_s=1.0))
    bench.one_of_each()
    bench.arrive("r")
    bench.tokens("r", "p", 0, 10)
    other = {"fingerprint": replace(FINGERPRINT, weights="w1")}
    bench.join(node("p2", Role.PREFILL, **other), node("d2", Role.DECODE, **other))
    assert not of(Dispatch, bench.lose("d"))
    [reject] = of(Reject, bench.run_until(bench.now + 1.5))
    assert reject.error.code is Code.FAILED_PRECONDITION or reject.error.code is Code.UNAVAILABLE


def test_pair_whose_layouts_do_not_convert_is_remembered() -> None:
    bench = Bench()
    bench.join(node("p", Role.PREFILL), node("d1", Role.DECODE), node("d2", Role.DECODE))
    [first] = of(Dispatch, bench.arrive("r"))
    error = error_for(Code.FAILED_PRECONDITION, "kv dtype fp32 against fp8")
    effects = fail(bench, "p", error)
    assert of(Pair, effects) == [Pair("p", first.decode_node, ("kv dtype fp32 against fp8",))]
    [again] = of(Dispatch, effects)
    assert again.decode_node != first.decode_node
    for name in "abcdef":
        assert [d.decode_node for d in of(Dispatch, bench.arrive(name))] == [again.decode_node]


def test_only_pair_whose_layouts_do_not_convert_is_refused_with_the_item() -> None:
    bench = Bench()
    bench.one_of_each()
    bench.arrive("r")
    [reject] = of(Reject, fail(bench, "p", error_for(Code.FAILED_PRECONDITION, "head_dim 64 against 128")))
    assert reject.error.code is Code.FAILED_PRECONDITION
    assert "head_dim 64 against 128" in reject.error.message
