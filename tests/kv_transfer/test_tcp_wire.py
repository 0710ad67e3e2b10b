"""What the TCP backend makes of bytes that no correct peer sends, of broken links, of other incarnations."""

from __future__ import annotations

import json
import logging
import random
import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from baton.core.errors import FailedPrecondition, Unavailable
from baton.kv_transfer.api import Endpoint, Outcome, Peer
from baton.kv_transfer.tcp import inbound
from baton.kv_transfer.tcp.frames import HEADER_BYTES, Frame, Kind, Place, ProtocolError, Status, decode
from baton.kv_transfer.tcp.sockets import TcpOptions
from baton.kv_transfer.tcp.transport import TcpTransport
from tests.kv_transfer.relay import Relay
from tests.kv_transfer.rig import LARGE, SMALL, Node, Rig, rig_of, same_bits, write_of

SENTINEL = 777.0
WHOLE = Place(1, 1, 0, 4, 0, 2, 0, 3)
BLOCK = SMALL.block_bytes


@pytest.fixture
def rig() -> Iterator[Rig]:
    with rig_of("tcp") as rig:
        yield rig


def dial(target: Node) -> socket.socket:
    params = target.transport.describe().params
    sock = socket.create_connection((params["host"], int(params["port"])))
    sock.settimeout(30)
    return sock


@contextmanager
def behind(target: Node, **link: Any) -> Iterator[Peer]:
    """The target, at the other end of a relay."""
    params = target.transport.describe().params
    with Relay(params["host"], int(params["port"]), **link) as port:
        yield replace(target.peer(), endpoint=Endpoint("tcp", {"host": "127.0.0.1", "port": str(port)}))


def hello(**change: object) -> bytes:
    text = json.dumps({"source": "evil", "target": "t", "layout": asdict(SMALL), **change}).encode()
    return Frame(Kind.HELLO, length=len(text)).encode() + text


def welcomed(target: Node) -> socket.socket:
    sock = dial(target)
    sock.sendall(hello())
    assert json.loads(receive(sock)[1]) == {"error": ""}
    return sock


def receive(sock: socket.socket) -> tuple[Frame, bytes]:
    frame = decode(sock.recv(HEADER_BYTES, socket.MSG_WAITALL))
    return frame, sock.recv(frame.length, socket.MSG_WAITALL)


def is_dropped(sock: socket.socket) -> bool:
    with sock, suppress(ConnectionError):
        while sock.recv(1 << 16):
            pass
    return True


def garbage(seed: int) -> bytes:
    return random.Random(seed).randbytes(5000)


def header(**change: object) -> bytes:
    fields = {"kind": Kind.DATA, "write_id": 1, "transfer_id": 1, "length": BLOCK, "place": WHOLE, **change}
    return Frame(**fields).encode()  # type: ignore[arg-type]


STRANGERS = {
    "random": garbage(1),
    "more random": garbage(2),
    "http": b"GET / HTTP/1.1\r\nHost: here\r\n\r\n" + b" " * HEADER_BYTES,
    "version": b"BTKV\x63" + bytes(HEADER_BYTES - 5),
    "kind": Frame(99).encode(),
    "hello too long": Frame(Kind.HELLO, length=1 << 40).encode(),
    "no json": Frame(Kind.HELLO, length=8).encode() + b"\xff" * 8,
    "deep json": Frame(Kind.HELLO, length=4000).encode() + b"[" * 4000,
    "a list": Frame(Kind.HELLO, length=2).encode() + b"[]",
    "empty": Frame(Kind.HELLO).encode(),
    "no source": hello(source=""),
    "numbers for names": hello(source=1),
    "layout of strings": hello(layout=dict.fromkeys(asdict(SMALL), "1")),
    "half a layout": hello(layout={"block_size": 4}),
    "layout of booleans": hello(layout={**asdict(SMALL), "block_size": True}),
    "data before hello": header(),
    "end before hello": Frame(Kind.END).encode(),
}

