"""Channel and server options that fit each other, in one place, and channels made with them.

Keepalive: a server closes connections that ping more often than it allows (GOAWAY too_many_pings), so what
it allows is half the interval that our clients use, on idle connections too. A peer that vanished without a
word is noticed within keepalive_s + keepalive_timeout_s.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import grpc

MAX_MESSAGE_BYTES = 64 * 2**20
REFUSABLE_BYTES = 64 * 2**20
"""Requests by so much over the limit are read, unparsed, so that a server of ours can say what is wrong. Of
larger ones gRPC itself reads the length and no more, and its status is RESOURCE_EXHAUSTED."""

HEADROOM_BYTES = 2**20
"""What router and nodes add to what a client may send: ids, addresses, the rest of a deadline."""

PIECE_BYTES = 2**14
"""What may be cut (logprobs, text, events) is sent in messages of about this size: gRPC's clients take 4 MiB
by default, and no event loop should be held for long by one message."""

MAX_METADATA_BYTES = 64 * 2**10


@dataclass(frozen=True, slots=True)
class TransportOptions:
    """What both ends of every hop agree on. max_message_bytes: the one limit on a client's message, either
    way; `inner` is for the hops behind it."""

    max_message_bytes: int = MAX_MESSAGE_BYTES
    keepalive_s: float = 10.0
    keepalive_timeout_s: float = 5.0

    @property
    def inner(self) -> TransportOptions:
        """For the hops between router and nodes: whatever a client may ask for fits on them."""
        return replace(self, max_message_bytes=self.max_message_bytes + HEADROOM_BYTES)

    def common(self) -> list[tuple[str, int]]:
        return [
            ("grpc.max_send_message_length", self.max_message_bytes),
            ("grpc.max_metadata_size", MAX_METADATA_BYTES),
            ("grpc.absolute_max_metadata_size", MAX_METADATA_BYTES),
            ("grpc.keepalive_time_ms", round(self.keepalive_s * 1e3)),
            ("grpc.keepalive_timeout_ms", round(self.keepalive_timeout_s * 1e3)),
            # Without it a ping's answer is awaited for a minute, whatever the line above says.
            ("grpc.http2.ping_timeout_ms", round(self.keepalive_timeout_s * 1e3)),
            ("grpc.keepalive_permit_without_calls", 1),
            ("grpc.http2.max_pings_without_data", 0),
        ]

    def server(self, *, reuse_port: bool) -> list[tuple[str, int]]:
        return [
            *self.common(),
            ("grpc.max_receive_message_length", self.max_message_bytes + REFUSABLE_BYTES),
            ("grpc.http2.min_recv_ping_interval_without_data_ms", round(self.keepalive_s * 500)),
            ("grpc.http2.min_ping_interval_without_data_ms", round(self.keepalive_s * 500)),
            ("grpc.so_reuseport", int(reuse_port)),
        ]

    def client(self) -> list[tuple[str, int]]:
        return [
            *self.common(),
            ("grpc.max_receive_message_length", self.max_message_bytes),
            # A peer that restarts is back within a second or two: do not sit out gRPC's default of minutes.
            ("grpc.initial_reconnect_backoff_ms", 100),
            ("grpc.min_reconnect_backoff_ms", 1000),
            ("grpc.max_reconnect_backoff_ms", 2000),
            ("grpc.enable_http_proxy", 0),
            # Channels to one address must not share a connection: one owner closing must not end another's.
            ("grpc.use_local_subchannel_pool", 1),
        ]


DEFAULT = TransportOptions()


def channel(address: str, options: TransportOptions = DEFAULT) -> grpc.aio.Channel:
    """An asyncio channel to `host:port` whose options fit those of `GrpcServer`."""
    return grpc.aio.insecure_channel(address, options=options.client())


def sync_channel(address: str, options: TransportOptions = DEFAULT) -> grpc.Channel:
    """As `channel`, for threads."""
    return grpc.insecure_channel(address, options=options.client())
