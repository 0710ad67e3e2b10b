"""What every transport must do. A backend's test module subclasses `Conformance` and names its kind."""

from __future__ import annotations

import gc
import os
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from baton.core.errors import FailedPrecondition, Unavailable
from baton.kv_transfer.api import Outcome, Write
from baton.kv_transfer.faulty import Faults
from tests.kv_transfer.half_way import HalfWay
from tests.kv_transfer.rig import (
    SMALL,
    Rig,
    naive_copy,
    rig_of,
    same_bits,
    value_of,
    vectors_of,
    write_of,
)

SENTINEL = 777.0

UNEQUAL = [
    ({}, {"block_size": 16, "num_blocks": 8}),
    ({"block_size": 16, "num_blocks": 8}, {"block_size": 3, "num_blocks": 30}),
    ({"layer_start": 1, "layer_end": 4}, {"layer_start": 0, "layer_end": 3}),
    ({"head_start": 0, "head_end": 2}, {"head_start": 1, "head_end": 6}),
    ({"block_size": 1, "num_blocks": 60}, {"dtype": "bfloat16", "head_start": 2, "head_end": 3}),
    ({"dtype": "bfloat16"}, {"dtype": "float32", "block_size": 8}),
    ({"dtype": "float16"}, {"dtype": "bfloat16"}),
    ({"dtype": "int8"}, {"dtype": "int8", "block_size": 16, "num_blocks": 8}),
    ({"dtype": "float8_e4m3fn", "head_end": 2}, {"dtype": "float8_e4m3fn", "head_start": 1, "head_end": 6}),
    ({"dtype": "int8", "layer_start": 1, "layer_end": 4}, {"dtype": "int8", "layer_end": 3}),
    ({"dtype": "int8", "head_dim": 5}, {"dtype": "int8", "head_dim": 5, "block_size": 3, "num_blocks": 30}),
    ({}, {"dtype": "int8"}),
    ({"dtype": "bfloat16", "block_size": 16, "num_blocks": 8}, {"dtype": "float8_e4m3fn", "head_end": 1}),
    ({"dtype": "int8"}, {"dtype": "float16", "block_size": 3, "num_blocks": 30}),
    ({"dtype": "float8_e4m3fn"}, {"dtype": "int8", "block_size": 8}),
]


