from __future__ import annotations

from collections.abc import Iterator

import pytest

from baton.core.errors import Unavailable
from baton.kv_transfer.api import Endpoint
from baton.kv_transfer.segment import SharedPool
from baton.kv_transfer.select import host_id, pick

TCP = Endpoint("tcp", {"host": "10.0.0.1", "port": "1"})


@pytest.fixture
def shm() -> Iterator[Endpoint]:
    shared = SharedPool.create(4096, "x")
    yield Endpoint("shm", {"name": shared.path.name})
    shared.close()


def test_shared_memory_wins_on_the_same_host(shm: Endpoint) -> None:
    assert pick([TCP, shm], host_id(), host_id()) is shm


def test_tcp_across_hosts_or_where_the_segment_is_not_seen(shm: Endpoint) -> None:
    assert pick([shm, TCP], host_id(), "elsewhere") is TCP
    gone = Endpoint("shm", {"name": "baton-0-" + "0" * 32})
    assert pick([gone, TCP], host_id(), host_id()) is TCP
    assert pick([Endpoint("shm", {"name": "../null"}), TCP], host_id(), host_id()) is TCP


def test_only_allowed_kinds(shm: Endpoint) -> None:
    assert pick([shm, TCP], host_id(), host_id(), ["tcp"]) is TCP
    with pytest.raises(Unavailable, match=r"shm is on another host; tcp is not allowed here"):
        pick([TCP, shm], "a", "b", ["shm"])
    with pytest.raises(Unavailable, match="offers none"):
        pick([], "a", "a")


def test_the_host_id_is_stable() -> None:
    assert host_id() == host_id()
    assert len(host_id()) == 32
