"""The prefill scheduler, one behaviour at a time."""

from zlib import crc32

import pytest

from baton.core.batch import RowOutput
from baton.core.errors import (
    DeadlineExceeded,
    IllegalTransition,
    InvalidArgument,
    NotFound,
    ResourceExhausted,
    Unavailable,
)
from baton.core.kvcache import KvCache
from baton.core.node_effects import Ended, KvReady, Prefilled, Started, TokensOut
from baton.core.request import FinishReason, Request, SamplingParams, Slo
from baton.prefill_node.limits import PrefillLimits
from baton.prefill_node.scheduler import PrefillScheduler
from tests.fake_kv import FakeMemory, next_token, run

BLOCK = 4


class Node:
    """A scheduler with its pool, memory and clock; `step` runs one batch."""

    def __init__(self, blocks: int = 21, budget: int = 16, **limits) -> None:
        self.kv = KvCache(blocks, BLOCK)
        self.memory = FakeMemory(blocks, BLOCK)
        limits.setdefault("chunk_tokens", 16)
        self.scheduler = PrefillScheduler(self.kv, PrefillLimits(256, **limits), "r")
        self.budget = budget
        self.now = 0.0

    def add(
        self, name: str, prompt: int | tuple[int, ...], *, remote: bool = True, **fields
    ) -> tuple[str, int]:
        """prompt: tokens, or how many of a kind of its own."""
        tokens = (
            tuple((crc32(name.encode()) + i) % 90 for i in range(prompt))
            if isinstance(prompt, int)
            else prompt
        )
        deadline_s = fields.pop("deadline_s", None)
        fields.setdefault("max_tokens", 8)
        request = Request(name, tokens, **fields)
        self.scheduler.add(self.now, request, deadline_s, remote=remote)
        return name, request.attempt

    def rows(self):
        rows = self.scheduler.schedule(self.now, self.budget)
        self.memory.clear(self.kv.take_dirty())
        return rows

    def step(self):
        effects = self.scheduler.complete(self.now, run(self.memory, self.rows()))
        self.now += 0.01
        self.scheduler.check()
        self.kv.check()
        return effects

    def until_idle(self, limit: int = 100):
        """All effects; remote hand-offs are over at once."""
        effects = []
        for _ in range(limit):
            for effect in (new := self.step()):
                if isinstance(effect, (Prefilled, Ended)):
                    self.scheduler.release(effect.key)
            effects += new
            if not self.scheduler.busy:
                return effects
        raise AssertionError("never idle")


def kinds(effects) -> list[type]:
    return [type(effect) for effect in effects]


def test_a_prompt_in_one_chunk_gives_its_token_before_its_kv() -> None:
    node = Node()
    key = node.add("a", 6)
    effects = node.step()
    assert kinds(effects) == [Started, TokensOut, Prefilled]
    tokens, done = effects[1], effects[2]
    assert (tokens.index, done.tokens, len(done.blocks)) == (0, 6, 2)
    assert done.output_ids == tokens.token_ids
    assert node.scheduler.stats().exporting == 1
    node.scheduler.release(key)
    assert node.kv.pool.owned == 0


@pytest.mark.parametrize(
    "length", [1, 2, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK - 1, 2 * BLOCK, 2 * BLOCK + 1]
)
def test_kv3_every_length_is_announced_whole(length: int) -> None:
    node = Node(budget=3)
    node.add("a", length)
    effects = node.until_idle()
    done = next(effect for effect in effects if isinstance(effect, Prefilled))
    assert (done.tokens, len(done.blocks)) == (length, -(-length // BLOCK))
    ready = [effect.tokens for effect in effects if isinstance(effect, KvReady)]
    assert ready == list(range(3, length, 3))


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"max_tokens": 1}, FinishReason.LENGTH),
        ({"sampling": SamplingParams(stop_token_ids=tuple(range(97)))}, FinishReason.STOP),
        ({"eos_token_ids": tuple(range(97))}, FinishReason.STOP),
    ],
)
def test_a_first_token_that_ends_the_request_exports_nothing(fields, reason) -> None:
    node = Node()
    key = node.add("a", 6, **fields)
    effects = node.step()
    assert kinds(effects) == [Started, TokensOut, Ended]
    assert effects[-1].reason is reason
    assert node.kv.pool.owned == 2, "a hand-off may still read the blocks"
    node.scheduler.release(key)
    assert node.kv.pool.owned == 0


