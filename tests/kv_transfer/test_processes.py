"""Targets that are stopped or killed: applied means applied, and failed means that nothing follows."""

from __future__ import annotations

import signal
import time
from dataclasses import replace

import pytest

from baton.core.errors import Unavailable
from baton.kv_transfer.api import Outcome, Write
from tests.kv_transfer.processes import child
from tests.kv_transfer.rig import LARGE, Node, Rig, write_of

BLOCK_ITEMS = LARGE.block_bytes // 4


def one_token(write_id: int) -> Write:
    """48 KiB: fits into socket buffers whole."""
    return write_of(write_id, 1, [1], [1], tokens=1, block_size=16)


def source_of(rig: Rig) -> Node:
    return rig.node("s", LARGE, fill=1.0)


def test_tcp_is_not_applied_while_the_target_is_stopped_and_fails_when_it_dies() -> None:
    rig = Rig("tcp")
    rig.options = replace(rig.options, stall_timeout_s=60.0)
    with child("tcp") as target:
        source = source_of(rig)
        connection = source.transport.connect(target.peer("tcp"))
        target.ask("open 1 s 1 2 3")
        target.stop()
        connection.submit(one_token(1))
        deadline = time.monotonic() + 2.0
        while time.monotonic() < deadline:
            source.pull()
            assert source.ended == []
            source.woken.wait(0.02)
        target.signal(signal.SIGKILL)
        assert source.wait(1)[1].outcome is Outcome.FAILED
        with pytest.raises(Unavailable):
            source.transport.connect(target.peer("tcp"))
    rig.close()


@pytest.mark.parametrize("blocks", [1, 48])
def test_tcp_gives_up_on_a_stopped_target_and_nothing_lands_when_it_wakes(blocks: int) -> None:
    rig = Rig("tcp")
    rig.options = replace(rig.options, stall_timeout_s=0.5)
    with child("tcp") as target:
        source = source_of(rig)
        connection = source.transport.connect(target.peer("tcp"))
        target.ask("open 1 s " + " ".join(map(str, range(1, 49))))
        target.stop()
        connection.submit(write_of(1, 1, range(1, blocks + 1), range(1, blocks + 1), block_size=16))
        failed = source.wait(1)[1]
        assert failed.outcome is Outcome.FAILED
        assert "0.5 s" in failed.error
        target.signal(signal.SIGCONT)
        for write_id in range(2, 12):  # a busy machine may let it stand still for 0.5 s once more
            again = source.transport.connect(target.peer("tcp"))
            again.submit(write_of(write_id, 1, [48], [48], block_size=16))
            if source.wait(write_id)[write_id].outcome is Outcome.APPLIED:
                break
        else:
            raise AssertionError("nothing is ever applied again")
        assert target.ask("count 1")["count"] == BLOCK_ITEMS
    rig.close()


def test_shm_lands_in_a_stopped_target_and_fails_when_it_dies() -> None:
    rig = Rig("shm")
    with child("shm") as target:
        source = source_of(rig)
        connection = source.transport.connect(target.peer("shm"))
        target.stop()
        connection.submit(write_of(1, 1, [1], [1], block_size=16))
        assert source.wait(1)[1].outcome is Outcome.APPLIED
        target.signal(signal.SIGCONT)
        assert target.ask("count 1")["count"] == BLOCK_ITEMS
        target.signal(signal.SIGKILL)
        target.process.wait()
        connection.submit(write_of(2, 1, [1], [1], block_size=16))
        failed = source.wait(2)[2]
        assert failed.outcome is Outcome.FAILED
        assert target.hello["incarnation"] in failed.error
        with pytest.raises(Unavailable, match=target.hello["incarnation"]):
            source.transport.connect(target.peer("shm"))
    rig.close()


def test_tcp_dying_half_way_fails_every_write_once() -> None:
    for _ in range(10):  # a busy machine may have applied them all before the kill
        if _outcomes_of_a_death() == {Outcome.APPLIED, Outcome.FAILED}:
            return
    raise AssertionError("all were applied before every kill")


def _outcomes_of_a_death() -> set[Outcome]:
    """Of writes to a target that is killed when the first of them was applied."""
    rig = Rig("tcp")
    with child("tcp") as target:
        source = source_of(rig)
        connection = source.transport.connect(target.peer("tcp"))
        target.ask("open 1 s " + " ".join(map(str, range(1, 49))))
        for i in range(20):
            connection.submit(write_of(i, 1, range(1, 49), range(1, 49), block_size=16))
        source.wait(1)
        target.signal(signal.SIGKILL)
        ended = source.wait(20)
        connection.submit(one_token(20))
        assert source.wait(21)[20].outcome is Outcome.FAILED
    rig.close()
    return {completion.outcome for completion in ended.values()}
