"""The decode scheduler, one behaviour at a time."""

import pytest

from baton.core.batch import RowOutput
from baton.core.errors import DeadlineExceeded, IllegalTransition
from baton.core.kvcache import KvCache
from baton.core.node_effects import Admit, Ended, TokensOut
from baton.core.request import TPOT_SHARE, FinishReason, Request, SamplingParams, Slo
from baton.decode_node.limits import DecodeLimits
from baton.decode_node.scheduler import DecodeScheduler
from tests.fake_kv import FakeMemory, digest, next_token, reference, run

BLOCK = 4


class Node:
    """A scheduler with its pool, memory and clock; `admit` is a finished hand-off, `step` runs one batch."""

    def __init__(self, blocks: int = 21, budget: int = 64, **limits) -> None:
        self.kv = KvCache(blocks, BLOCK)
        self.memory = FakeMemory(blocks, BLOCK)
        self.max_len = limits.setdefault("max_model_len", (blocks - 1) * BLOCK)
        self.scheduler = DecodeScheduler(self.kv, DecodeLimits(**limits), "r")
        self.budget = budget
        self.now = 0.0
        self.requests: dict[tuple[str, int], Request] = {}
        self.output: dict[tuple[str, int], list[int]] = {}
        self.ended: dict[tuple[str, int], Ended] = {}

    def admit(
        self, name: str, prompt: int, *, deadline_s: float | None = None, seed: int | None = None, **fields
    ) -> tuple[str, int]:
        """seed: which prompt; None: another one each time."""
        seed = len(self.requests) if seed is None else seed
        tokens = tuple((7 * seed + i) % 90 for i in range(prompt))
        first = next_token(tokens)
        request = Request(name, tokens, output_ids=(first,), **fields)
        blocks = self.kv.allocate(self.kv.blocks_for(prompt))
        self.memory.clear(self.kv.take_dirty())
        for position in range(prompt):
            self.memory.write(blocks, position, digest(tokens[: position + 1]))
        key = (name, 0)
        self.requests[key], self.output[key] = request, [first]
        self.take_in(self.scheduler.admit(self.now, Admit(request, tuple(blocks), prompt, 0, deadline_s)))
        self.now += 0.001
        return key

    def rows(self):
        rows = self.scheduler.schedule(self.now, self.budget)
        self.memory.clear(self.kv.take_dirty())
        return rows

    def step(self):
        rows = self.rows()
        effects = self.scheduler.complete(self.now, run(self.memory, rows))
        self.take_in(effects)
        self.scheduler.check()
        self.kv.check()
        self.now += 0.001
        return rows

    def take_in(self, effects) -> None:
        for effect in effects:
            assert effect.key not in self.ended, "something after the end"
            if isinstance(effect, TokensOut):
                assert effect.index == len(self.output[effect.key]), "skipped or repeated"
                self.output[effect.key] += effect.token_ids
            else:
                self.ended[effect.key] = effect

    def until_idle(self, limit: int = 1000) -> int:
        """Steps taken; all that ended well must be the reference's."""
        steps = 0
        while self.scheduler.busy:
            self.step()
            steps += 1
            assert steps < limit, "never idle"
        for key, ended in self.ended.items():
            request = self.requests[key]
            expected, reason = reference(request, self.max_len)
            if ended.reason in (FinishReason.STOP, FinishReason.LENGTH):
                assert (self.output[key], ended.reason) == (expected, reason)
                assert ended.output_tokens == len(expected)
        assert self.kv.pool.owned == 0
        return steps


def test_outputs_from_index_one_to_the_limit() -> None:
    node = Node()
    key = node.admit("a", 6, max_tokens=5)
    assert node.until_idle() == 4
    assert node.ended[key].reason is FinishReason.LENGTH


@pytest.mark.parametrize("length", [1, 2, 3, 4, 5, 7, 8, 9])
def test_kv3_the_partial_last_block_is_extended(length: int) -> None:
    node = Node()
    node.admit("a", length, max_tokens=3 * BLOCK + 1)
    node.until_idle()


