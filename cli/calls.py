"""Calls to a running deployment, with its errors in words."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator

import grpc
from grpc_health.v1.health_pb2 import HealthCheckRequest
from grpc_health.v1.health_pb2_grpc import HealthStub

from baton.core.errors import Unavailable
from baton.runtime.addresses import split_address
from baton.runtime.grpc_channel import sync_channel
from baton.runtime.grpc_errors import told_to_client

CONNECT_TIMEOUT_S = 5.0


@contextlib.contextmanager
def connected(endpoint: str) -> Iterator[grpc.Channel]:
    """A channel to a router that answers at all; BatonError for whatever goes wrong with it in the block."""
    split_address(endpoint)
    with sync_channel(endpoint) as channel:
        check = HealthStub(channel).Check.future(
            HealthCheckRequest(), timeout=CONNECT_TIMEOUT_S, wait_for_ready=True
        )
        with interruptible(check.cancel):
            code = check.code()
        if code is grpc.StatusCode.DEADLINE_EXCEEDED:
            raise Unavailable(f"nothing answers at {endpoint}")
        with in_words(endpoint):
            yield channel


@contextlib.contextmanager
def in_words(endpoint: str) -> Iterator[None]:
    """Turn gRPC's errors into ours."""
    try:
        yield
    except grpc.RpcError as error:
        raise told_to_client(error, endpoint) from None


@contextlib.contextmanager
def interruptible(cancel: Callable[[], object]) -> Iterator[None]:
    """Ctrl-C calls `cancel`, which is to end what the block waits for; then KeyboardInterrupt is raised. gRPC
    waits with `threading.Condition`: raised there, between the lock's release and the `try` that takes it
    again, it would have a lock released that nobody holds."""
    if (
        threading.current_thread() is not threading.main_thread()
        or signal.getsignal(signal.SIGINT) is not signal.default_int_handler
    ):
        yield  # nothing is raised here
        return
    interrupted = False

    def interrupt(*_: object) -> None:
        nonlocal interrupted
        interrupted = True
        cancel()

    signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    except grpc.RpcError:
        if not interrupted:
            raise
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if interrupted:
        raise KeyboardInterrupt
