"""Calls to a running deployment, with its errors in words."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import grpc

from baton.core.errors import Unavailable
from baton.runtime.addresses import split_address
from baton.runtime.grpc_channel import sync_channel
from baton.runtime.grpc_errors import told_to_client

CONNECT_TIMEOUT_S = 5.0


@contextlib.contextmanager
def connected(endpoint: str) -> Iterator[grpc.Channel]:
    """A channel to a router that answers; BatonError for whatever goes wrong with it in the block."""
    split_address(endpoint)
    with sync_channel(endpoint) as channel:
        try:
            grpc.channel_ready_future(channel).result(timeout=CONNECT_TIMEOUT_S)
        except grpc.FutureTimeoutError:
            raise Unavailable(f"nothing answers at {endpoint}") from None
        with in_words(endpoint):
            yield channel


@contextlib.contextmanager
def in_words(endpoint: str) -> Iterator[None]:
    """Turn gRPC's errors into ours."""
    try:
        yield
    except grpc.RpcError as error:
        raise told_to_client(error, endpoint) from None