def test_hand_offs_of_one_prompt_that_crossed_share_its_full_blocks() -> None:
    node = Node()
    for name in "abc":
        node.admit(name, 10, seed=5, max_tokens=6)
    assert node.kv.pool.owned == 2 + 3, "two full blocks together, and a partial one each"
    tables = [row.block_table for row in node.step()]
    assert len({tuple(table[:2]) for table in tables}) == 1
    assert len({table[2] for table in tables}) == 3
    node.until_idle()


def test_stop_ids_end_it_at_once() -> None:
    node = Node()
    stop = reference(Request("x", tuple(range(6)), max_tokens=9), 80)[0][3]
    key = node.admit("a", 6, max_tokens=9, sampling=SamplingParams(stop_token_ids=(stop,)))
    node.until_idle()
    assert node.ended[key].reason is FinishReason.STOP


def test_a_request_at_its_limit_ends_on_arrival() -> None:
    node = Node()
    key = node.admit("a", 6, max_tokens=1)
    assert node.ended[key].reason is FinishReason.LENGTH
    assert node.kv.pool.owned == 0


def test_output_becomes_findable_but_never_what_was_not_computed() -> None:
    node = Node()
    node.admit("a", 6, max_tokens=7)
    node.until_idle()
    assert len(node.kv.index) == 3, "12 tokens have KV: all but the last of 13"


def test_sch1_alone_at_the_pool_limit_ends_with_length() -> None:
    node = Node(blocks=20, max_model_len=19 * BLOCK)
    key = node.admit("a", 60, max_tokens=60)
    node.until_idle()
    assert node.ended[key].reason is FinishReason.LENGTH
    assert node.ended[key].output_tokens == 16
    assert node.scheduler.stats().preemptions == 0


def test_sch1_two_that_do_not_fit_together_take_turns() -> None:
    node = Node(blocks=20)
    keys = [node.admit(name, 36, max_tokens=40) for name in "ab"]
    node.until_idle()
    assert all(node.ended[key].reason is FinishReason.LENGTH for key in keys)
    assert 1 <= sum(node.ended[key].preemptions for key in keys) <= 4


@pytest.mark.parametrize("count", [2, 6])
def test_life3_preempted_sequences_go_on_exactly(count: int) -> None:
    node = Node(blocks=25, max_running=8)
    for i in range(min(count, 6)):
        node.admit(str(i), 16, max_tokens=64)
    node.until_idle()
    assert node.scheduler.stats().preemptions >= 1
    assert len(node.ended) == count
    assert node.ended["0", 0].preemptions == 0, "the eldest never gives way"


def test_life3_committed_ones_give_way_to_one_that_grows() -> None:
    node = Node(blocks=17, max_running=1)
    node.admit("grows", 16, max_tokens=48)
    for i in range(3):
        node.admit(f"waits{i}", 16, max_tokens=4)
    for _ in range(46):
        node.step()
    assert node.scheduler.stats().preemptions >= 1
    assert node.ended.keys() == set()
    node.until_idle()
    assert len(node.ended) == 4


def test_recomputation_goes_in_chunks_beside_decoding() -> None:
    node = Node(blocks=20, chunk_tokens=8)
    node.kv.prefix_caching = False
    node.admit("a", 36, max_tokens=40)
    node.admit("b", 36, max_tokens=10)
    lengths = [[row.length for row in node.step()] for _ in range(60)]
    node.until_idle()
    assert node.scheduler.stats().recomputed_tokens >= 36
    assert max(length for rows in lengths for length in rows) == 8


def test_sch5_priority_takes_a_slot_and_loses_no_kv() -> None:
    node = Node(max_running=2)
    for name in ("low0", "low1"):
        node.admit(name, 8, max_tokens=20, priority=1)
    node.step()
    node.admit("high", 8, max_tokens=3)
    assert "high" in {row.seq[0] for row in node.step()}, "at the very next step"
    node.until_idle()
    assert node.scheduler.stats().preemptions == 0


def test_headroom_is_for_the_batch_and_the_preempted() -> None:
    node = Node(blocks=24)
    assert node.scheduler.headroom_blocks() == 0
    for name in "ab":
        node.admit(name, 36, max_tokens=40)
    node.step()
    assert node.scheduler.headroom_blocks() == 2
    while not node.scheduler.stats().preemptions:
        node.step()
    assert node.scheduler.headroom_blocks() >= 10


