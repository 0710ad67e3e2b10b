"""Sources and a sink over a network that delays, breaks and restarts: committed KV is right and stays right,
nothing is written where it may not, and all blocks come back."""

from itertools import count

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from baton.core.kvcache import KvCache
from baton.core.request import Request
from tests.kv_transfer.handoff_world import Process, World, outcome_of

LONG = tuple(range(1, 30))
PROMPTS = (LONG[:1], LONG[:3], LONG[:4], LONG[:5], LONG[:8], LONG[:9], LONG[:17], LONG, (50,) * 7, (60,) * 16)


class HandoffMachine(RuleBasedStateMachine):
    @initialize(fences=st.booleans(), sizes=st.sampled_from([(4, 4), (4, 2), (2, 4), (3, 4), (8, 4)]))
    def begin(self, fences: bool, sizes: tuple[int, int]) -> None:
        source, target = sizes
        self.world = World(KvCache(10, target), fences, source)
        self.ids = count()
        for node in "ab":
            self.world.spawn(node)

    def alive(self) -> list[Process]:
        return [process for process in self.world.processes if process.alive]

    def one_of(self, data: st.DataObject) -> Process:
        processes = self.alive()
        return processes[data.draw(st.integers(0, len(processes) - 1))]

    @rule(data=st.data(), prompts=st.lists(st.sampled_from(PROMPTS), min_size=1, max_size=3))
    def start(self, data: st.DataObject, prompts: list[tuple[int, ...]]) -> None:
        process = self.one_of(data)
        timeout_s = data.draw(st.none() | st.integers(1, 30))
        for prompt in prompts:
            fits = process.kv.available >= process.kv.blocks_for(len(prompt))
            if process.up and fits:
                process.start(Request(str(next(self.ids)), prompt, max_tokens=9, timeout_s=timeout_s))

    @rule(data=st.data(), blocks=st.integers(1, 7), other=st.booleans())
    def lend(self, data: st.DataObject, blocks: int, other: bool) -> None:
        """Between pools of equal blocks."""
        process, size = self.one_of(data), self.world.kv.block_size
        prompt = ((50,) * 16 if other else LONG)[: blocks * size]
        blocks = len(prompt) // size
        if process.up and process.memory.block_size == size and process.kv.available >= blocks:
            process.lend(Request(str(next(self.ids)), prompt[: blocks * size]))

    @rule(ticks=st.integers(1, 8), data=st.data(), keep=st.integers(0, 2))
    def go(self, ticks: int, data: st.DataObject, keep: int) -> None:
        """Some of what can happen happens: each process computes, hears, is heard, and writes, or not."""
        for _ in range(ticks):
            for process in self.alive():
                does = data.draw(st.integers(0, 15))
                unfinished = [prompt for prompt in process.prompts.values() if not prompt.done]
                if does & 1 and unfinished:
                    process.compute(unfinished[-1 if does & 2 else 0], 5)
                if does & 4:
                    self.world.deliver(process)
                if does & 8 and process.writes:
                    self.world.land(process, process.writes[-1 if does & 2 else 0], 6)
            self.world.pump(keep)

    @rule(data=st.data(), tokens=st.integers(1, 16), fail=st.integers(0, 7))
    def land(self, data: st.DataObject, tokens: int, fail: int) -> None:
        processes = [process for process in self.world.processes if process.writes]
        if not processes:
            return
        process = data.draw(st.sampled_from(processes))
        pending = data.draw(st.sampled_from(process.writes))
        if fail == 0 or (pending.cancelled and fail < 4):
            self.world.fail(process, pending)
        else:
            self.world.land(process, pending, tokens)

    @rule(data=st.data(), at_sink=st.booleans())
    def abort(self, data: st.DataObject, at_sink: bool) -> None:
        process = self.one_of(data)
        if not process.outcomes:
            return
        key = data.draw(st.sampled_from(sorted(process.outcomes)))
        if at_sink:
            self.world.run(self.world.sink.abort(self.world.now, key))
        else:
            process.abort(key)

    @rule(data=st.data(), kind=st.sampled_from(["lose", "crash", "stall", "wait"]))
    def disaster(self, data: st.DataObject, kind: str) -> None:
        process = self.one_of(data)
        match kind:
            case "lose":
                self.world.lose(process)
            case "crash":
                self.world.kill(process)
                self.world.spawn(process.name[0])
            case "stall":  # no beat for a lease, seen from decode
                self.world.wait(self.world.lease_s, beats=False)
            case "wait":
                self.world.wait(5.0, beats=True)

    @rule()
    def reconnect(self) -> None:
        for process in self.alive():
            self.world.reconnect(process)

    @rule(data=st.data())
    def let_go(self, data: st.DataObject) -> None:
        if self.world.residents:
            self.world.let_go(data.draw(st.sampled_from(self.world.residents)))

    @invariant()
    def committed_kv_is_right(self) -> None:
        self.world.residents_are_right()

    @invariant()
    def books_agree(self) -> None:
        self.world.books_agree()

    def teardown(self) -> None:
        world = self.world
        world.settle()
        self.books_agree()
        assert world.kv.pool.owned == world.kv.pool.quarantined == 0, "blocks did not come back to decode"
        assert world.sink.stats().waiting == world.sink.stats().reserved == 0
        assert max(world.admitted.values(), default=0) <= 1, "admitted twice"
        assert max(world.ended.values(), default=0) <= 1, "ended twice"
        assert not world.admitted.keys() & world.ended.keys(), "both admitted and ended"
        for process in self.alive():
            assert process.kv.pool.owned == 0, "blocks did not come back to prefill"
            for key in process.outcomes:
                if outcome_of(process, key) == "handed off" and key not in world.asked:
                    assert world.admitted[key] == 1
        for key, came in world.fetched.items():
            assert len(came) == 1, "a loan ended twice"
            assert key not in world.admitted, "a loan was taken for a request"
            assert key not in world.ended, "a loan ended its request"


TestHandoffMachine = HandoffMachine.TestCase
TestHandoffMachine.settings = settings(max_examples=60, stateful_step_count=50)


class UnguardedMachine(HandoffMachine):
    """The same world without quarantine: cancelled blocks go straight back, what KV1 reports."""

    @initialize(sizes=st.sampled_from([(4, 4), (4, 2), (2, 4)]))
    def begin(self, sizes: tuple[int, int]) -> None:
        self.world = World(KvCache(10, sizes[1]), False, sizes[0])
        self.ids = count()
        for node in "ab":
            self.world.spawn(node)
        self.world.kv.quarantine = self.world.kv.release
        self.world.kv.absolve = lambda blocks: None
        self.world.books_agree = lambda: None  # they cannot


def test_the_machine_finds_a_missing_quarantine() -> None:
    """Guard: the invariants are able to fail for the reason they exist for."""
    quick = settings(
        max_examples=1000, stateful_step_count=50, phases=[Phase.generate], database=None, derandomize=True
    )
    with pytest.raises(AssertionError, match=r"written after it was free|wrong KV"):
        run_state_machine_as_test(UnguardedMachine, settings=quick)
