"""Calls to a running deployment, with its errors in words."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import grpc

from baton.core.errors import BatonError, Code, error_for
from baton.runtime.addresses import split_address
from baton.runtime.grpc_channel import sync_channel

CONNECT_TIMEOUT_S = 5.0


@contextlib.contextmanager
def connected(endpoint: str) -> Iterator[grpc.Channel]:
    """A channel to a router that answers; BatonError for whatever goes wrong with it in the block."""
    split_address(endpoint)
    with sync_channel(endpoint) as channel:
        try:
            grpc.channel_ready_future(channel).result(timeout=CONNECT_TIMEOUT_S)
        except grpc.FutureTimeoutError:
            raise error_for(Code.UNAVAILABLE, f"nothing answers at {endpoint}") from None
        with in_words():
            yield channel


@contextlib.contextmanager
def in_words() -> Iterator[None]:
    """Turn gRPC's errors into ours."""
    try:
        yield
    except grpc.RpcError as error:
        raise _translated(error) from None


def _translated(error: grpc.RpcError) -> BatonError:
    code, details = error.code(), error.details()
    known = code.name if code.name in Code.__members__ else "INTERNAL"
    return error_for(Code[known], f"{details or 'no details'} ({code.name})")