AFTER_HELLO = {
    "random": garbage(3),
    "hello again": hello(),
    "a target's frame": Frame(Kind.DONE).encode(),
    "end with payload": Frame(Kind.END, length=5).encode() + b"12345",
    "null block": header(place=WHOLE._replace(block=0)),
    "block too high": header(place=WHOLE._replace(block=24)),
    "more blocks than memory": header(place=WHOLE._replace(blocks=2**32 - 1), length=2**63),
    "no blocks": header(place=WHOLE._replace(blocks=0), length=0),
    "token outside": header(place=WHOLE._replace(token=1)),
    "tokens overflow": header(place=WHOLE._replace(token=2**32 - 1, tokens=1)),
    "layer outside": header(place=WHOLE._replace(layer_end=3)),
    "layers reversed": header(place=WHOLE._replace(layer_start=2, layer_end=1)),
    "head outside": header(place=WHOLE._replace(head_end=4)),
    "too short": header(length=BLOCK - 1),
    "too long": header(length=1 << 62),
    "unknown dtype": header(dtype=9),
    "other write inside": header(length=BLOCK) + bytes(BLOCK) + header(write_id=2),
}


def check_others_are_undisturbed(rig: Rig, target: Node, source: Node) -> None:
    connection = source.transport.connect(target.peer())
    target.transport.open(50, "s", [9])
    connection.submit(write_of(1, 50, [9], [9]))
    assert source.wait(1)[1].outcome is Outcome.APPLIED
    rest = [i for i in range(24) if i != 9]
    assert bool((target.tensor[rest] == SENTINEL).all())