def test_a_retry_continues_at_its_output_position() -> None:
    node = Node()
    node.add("a", (1, 2, 3), output_ids=(4, 5), attempt=2)
    effects = node.step()
    assert effects[1].index == 2
    assert effects[2].output_ids == (4, 5, next_token((1, 2, 3, 4, 5)))


def test_the_last_token_is_always_computed_and_prompt_logprobs_compute_all() -> None:
    node = Node()
    prompt = tuple(range(8))
    node.add("a", prompt)
    node.until_idle()
    node.add("b", prompt)
    assert node.rows()[0].start == 4
    node.scheduler.complete(node.now, {})
    node.scheduler.abort(("b", 0), silent=True)
    node.scheduler.release(("b", 0))
    node.add("c", prompt, sampling=SamplingParams(prompt_logprobs=0))
    effects = node.step()
    assert effects[0].cached_tokens == 0
    assert [entry.token_id for entry in effects[1].prompt_logprobs] == list(range(1, 8))


def test_met2_hits_are_counted_once_per_request() -> None:
    node = Node()
    prompt = tuple(range(17))
    for i in range(10):
        node.add(str(i), prompt)
        started = node.until_idle()[0]
        assert started.cached_tokens == (16 if i else 0)
    stats = node.scheduler.stats()
    assert (stats.prefix_queries, stats.prefix_hits) == (170, 144)


def test_met2_waiting_and_preemption_do_not_count_again() -> None:
    node = Node(blocks=12, budget=4)
    for i in range(6):
        node.add(str(i), 20, remote=False)
        node.step()
        node.scheduler.reclaim(1)
    effects = []
    for _ in range(100):
        for effect in (new := node.step()):
            if isinstance(effect, Prefilled):
                node.scheduler.take(effect.key).drop_kv(node.kv)
        effects += new
    stats = node.scheduler.stats()
    assert stats.preemptions > 0
    assert (stats.prefix_queries, stats.prefix_hits) == (120, 0)


def test_sch1_what_can_never_fit_is_refused_at_once() -> None:
    node = Node(blocks=21)
    with pytest.raises(InvalidArgument, match="KV blocks"):
        node.add("a", 100)
    with pytest.raises(InvalidArgument, match="at most 255"):
        node.add("b", 256)
    with pytest.raises(InvalidArgument, match="leave none"):
        node.add("c", (1, 2), output_ids=(3,), max_tokens=1)
    node.add("canary", 4)
    assert Prefilled in kinds(node.step())


def test_the_queue_is_bounded_and_keys_are_unique() -> None:
    node = Node(max_waiting=1)
    node.add("a", 4)
    with pytest.raises(Unavailable):
        node.add("a", 4)
    with pytest.raises(ResourceExhausted) as shed:
        node.add("b", 4)
    assert shed.value.retry_after_s is not None


def test_sch5_short_prompts_do_not_wait_for_a_long_one() -> None:
    node = Node(blocks=200)
    node.add("long", 250)
    node.step()
    shorts = [node.add(f"s{i}", 4) for i in range(20)]
    done: dict[tuple[str, int], int] = {}
    for step in range(30):
        for effect in node.step():
            if isinstance(effect, Prefilled):
                done[effect.key] = step
                node.scheduler.release(effect.key)
    waits = sorted(done[key] for key in shorts)
    assert waits[10] <= 2, "20 short prompts fill the budget of 5 steps"
    assert done["long", 0] < 30


