"""Prompt chunks beside decode: as many tokens as the running requests' targets leave time for."""

from __future__ import annotations

from dataclasses import replace

import pytest

from baton.core.batch import RowOutput, StepOutput
from baton.core.kvcache import KvCache
from baton.core.load import Role
from baton.core.request import Request, SamplingParams, Slo
from baton.decode_node.limits import DecodeLimits
from baton.decode_node.scheduler import DecodeScheduler
from baton.kv_transfer.handoff_sink import HandoffSink, SinkLimits
from baton.node import commands as cmd
from baton.node.core import CoreLimits, NodeCore
from baton.prefill_node.limits import PrefillLimits
from baton.prefill_node.scheduler import PrefillScheduler

STEP_S, ROW_S, TOKEN_S = 0.002, 0.001, 0.0001


class Node:
    """A node of both roles whose steps take a known time."""

    def __init__(self, limits: CoreLimits | None = None) -> None:
        kv = KvCache(4001, 4, prefix_caching=False)
        prefill = PrefillScheduler(kv, PrefillLimits(8192, chunk_tokens=2048, max_running=4), "r")
        decode = DecodeScheduler(kv, DecodeLimits(8192, max_running=8), "r", prefill.reclaim)
        sink = HandoffSink(kv, SinkLimits(8192, 1000), "r")
        self.core = NodeCore(kv, prefill, decode, sink, Role.BOTH, limits or CoreLimits(2048, 8))
        self.now = 0.0
        self.slower = 1.0

    def add(self, name: str, prompt: int, slo: Slo = Slo(), max_tokens: int = 4000) -> None:  # noqa: B008
        request = Request(name, tuple(range(prompt)), SamplingParams(), max_tokens=max_tokens, slo=slo)
        self.core.handle(self.now, cmd.Add(request, None, in_place=True))

    def step(self) -> tuple[int, int, float]:
        """(decode rows, prompt tokens, seconds) of one step."""
        self.core.tick(self.now)
        rows = self.core.schedule(self.now)
        decode = self.core.decode_rows
        tokens = sum(row.length for row in rows[decode:])
        seconds = (STEP_S + ROW_S * decode + TOKEN_S * tokens) * self.slower
        outputs = tuple(RowOutput(row.seq, 1 if row.sample else None) for row in rows)
        self.now += seconds
        self.core.complete(self.now, StepOutput(outputs, duration_s=seconds))
        self.core.drain()
        return decode, tokens, seconds

    def warm_up(self) -> None:
        """Steps of both kinds, so that the node knows its pace."""
        for i in range(12):
            self.add(f"w{i}", 100 + 37 * i, max_tokens=6)
            while self.core.has_work:
                self.step()


def test_a_long_prompt_keeps_the_running_inside_their_target() -> None:
    node = Node()
    node.warm_up()
    node.add("runs", 8, Slo(tpot_s=0.02))
    node.step()
    node.add("long", 4000)
    steps = []
    while (step := node.step())[1]:
        steps.append(step)
    assert all(decode == 1 for decode, _, _ in steps)
    assert sum(seconds for *_, seconds in steps) / len(steps) <= 0.02 * 1.1
    assert max(seconds for *_, seconds in steps) <= 4 * 0.02 * 1.1
    assert sum(tokens for _, tokens, _ in steps) == 4000
    assert sum(tokens for _, tokens, _ in steps) / len(steps) > 100, "the time there is goes to the prompt"


def test_steps_that_take_a_little_longer_than_predicted_miss_no_target() -> None:
    node = Node()
    node.warm_up()
    node.add("runs", 8, Slo(tpot_s=0.02))
    node.step()
    node.add("long", 8000)
    node.slower = 1.08
    steps = []
    while (step := node.step())[1]:
        steps.append(step[2])
    assert sum(steps) / len(steps) < 0.02


@pytest.mark.parametrize("slo", [Slo(), Slo(ttft_s=1.0)])
def test_without_a_target_chunks_are_as_large_as_they_may_be(slo: Slo) -> None:
    node = Node()
    node.warm_up()
    node.add("runs", 8, slo)
    node.step()
    node.add("long", 4000)
    assert node.step()[1] == 2047


def test_a_prompt_never_starves_behind_targets_that_cannot_be_met() -> None:
    node = Node()
    node.warm_up()
    node.add("runs", 8, Slo(tpot_s=0.001))
    node.step()
    node.add("long", 400)
    tokens = [node.step()[1] for _ in range(13 * 8)]
    assert [count for count in tokens if count] == [32] * 12 + [16]
    assert tokens[:16] == [0] * 7 + [32] + [0] * 7 + [32]


def test_what_a_request_is_ahead_may_be_spent_on_a_prompt() -> None:
    """Alone it is fast; then one longer step keeps its mean inside the target, and saves the prompt many."""
    node = Node()
    node.warm_up()
    node.add("runs", 8, Slo(tpot_s=0.02))
    for _ in range(20):
        node.step()
    node.add("long", 700)
    first, second = node.step(), node.step()
    assert first[1] == 700 or second[1] + first[1] == 700
    assert 0.05 < first[2] <= 4 * 0.02 * 1.1


def test_by_latency_can_be_turned_off() -> None:
    node = Node(replace(CoreLimits(2048, 8), by_latency=False))
    node.warm_up()
    node.add("runs", 8, Slo(tpot_s=0.02))
    node.step()
    node.add("long", 4000)
    assert node.step()[1] == 2047


def test_long_contexts_make_smaller_chunks() -> None:
    """What attention adds is in the fit: the same time holds fewer tokens after many."""
    from baton.node.pace import Pace

    pace = Pace(2048)
    for tokens in (64, 128, 256, 512) * 8:
        for context in (0, 4000):
            seconds = 0.002 + 1e-4 * tokens + 1e-7 * tokens * (context + tokens / 2)
            pace._cost.observe_prefill(tokens, context, seconds)
    fresh, deep = pace.prompt_tokens((), 0.05, 0), pace.prompt_tokens((), 0.05, 4000)
    assert 1.2 * deep < fresh


def test_a_node_that_never_decodes_alone_learns_its_pace_all_the_same() -> None:
    """From its first step on prompts wait: no step is of decode alone, and still the target is kept."""
    node = Node()
    node.slower = 10.0  # than what is thought of it at first
    for i in range(4):
        node.add(f"w{i}", 400, Slo(tpot_s=0.2))
    for i in range(60):
        node.add(f"p{i}", 300, Slo(tpot_s=0.2))
    steps = [node.step() for _ in range(60)]
    assert sum(decode > 0 and not tokens for decode, tokens, _ in steps) == 0, "decode ran alone"
    late = [seconds for decode, _, seconds in steps[20:] if decode]
    assert sum(late) / len(late) < 0.2


def test_rare_prompts_are_heard_among_many_steps_of_decode() -> None:
    """What thins out the measurements of one kind of step leaves those of the other alone."""
    node = Node()
    node.slower = 4.0
    node.add("talks", 8, max_tokens=200)
    while node.core.has_work:
        node.step()
    for i, tokens in enumerate((300, 600, 900, 1200)):
        node.add(f"p{i}", tokens, max_tokens=1)
        node.step()
    node.add("runs", 8, Slo(tpot_s=0.1))
    node.step()
    node.add("long", 2000)
    _, tokens, seconds = node.step()
    assert tokens > 100
    assert seconds < 0.1 * 1.1
