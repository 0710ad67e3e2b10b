"""What a call to a deployment makes of Ctrl-C."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from types import FrameType
from typing import Any

import grpc
import pytest

from baton.cli import calls
from baton.cli.calls import connected, interruptible
from baton.core.errors import Unavailable
from baton.proto.v1.admin_pb2 import GetClusterRequest
from baton.proto.v1.admin_pb2_grpc import AdminStub
from tests.ports import free_port

WITHIN_S = 10.0


@pytest.fixture(autouse=True)
def default_handler() -> Iterator[None]:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    assert signal.signal(signal.SIGINT, before) is signal.default_int_handler


class Answer:
    """Waits as gRPC does."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._ended = False

    def cancel(self) -> None:
        with self._condition:
            self._ended = True
            self._condition.notify_all()

    def wait(self) -> bool:
        with self._condition:
            return self._condition.wait_for(lambda: self._ended, WITHIN_S)


@contextmanager
def ctrl_c_in_a_wait() -> Iterator[None]:
    """It comes when a waiting condition has released its lock, and would not yet take it again."""

    def profile(frame: FrameType, event: str, arg: Any) -> None:
        if event == "c_return" and arg.__name__ == "_release_save":
            sys.setprofile(None)
            signal.raise_signal(signal.SIGINT)

    sys.setprofile(profile)
    try:
        yield
    finally:
        sys.setprofile(None)


def test_ctrl_c_breaks_into_no_wait() -> None:
    answer = Answer()
    with pytest.raises(KeyboardInterrupt), ctrl_c_in_a_wait(), interruptible(answer.cancel):
        assert answer.wait()


def test_ctrl_c_breaks_into_no_wait_for_a_connection() -> None:
    with pytest.raises(KeyboardInterrupt), ctrl_c_in_a_wait(), connected(f"127.0.0.1:{free_port()}"):
        pass


def test_where_nobody_answers_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "CONNECT_TIMEOUT_S", 0.5)
    address = f"127.0.0.1:{free_port()}"
    with pytest.raises(Unavailable, match=f"nothing answers at {address}"), connected(address):
        pass


def test_a_peer_that_refuses_has_answered() -> None:
    """What it says of itself is told by the call that is made."""

    class Refusing(grpc.GenericRpcHandler):
        def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[bytes, bytes]:
            def refuse(request: bytes, context: grpc.ServicerContext) -> bytes:
                context.abort(grpc.StatusCode.UNAVAILABLE, "no healthy upstream")

            return grpc.unary_unary_rpc_method_handler(refuse)

    server = grpc.server(ThreadPoolExecutor(2), handlers=(Refusing(),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        with (
            pytest.raises(Unavailable, match="no healthy upstream"),
            connected(f"127.0.0.1:{port}") as channel,
        ):
            AdminStub(channel).GetCluster(GetClusterRequest(), timeout=WITHIN_S)
    finally:
        server.stop(None)


def test_ctrl_c_at_another_time_is_what_it_always_is() -> None:
    with interruptible(Answer().cancel):
        pass
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


def test_where_nobody_listens_to_ctrl_c_nothing_is_cancelled() -> None:
    """As in a shell's background job."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    cancelled: list[int] = []
    with interruptible(lambda: cancelled.append(1)):
        signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    signal.signal(signal.SIGINT, signal.default_int_handler)
    assert cancelled == []


def test_elsewhere_than_in_the_main_thread_it_is_left_alone() -> None:
    seen: list[Any] = []

    def within() -> None:
        with interruptible(Answer().cancel):
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=within)
    thread.start()
    thread.join()
    assert seen == [signal.default_int_handler]