class Conformance(HalfWay):
    @pytest.fixture
    def rig(self) -> Iterator[Rig]:
        torch.set_num_threads(1)
        with rig_of(self.kind, self.faults) as rig:
            yield rig

    def test_whole_blocks_land_where_they_belong_and_nowhere_else(self, rig: Rig) -> None:
        source, target = rig.node("s"), rig.node("t", fill=SENTINEL)
        expected = target.tensor.clone()
        connection = source.transport.connect(target.peer())
        target.transport.open(7, "s", [3, 4, 9, 23])
        write = write_of(1, 7, [2, 3, 1, 23], [3, 4, 9, 23])
        connection.submit(write)
        done = source.wait(1)[1]
        naive_copy(source, target, write, expected)
        assert done.outcome is Outcome.APPLIED, done
        assert done.payload_bytes == 4 * SMALL.block_bytes
        assert done.transfer_id == 7
        assert done.seconds > 0
        assert same_bits(target.tensor, expected)

    @pytest.mark.parametrize("dtype", ["int8", "float8_e4m3fn"])
    def test_codes_and_scales_travel_as_they_are(self, rig: Rig, dtype: str) -> None:
        """Whatever they are: no code is decoded on the way, so a NaN keeps its bits too."""
        layout = replace(SMALL, dtype=dtype)
        source, target = rig.node("s", layout), rig.node("t", layout, fill=SENTINEL)
        source.tensor.random_(0, 256)
        expected = target.tensor.clone()
        connection = source.transport.connect(target.peer())
        target.transport.open(7, "s", [3, 4, 9, 23])
        whole = write_of(1, 7, [2, 3, 1], [3, 4, 9])
        part = Write(2, 7, 13, 15, [23], 12, [23], 12)
        connection.submit(whole)
        connection.submit(part)
        ended = source.wait(2)
        assert {done.outcome for done in ended.values()} == {Outcome.APPLIED}
        assert ended[1].payload_bytes == 3 * layout.block_bytes
        assert ended[2].payload_bytes == 2 * layout.block_bytes // layout.block_size
        naive_copy(source, target, whole, expected)
        naive_copy(source, target, part, expected)
        assert same_bits(target.tensor, expected)

    @pytest.mark.parametrize(("src", "dst"), [("float32", "int8"), ("int8", "bfloat16")])
    def test_a_spoilt_vector_spoils_no_other_on_the_way(self, rig: Rig, src: str, dst: str) -> None:
        source = rig.node("s", replace(SMALL, dtype=src))
        target = rig.node("t", replace(SMALL, dtype=dst), fill=0)
        spoilt = vectors_of(source.tensor, source.layout).at(1, 1, 2, 0)
        (spoilt.values if spoilt.scales is None else spoilt.scales)[0] = torch.nan
        connection = source.transport.connect(target.peer())
        target.transport.open(1, "s", [1])
        connection.submit(write_of(1, 1, [1], [1]))
        assert source.wait(1)[1].outcome is Outcome.APPLIED
        there = value_of(vectors_of(target.tensor, target.layout))[1]
        assert there.isnan().all(-1).nonzero().tolist() == [[1, 0, 2, 0]]
        assert int(there.isnan().sum()) == SMALL.head_dim

    @pytest.mark.parametrize(("src", "dst"), UNEQUAL)
    def test_unequal_layouts_and_partial_blocks(
        self, rig: Rig, src: dict[str, object], dst: dict[str, object]
    ) -> None:
        source = rig.node("s", replace(SMALL, **src))  # type: ignore[arg-type]
        target = rig.node("t", replace(SMALL, **dst), fill=SENTINEL)  # type: ignore[arg-type]
        expected = target.tensor.clone()
        connection = source.transport.connect(target.peer())
        pieces = ((5, 22), (22, 23), (23, 30))  # as chunks would come, not aligned to blocks
        for count, (start, end) in enumerate(pieces):
            first = start // target.layout.block_size * target.layout.block_size
            blocks = [4, 2, *range(7, 7 + 22 // target.layout.block_size)]
            needed = -(-(end - first) // target.layout.block_size)
            write = Write(count, 9, start, end, range(1, 60), 0, blocks[: max(needed, 1)], first)
            target.transport.open(9, "s", write.dst_blocks)
            connection.submit(write)
            assert source.wait(count + 1)[count].outcome is Outcome.APPLIED, source.ended
            naive_copy(source, target, write, expected)
        assert same_bits(target.tensor, expected)

    def test_dtypes_are_rounded_exactly(self, rig: Rig) -> None:
        source = rig.node("s")
        target = rig.node("t", replace(SMALL, dtype="bfloat16"), fill=0)
        odd = [1 + 2**-8, 1 + 2**-9, 1 + 3 * 2**-8, -1e-40, 3.4e38, float("inf"), float("-inf"), -0.0]
        source.tensor[1, 0, 0, 0, 0] = torch.tensor(odd)
        connection = source.transport.connect(target.peer())
        target.transport.open(1, "s", [1])
        connection.submit(write_of(1, 1, [1], [1]))
        assert source.wait(1)[1].outcome is Outcome.APPLIED
        assert same_bits(target.tensor[1], source.tensor[1].to(torch.bfloat16))

    def test_a_write_of_no_tokens_is_applied(self, rig: Rig) -> None:
        source, target = rig.node("s"), rig.node("t", fill=SENTINEL)
        connection = source.transport.connect(target.peer())
        target.transport.open(1, "s", [])
        connection.submit(write_of(1, 1, [], [], tokens=0, start=5))
        done = source.wait(1)[1]
        assert (done.outcome, done.payload_bytes) == (Outcome.APPLIED, 0)
        assert bool((target.tensor == SENTINEL).all())

    def test_a_malformed_write_fails_alone(self, rig: Rig) -> None:
        source, target = rig.node("s"), rig.node("t", fill=SENTINEL)
        connection = source.transport.connect(target.peer())
        target.transport.open(1, "s", [1, 2])
        connection.submit(write_of(1, 1, [1], [99]))
        connection.submit(write_of(2, 1, [0], [1]))
        connection.submit(write_of(3, 1, [1], [1], tokens=9))
        connection.submit(write_of(4, 1, [5], [2]))
        ended = source.wait(4)
        assert [ended[i].outcome for i in (1, 2, 3)] == [Outcome.FAILED] * 3
        assert "99" in ended[1].error
        assert ended[4].outcome is Outcome.APPLIED
        assert bool((target.tensor[1] == SENTINEL).all())

    def test_writes_of_a_connection_end_in_order(self, rig: Rig) -> None:
        source, target = rig.node("s"), rig.node("t")
        connection = source.transport.connect(target.peer())
        target.transport.open(1, "s", range(1, 24))
        for i in range(1, 200):
            connection.submit(write_of(i, 1, [1 + i % 23], [1 + i % 23]))
        source.wait(199)
        assert [c.write_id for c in source.ended] == list(range(1, 200))
        assert same_bits(target.tensor[1:], source.tensor[1:])

    def test_only_opened_transfers_and_their_blocks_may_be_written(self, rig: Rig) -> None:
        if not rig.fences:
            pytest.skip("the target takes no part in a write")
        source, target = rig.node("s"), rig.node("t", fill=SENTINEL)
        connection = source.transport.connect(target.peer())
        target.transport.open(1, "s", [1, 2])
        target.transport.open(2, "someone else", [3])
        connection.submit(write_of(1, 1, [1, 2], [2, 3]))
        connection.submit(write_of(2, 2, [1], [3]))
        connection.submit(write_of(3, 3, [1], [4]))
        connection.submit(write_of(4, 3, [], [], tokens=0))
        connection.submit(write_of(5, 1, [1, 2], [1, 2]))
        ended = source.wait(5)
        assert [ended[i].outcome for i in (1, 2, 3, 4)] == [Outcome.FAILED] * 4
        assert all(ended[i].error for i in (1, 2, 3, 4))
        assert ended[5].outcome is Outcome.APPLIED
        assert bool((target.tensor[3:] == SENTINEL).all())

    def test_reopening_ends_the_earlier_permission(self, rig: Rig) -> None:
        if not rig.fences:
            pytest.skip("the target takes no part in a write")
        source, target = rig.node("s"), rig.node("t", fill=SENTINEL)
        connection = source.transport.connect(target.peer())
        target.transport.open(1, "s", [1])
        target.transport.open(1, "s", [2])
        connection.submit(write_of(1, 1, [1], [1]))
        connection.submit(write_of(2, 1, [1], [2]))
        ended = source.wait(2)
        assert (ended[1].outcome, ended[2].outcome) == (Outcome.FAILED, Outcome.APPLIED)

    def test_a_restarted_target_is_another_peer(self, rig: Rig) -> None:
        source, old = rig.node("s"), rig.node("t1")
        stale = old.peer()
        connection = source.transport.connect(stale)
        old.transport.open(1, "s", [1])
        connection.submit(write_of(1, 1, [1], [1]))
        assert source.wait(1)[1].outcome is Outcome.APPLIED
        old.close()
        fresh = rig.node("t2", fill=SENTINEL)
        connection.submit(write_of(2, 1, [1], [1]))
        assert source.wait(2)[2].outcome is Outcome.FAILED
        with pytest.raises(Unavailable, match="t1"):
            source.transport.connect(stale)
        mixed = replace(fresh.peer(), incarnation="t1")  # the new one answers where the old one did
        with pytest.raises(Unavailable, match="t1"):
            source.transport.connect(mixed)
        again = source.transport.connect(fresh.peer())
        fresh.transport.open(1, "s", [1])
        again.submit(write_of(3, 1, [1], [1]))
        assert source.wait(3)[3].outcome is Outcome.APPLIED
        assert same_bits(fresh.tensor[1], source.tensor[1])

    def test_an_incompatible_peer_is_refused_by_name(self, rig: Rig) -> None:
        source, target = rig.node("s"), rig.node("t", replace(SMALL, head_dim=16))
        with pytest.raises(FailedPrecondition, match="head_dim: 8 here, 16 there"):
            source.transport.connect(target.peer())

    def test_many_transfers_from_many_sources(self, rig: Rig) -> None:
        layout = replace(SMALL, num_blocks=122)
        target = rig.node("t", layout, fill=SENTINEL)
        sources = [rig.node(f"s{i}", layout) for i in range(3)]
        connections = [source.transport.connect(target.peer()) for source in sources]
        for i in range(40):
            for k, connection in enumerate(connections):
                block = 1 + 3 * i + k
                target.transport.open(i, f"s{k}", [block])
                connection.submit(write_of(2 * i, i, [block], [block], tokens=3))
                connection.submit(write_of(2 * i + 1, i, [block], [block], tokens=1, start=3))
        for k, source in enumerate(sources):
            assert {c.outcome for c in source.wait(80).values()} == {Outcome.APPLIED}
            assert same_bits(target.tensor[1 + k : 121 : 3], source.tensor[1 + k : 121 : 3])
        assert bool((target.tensor[121] == SENTINEL).all())

    def test_a_failing_waker_does_no_harm(self, rig: Rig) -> None:
        source, target = rig.node("s"), rig.node("t")

        def waker() -> None:
            source.woken.set()
            raise RuntimeError("event loop is closed")

        source.transport.set_waker(waker)
        connection = source.transport.connect(target.peer())
        target.transport.open(1, "s", [1])
        connection.submit(write_of(1, 1, [1], [1]))
        connection.submit(write_of(2, 1, [2], [1]))
        assert {c.outcome for c in source.wait(2).values()} == {Outcome.APPLIED}

    def test_nothing_is_left_after_close(self) -> None:
        names: list[Path] = []

        def session() -> None:
            with rig_of(self.kind, self.faults) as rig:
                source, target = rig.node("s"), rig.node("t")
                names.extend(node.shared.path for node in rig.nodes if node.shared is not None)
                assert all(path.exists() for path in names[-2:])
                for i in range(3):
                    connection = source.transport.connect(target.peer())
                    target.transport.open(i, "s", [1])
                    connection.submit(write_of(i, i, [1], [1]))
                    source.wait(i + 1)
                    if i:
                        connection.close()

        session()  # what is made once per process
        gc.collect()
        before = _held()
        for _ in range(3):
            session()
        gc.collect()
        assert not any(path.exists() for path in names)
        deadline = time.monotonic() + 10
        while _held() != before:
            assert time.monotonic() < deadline, (before, _held())
            time.sleep(0.01)


def _held() -> tuple[int, int, int]:
    mapped = sum("/dev/shm/baton-" in line for line in Path("/proc/self/maps").read_text().splitlines())
    return len(os.listdir("/proc/self/fd")), threading.active_count(), mapped


class FaultyConformance:
    """What still holds when the transport misbehaves."""

    kind: str

    @pytest.mark.parametrize("seed", range(4))
    def test_guarantees_hold(self, seed: int) -> None:
        faults = Faults(seed, drop=0.15, delay=0.2, truncate=0.15, duplicate=0.2, delay_s=0.01)
        with rig_of(self.kind, faults) as rig:
            source, target = rig.node("s"), rig.node("t", fill=SENTINEL)
            connection = source.transport.connect(target.peer())
            for i in range(1, 23):
                target.transport.open(i, "s", [i])
                connection.submit(write_of(i, i, [i], [i], tokens=3))
                if i % 5 == 0:
                    connection.cancel(i)
            ended = source.wait(22)
            target.tensor[0] = SENTINEL
            outcomes = {c.outcome for c in ended.values()}
            assert Outcome.APPLIED in outcomes
            assert Outcome.FAILED in outcomes
            for i, completion in ended.items():
                applied = same_bits(target.tensor[i, :, :, :3], source.tensor[i, :, :, :3])
                assert applied or completion.outcome is not Outcome.APPLIED
                assert bool((target.tensor[i, :, :, 3:] == SENTINEL).all())
            assert bool((target.tensor[23] == SENTINEL).all())

    def test_closing_ends_delayed_writes(self) -> None:
        with rig_of(self.kind, Faults(delay=1.0, delay_s=30.0)) as rig:
            source, target = rig.node("s"), rig.node("t", fill=SENTINEL)
            connection = source.transport.connect(target.peer())
            target.transport.open(1, "s", [1])
            connection.submit(write_of(1, 1, [1], [1]))
            connection.submit(write_of(2, 2, [1], [1]))
            connection.cancel(2)
            assert source.wait(1)[2].outcome is Outcome.CANCELLED
            connection.close()
            assert source.wait(2)[1].outcome is Outcome.FAILED
            assert bool((target.tensor == SENTINEL).all())