def test_sch5_the_long_one_is_not_overtaken_for_ever() -> None:
    node = Node(blocks=200, max_running=4, token_s=0.001, patience=1.0)
    long = node.add("long", 200)
    for step in range(100):
        for i in range(4):  # as many short ones, each step, as use up the budget
            node.add(f"s{step}.{i}", 4)
        for effect in node.step():
            if isinstance(effect, Prefilled):
                node.scheduler.release(effect.key)
                if effect.key == long:
                    return
    raise AssertionError("starved")


def test_sch5_a_prompt_without_blocks_lets_small_ones_by_but_not_for_ever() -> None:
    node = Node(blocks=21, max_bypass=5)
    holder = node.add("holder", 40)
    for _ in range(3):
        node.step()  # prefilled; its 10 blocks wait for the hand-off
    node.add("big", 72)
    for i in range(20):
        node.now += 1.0  # each younger than the big one's patience
        node.add(f"s{i}", 4, slo=Slo(ttft_s=100.0))
    passed = 0
    for _ in range(20):
        for effect in node.step():
            if isinstance(effect, Prefilled):
                passed += 1
                node.scheduler.release(effect.key)
    assert passed == 5
    assert node.scheduler.wanted_blocks() == 18
    node.scheduler.release(holder)
    assert sum(isinstance(effect, Prefilled) for effect in node.until_idle()) == 16


def test_priority_takes_a_slot_and_the_loser_starts_again() -> None:
    node = Node(budget=4, max_running=1)
    node.add("low", 12, remote=False, priority=1)
    node.step()
    node.add("high", 4, remote=False, priority=0)
    effects = node.step()
    assert [effect.key[0] for effect in effects if isinstance(effect, Prefilled)] == ["high"]
    assert node.scheduler.stats().preemptions == 1
    node.scheduler.abort(("high", 0))
    effects = [effect for _ in range(4) for effect in node.step()]
    assert kinds(effects) == [TokensOut, Prefilled], "started is said once"


def test_exports_are_bounded() -> None:
    node = Node(max_exporting=2)
    for name in "abc":
        node.add(name, 4)
        node.step()
    node.add("here", 4, remote=False)
    node.step()
    stats = node.scheduler.stats()
    assert (stats.exporting, stats.waiting) == (3, 1), "two exports, one in place, and c waits"


def test_can1_abort_of_an_export_ends_it_and_release_gives_the_blocks() -> None:
    node = Node()
    key = node.add("a", 6)
    node.step()
    (ended,) = node.scheduler.abort(key, silent=True)
    assert (ended.reason, ended.silent) == (FinishReason.CANCELLED, True)
    assert node.scheduler.abort(key) == [], "a second abort is a no-op"
    with pytest.raises(NotFound):
        node.scheduler.take(key)
    assert node.kv.pool.owned == 2
    node.scheduler.release(key)
    node.scheduler.release(key)
    assert node.kv.pool.owned == 0


def test_can2_abort_in_every_phase() -> None:
    node = Node(budget=4)
    assert node.scheduler.abort(("nobody", 0)) == []
    key = node.add("queued", 6)
    assert kinds(node.scheduler.abort(key)) == [Ended]
    key = node.add("between chunks", 12, remote=False)
    node.step()
    assert kinds(node.scheduler.abort(key)) == [Ended]
    assert node.kv.pool.owned == 0
    key = node.add("preempted", 12, remote=False)
    node.step()
    assert node.scheduler.reclaim(1) > 0
    assert kinds(node.scheduler.abort(key)) == [Ended]
    assert not node.scheduler.busy