def test_prompts_on_the_same_pool_give_way_first() -> None:
    taken = []
    node = Node(blocks=10)
    hostage = node.kv.allocate(5)

    def reclaim(blocks: int) -> int:
        taken.append(blocks)
        node.kv.release(hostage)
        return len(hostage)

    node.scheduler = DecodeScheduler(node.kv, DecodeLimits(36), "r", reclaim)
    node.admit("a", 16, max_tokens=8)
    node.until_idle()
    assert taken == [1]


def test_blocks_held_by_hand_offs_are_waited_for() -> None:
    node = Node(blocks=10)
    hostage = node.kv.allocate(5)
    key = node.admit("a", 16, max_tokens=8)
    assert node.rows() == []
    node.scheduler.complete(node.now, {})
    node.kv.release(hostage)
    node.until_idle()
    assert node.ended[key].preemptions == 0


def test_can2_abort_in_every_phase() -> None:
    node = Node(blocks=20, max_running=2)
    assert node.scheduler.abort(("nobody", 0)) == []
    waiting = node.admit("waiting", 8)
    assert [type(effect) for effect in node.scheduler.abort(waiting)] == [Ended]
    assert node.scheduler.abort(waiting) == []
    for name in "ab":
        node.admit(name, 36, max_tokens=40)
    while not node.scheduler.stats().preemptions:
        node.step()
    (ended,) = node.scheduler.abort(("b", 0))
    assert (ended.reason, ended.preemptions) == (FinishReason.CANCELLED, 1)
    (ended,) = node.scheduler.abort(("a", 0), silent=True)
    assert ended.silent
    assert node.kv.pool.owned == 0
    assert not node.scheduler.busy


def test_can2_abort_of_what_runs_right_now_waits_for_the_runner() -> None:
    node = Node()
    key = node.admit("a", 6, max_tokens=9)
    rows = node.rows()
    assert node.scheduler.abort(key) == []
    assert node.scheduler.abort(key) == []
    assert node.kv.pool.owned == 2, "the runner writes these"
    with pytest.raises(IllegalTransition):
        node.scheduler.schedule(node.now, 4)
    (ended,) = node.scheduler.complete(node.now, run(node.memory, rows))
    assert ended.reason is FinishReason.CANCELLED
    assert node.kv.pool.owned == 0


def test_deadlines() -> None:
    node = Node()
    node.admit("a", 6, deadline_s=3.0)
    assert node.scheduler.next_wakeup() == 3.0
    assert node.scheduler.expire(2.9) == []
    (ended,) = node.scheduler.expire(3.0)
    assert isinstance(ended.error, DeadlineExceeded)
    assert node.scheduler.next_wakeup() is None


def test_a_second_hand_off_of_a_sequence_changes_nothing() -> None:
    node = Node()
    node.admit("a", 6, max_tokens=9)
    blocks = node.kv.allocate(2)
    twin = Admit(node.requests["a", 0], tuple(blocks), 6, 0, None)
    assert node.scheduler.admit(node.now, twin) == []
    node.until_idle()


def test_who_lost_time_before_it_came_catches_up_in_some_tokens() -> None:
    node = Node()
    slo = Slo(tpot_s=0.1)
    request = Request("a", tuple(range(8)), output_ids=(next_token(tuple(range(8))),), max_tokens=20, slo=slo)
    admit = Admit(request, tuple(node.kv.allocate(2)), 8, 0, None)
    node.scheduler.admit(1.0, admit, waited_s=0.08)
    rows = node.scheduler.schedule(1.0, 64)
    usual_s = TPOT_SHARE * slo.tpot_s
    least_s = node.scheduler.patience_s(1.0, rows)
    assert least_s is not None
    assert usual_s / 2 < least_s < usual_s - 0.01
    paid_back_s, now = 0.0, 1.0
    for _ in range(8):
        step_s = node.scheduler.patience_s(now, rows)
        assert step_s is not None
        now += step_s
        paid_back_s += usual_s - step_s
        node.scheduler.complete(now, {rows[0].seq: RowOutput(rows[0].seq, 1)})
        rows = node.scheduler.schedule(now, 64)
    assert 0.06 < paid_back_s < 0.08
