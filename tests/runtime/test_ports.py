"""A port for our processes only."""

from __future__ import annotations

import select
import socket
from pathlib import Path

import pytest

from baton.core.errors import FailedPrecondition, InvalidArgument
from baton.runtime.addresses import join_address, reachable, split_address
from baton.runtime.cpus import usable_cpus
from baton.runtime.ports import SharedPort


def listener(port: int, *, share: bool) -> socket.socket:
    made = socket.socket()
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, int(share))
    try:
        made.bind(("127.0.0.1", port))
        made.listen()
    except OSError:
        made.close()
        raise
    return made


def test_several_processes_may_listen_and_get_all_connections() -> None:
    shared = SharedPort("127.0.0.1")
    with listener(shared.port, share=True) as one, listener(shared.port, share=True) as two:
        for _ in range(32):  # a connection that went to the holder would never be accepted
            with socket.create_connection(("127.0.0.1", shared.port), timeout=5):
                able, _, _ = select.select([one, two], [], [], 5)
                able[0].accept()[0].close()
    shared.close()


@pytest.mark.parametrize("share", [True, False])
def test_a_port_that_somebody_listens_on_is_refused(share: bool) -> None:
    with listener(0, share=share) as other:
        port = other.getsockname()[1]
        with pytest.raises(FailedPrecondition, match=f"127.0.0.1:{port}: Address already in use"):
            SharedPort("127.0.0.1", port)


def test_two_deployments_cannot_share_a_port_even_before_they_listen() -> None:
    first = SharedPort("127.0.0.1")
    port = first.port
    first.close()
    first = SharedPort("127.0.0.1", port)
    with pytest.raises(FailedPrecondition, match="in use"):
        SharedPort("127.0.0.1", port)
    first.close()
    SharedPort("127.0.0.1", port).close()


def test_nobody_else_may_listen_once_one_of_ours_does() -> None:
    shared = SharedPort("127.0.0.1")
    with listener(shared.port, share=True), pytest.raises(OSError, match="in use"):
        listener(shared.port, share=False)
    shared.close()


@pytest.mark.parametrize(("host", "port"), [("127.0.0.1", 80), ("::1", 0), ("node.example", 65535)])
def test_addresses_there_and_back(host: str, port: int) -> None:
    assert split_address(join_address(host, port)) == (host, port)


@pytest.mark.parametrize(
    "text", ["", "host", "host:", ":80", "::1:80", "host:80x", "host:65536", "host:-1", "h:８"]
)
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(InvalidArgument):
        split_address(text)


def test_all_interfaces_is_no_name_to_give_others() -> None:
    assert reachable("0.0.0.0", None) == reachable("::", None) == "127.0.0.1"
    assert reachable("0.0.0.0", "node-1") == reachable("10.0.0.1", "node-1") == "node-1"
    assert reachable("10.0.0.1", None) == "10.0.0.1"


@pytest.mark.parametrize(
    ("quota", "most"), [("max 100000", None), ("150000 100000", 2), ("1000 100000", 1), ("?", None)]
)
def test_a_quota_limits_the_cpus(tmp_path: Path, quota: str, most: int | None) -> None:
    file = tmp_path / "cpu.max"
    everything = usable_cpus(file)
    file.write_text(quota)
    assert usable_cpus(file) == (everything if most is None else min(most, everything))