@pytest.mark.parametrize("name", STRANGERS)
def test_strangers_are_dropped_with_a_line_in_the_log(
    rig: Rig, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    target, source = rig.node("t", fill=SENTINEL), rig.node("s")
    sock = dial(target)
    with caplog.at_level(logging.WARNING):
        sock.sendall(STRANGERS[name])
        assert is_dropped(sock)
    assert "127.0.0.1" in caplog.text
    check_others_are_undisturbed(rig, target, source)


@pytest.mark.parametrize("name", AFTER_HELLO)
def test_bad_frames_are_dropped_before_they_touch_anything(
    rig: Rig, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    target, source = rig.node("t", fill=SENTINEL), rig.node("s")
    sock = welcomed(target)
    with caplog.at_level(logging.WARNING):
        sock.sendall(AFTER_HELLO[name] + bytes(HEADER_BYTES))
        assert is_dropped(sock)
    assert "127.0.0.1" in caplog.text
    check_others_are_undisturbed(rig, target, source)


U32 = st.sampled_from([0, 1, 2, 3, 4, 23, 24, 2**31, 2**32 - 1])


@settings(max_examples=60)
@given(
    st.lists(
        st.tuples(
            st.sampled_from([*Kind, 0, 200]),
            st.sampled_from([0, 1, BLOCK // 4, BLOCK, 2 * BLOCK, 2**32, 2**63]),
            st.tuples(U32, U32, U32, U32, *[st.integers(0, 4)] * 4),
            st.integers(0, 3),
        ),
        max_size=4,
    ),
    st.binary(max_size=300),
)
def test_no_sequence_of_frames_writes_outside_what_was_opened(
    sequence: list[tuple[int, int, tuple[int, ...], int]], tail: bytes
) -> None:
    with rig_of("tcp") as rig:
        target = rig.node("t", fill=SENTINEL)
        target.transport.open(1, "evil", [2, 3])
        sock = welcomed(target)
        with suppress(OSError):  # reset in the middle
            for kind, length, place, dtype in sequence:
                frame = header(kind=kind, length=length, place=Place(*place), dtype=dtype)
                sock.sendall(frame + bytes(min(length, 2 * BLOCK)))
            sock.sendall(tail)
            sock.shutdown(socket.SHUT_WR)
        assert is_dropped(sock)
        assert bool((target.tensor[[0, 1, *range(4, 24)]] == SENTINEL).all())


def test_a_write_that_lost_bytes_is_refused(rig: Rig) -> None:
    target = rig.node("t", fill=SENTINEL)
    target.transport.open(1, "evil", [1])
    sock = welcomed(target)
    sock.sendall(header() + bytes(BLOCK) + Frame(Kind.END, 1, 1, total=2 * BLOCK).encode())
    frame, text = receive(sock)
    assert (frame.kind, frame.status, frame.write_id) == (Kind.DONE, Status.REFUSED, 1)
    assert text == f"{BLOCK} of {2 * BLOCK} bytes arrived".encode()
    sock.close()


def test_a_fence_within_a_frame_lets_nothing_more_land(rig: Rig) -> None:
    target = rig.node("t", fill=SENTINEL)
    target.transport.open(1, "evil", [1])
    sock = welcomed(target)
    sock.sendall(header() + bytes(BLOCK // 2))
    target.wait_for(lambda: bool((target.tensor[1].view(-1)[: BLOCK // 8] == 0).all()))
    assert target.transport.fence(1, "evil")
    target.tensor.fill_(SENTINEL)
    sock.sendall(bytes(BLOCK // 2) + Frame(Kind.END, 1, 1, total=BLOCK).encode())
    frame, _ = receive(sock)
    assert frame.status == Status.REFUSED
    assert bool((target.tensor == SENTINEL).all())
    sock.close()


def test_a_link_cut_within_a_frame_fails_the_write_once(rig: Rig) -> None:
    target, source = rig.node("t", LARGE, fill=0.0), rig.node("s", LARGE, fill=1.0)
    with behind(target, cut_after=3_000_000) as peer:
        connection = source.transport.connect(peer)
        target.transport.open(1, "s", range(1, 49))
        connection.submit(write_of(1, 1, range(1, 49), range(1, 49), block_size=16))
        connection.submit(write_of(2, 1, [1], [1], block_size=16))
        ended = source.wait(2)
    assert {c.outcome for c in ended.values()} == {Outcome.FAILED}
    landed = int((target.tensor == 1).sum())
    assert landed < 3_000_000 // 4
    assert bool((target.tensor[6:] == 0).all())


def test_a_slow_trickle_is_progress_and_comes_out_right() -> None:
    applied(_trickled)


def test_what_the_socket_took_at_once_may_leave_it_slowly() -> None:
    """90 KB fit into the source's socket, and take six times as long as a stall may over the link."""
    applied(_left_slowly)


def applied(trial: Callable[[Rig], Outcome]) -> None:
    """Tried again where the machine held it up for longer than a stall may last."""
    for _ in range(5):
        with rig_of("tcp") as rig:
            if trial(rig) is Outcome.APPLIED:
                return
    raise AssertionError("taken for a stall every time")


def _trickled(rig: Rig) -> Outcome:
    rig.options = replace(rig.options, stall_timeout_s=0.5)
    target, source = rig.node("t", fill=SENTINEL), rig.node("s")
    with behind(target, piece=700, pause_s=0.002) as peer:
        connection = source.transport.connect(peer)
        target.transport.open(1, "s", [1, 2, 5, 6, 7])
        connection.submit(write_of(1, 1, [1, 2, 5, 6, 7], [1, 2, 5, 6, 7], tokens=19))
        outcome = source.wait(1)[1].outcome
    if outcome is Outcome.APPLIED:
        assert same_bits(target.tensor[[1, 2, 5, 6]], source.tensor[[1, 2, 5, 6]])
        assert same_bits(target.tensor[7, :, :, :3], source.tensor[7, :, :, :3])
    assert bool((target.tensor[7, :, :, 3] == SENTINEL).all())
    return outcome


def _left_slowly(rig: Rig) -> Outcome:
    rig.options = replace(rig.options, stall_timeout_s=0.5)
    target, source = rig.node("t", LARGE, fill=0.0), rig.node("s", LARGE, fill=1.0)
    with behind(target, piece=1200, pause_s=0.04, held=4096) as peer:
        connection = source.transport.connect(peer)
        target.transport.open(1, "s", [1])
        connection.submit(write_of(1, 1, [1], [1], block_size=16, tokens=2))
        outcome = source.wait(1)[1].outcome
    if outcome is Outcome.APPLIED:
        assert bool((target.tensor[1, :, :, :2] == 1).all())
    assert bool((target.tensor[1, :, :, 2:] == 0).all())
    return outcome


def test_a_write_under_way_is_stopped_by_a_cancel(rig: Rig) -> None:
    target, source = rig.node("t", LARGE, fill=0.0), rig.node("s", LARGE, fill=1.0)
    with behind(target, pause_s=0.01) as peer:  # at most 6.5 MB/s
        connection = source.transport.connect(peer)
        target.transport.open(1, "s", range(1, 49))
        connection.submit(write_of(1, 1, range(1, 49), range(1, 49), block_size=16))
        target.wait_for(lambda: bool((target.tensor[1] == 1).any()))
        connection.cancel(1)
        ended = source.wait(1)[1]
        landed = int((target.tensor == 1).sum()) * 4
    assert ended.outcome is Outcome.CANCELLED
    assert landed == ended.payload_bytes < 48 * LARGE.block_bytes


def test_silent_strangers_are_dropped(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inbound, "HELLO_TIMEOUT_S", 0.1)
    assert is_dropped(dial(rig.node("t")))


def test_sources_that_never_read_are_dropped(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inbound, "REPLY_BYTES", 10_000)
    sock = welcomed(rig.node("t"))
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    ends = b"".join(Frame(Kind.END, i, 1).encode() for i in range(1000))
    with pytest.raises(ConnectionError):  # noqa: PT012 -- which of the sends meets the reset is chance
        for _ in range(1000):
            sock.sendall(ends)
    sock.close()


def test_there_is_a_most_of_connections() -> None:
    rig = Rig("tcp", options=TcpOptions(max_inbound=2))
    target = rig.node("t")
    kept = [welcomed(target), welcomed(target)]
    assert is_dropped(dial(target))
    for sock in kept:
        sock.close()
    rig.close()


def test_another_incarnation_on_the_same_port_is_told_from_the_old(rig: Rig) -> None:
    source, old = rig.node("s"), rig.node("t1")
    stale, port = old.peer(), old.transport.describe().params["port"]
    connection = source.transport.connect(stale)
    old.close()
    rig.options = replace(rig.options, port=int(port))
    fresh = rig.node("t2", fill=SENTINEL)
    assert fresh.transport.describe() == stale.endpoint
    fresh.transport.open(1, "s", [1])
    connection.submit(write_of(1, 1, [1], [1]))
    assert source.wait(1)[1].outcome is Outcome.FAILED
    with pytest.raises(Unavailable, match="this is incarnation 't2', not 't1'"):
        source.transport.connect(stale)
    assert bool((fresh.tensor == SENTINEL).all())


def test_a_layout_other_than_announced_is_refused_by_name(rig: Rig) -> None:
    source, target = rig.node("s"), rig.node("t")
    wrong = replace(target.peer(), layout=replace(SMALL, num_blocks=99))
    with pytest.raises(FailedPrecondition, match="layout: num_blocks is 24, the source was told 99"):
        source.transport.connect(wrong)


def test_a_peer_that_accepts_and_says_nothing_is_unavailable(rig: Rig) -> None:
    rig.options = replace(rig.options, connect_timeout_s=0.2)
    source = rig.node("s")
    with socket.create_server(("127.0.0.1", 0)) as server:
        where = Endpoint("tcp", {"host": "127.0.0.1", "port": str(server.getsockname()[1])})
        with pytest.raises(Unavailable, match="timed out"):
            source.transport.connect(replace(source.peer(), endpoint=where))
    for params in ({}, {"host": "x", "port": "-1"}, {"host": "x", "port": "99999"}):
        with pytest.raises(FailedPrecondition, match="no tcp address"):
            source.transport.connect(replace(source.peer(), endpoint=Endpoint("tcp", params)))


def test_a_port_in_use_is_named() -> None:
    first = TcpTransport("a")
    with pytest.raises(FailedPrecondition, match=f"{first.port}: Address already in use"):
        TcpTransport("b", TcpOptions(port=first.port))
    first.close()


def test_headers_survive_the_wire_and_others_do_not() -> None:
    frame = Frame(Kind.DATA, 2**64 - 1, 3, 4, 5, 0, 1, WHOLE)
    assert decode(frame.encode()) == frame
    with pytest.raises(struct.error):
        Frame(Kind.END, 2**64).encode()
    with pytest.raises(ProtocolError, match="not this protocol"):
        decode(bytes(HEADER_BYTES))