def test_can2_abort_of_what_runs_right_now_waits_for_the_runner() -> None:
    node = Node()
    key = node.add("a", 6, remote=False)
    rows = node.rows()
    assert node.scheduler.abort(key, silent=True) == []
    assert node.scheduler.fail(key, Unavailable("later")) == []
    assert node.kv.pool.owned == 2, "the runner writes these"
    effects = node.scheduler.complete(node.now, run(node.memory, rows))
    assert kinds(effects) == [Started, Ended]
    assert (effects[1].reason, effects[1].silent) == (FinishReason.CANCELLED, True)
    assert node.kv.pool.owned == 0


def test_deadlines() -> None:
    node = Node(budget=4)
    node.add("a", 12, deadline_s=5.0)
    node.add("b", 12, deadline_s=3.0)
    assert node.scheduler.next_wakeup() == 3.0
    assert node.scheduler.expire(2.9) == []
    (ended,) = node.scheduler.expire(3.0)
    assert ended.key == ("b", 0)
    assert isinstance(ended.error, DeadlineExceeded)
    assert node.scheduler.next_wakeup() == 5.0


def test_a_row_without_output_is_computed_again() -> None:
    node = Node()
    node.add("a", 6)
    node.rows()
    assert kinds(node.scheduler.complete(node.now, {})) == [Started]
    (row,) = node.scheduler.schedule(node.now, node.budget)
    assert (row.start, row.length) == (0, 6)
    node.scheduler.complete(node.now, {row.seq: RowOutput(row.seq, 3)})


def test_misuse_is_refused() -> None:
    node = Node()
    key = node.add("a", 6)
    node.rows()
    with pytest.raises(IllegalTransition):
        node.scheduler.schedule(node.now, 4)
    with pytest.raises(IllegalTransition):
        node.scheduler.reclaim(1)
    node.scheduler.complete(node.now, {key: RowOutput(key, 3)})
    with pytest.raises(IllegalTransition, match="handed off"):
        node.scheduler.take(key)
    with pytest.raises(NotFound):
        node.scheduler.take(("b", 0))


def order_of_first_tokens(node: Node) -> list[str]:
    return [effect.key[0] for effect in node.until_idle(200) if isinstance(effect, TokensOut)]


def test_what_cannot_meet_its_target_goes_behind_what_still_can() -> None:
    """10 ms a step of 16 tokens: both long ones would make it alone, and the short ones only without them."""
    node = Node(blocks=200, token_s=0.01 / 16)
    for name in ("long a", "long b"):
        node.add(name, 96, slo=Slo(ttft_s=0.099))
    for i in range(4):
        node.add(f"s{i}", 16, slo=Slo(ttft_s=0.099))
    order = order_of_first_tokens(node)
    assert order[:4] == ["s0", "s1", "s2", "s3"]
    assert sorted(order[4:]) == ["long a", "long b"]


def test_the_wait_at_the_router_is_part_of_the_target() -> None:
    node = Node(blocks=200, token_s=0.01 / 16)
    node.add("fresh", 64, slo=Slo(ttft_s=0.1))
    node.add("old", 64, slo=Slo(ttft_s=0.1), waited_s=0.055)
    assert order_of_first_tokens(node) == ["old", "fresh"]


def test_in_vain_does_not_mean_never() -> None:
    """It cannot be on time, and ever more come that can: after a while it gets its share."""
    node = Node(blocks=400, token_s=0.01 / 16, late_wait_s=0.3, late_share=0.25)
    node.add("late", 160, slo=Slo(ttft_s=0.05))
    for i in range(120):
        node.add(f"s{i}", 16, slo=Slo(ttft_s=0.5))
        effects = node.step()
        for effect in effects:
            if isinstance(effect, (Prefilled, Ended)):
                node.scheduler.release(effect.key)
        if any(isinstance(effect, TokensOut) and effect.key[0] == "late" for effect in effects):
            break
    else:
        raise AssertionError("starved")
    assert i > 29


def test_first_come_first_served_on_request() -> None:
    node = Node(blocks=200, order="fcfs")
    node.add("long", 96)
    node.add("short", 4, slo=Slo(ttft_s=0.01))
    assert order_of_first_tokens(node) == ["long", "short"]
