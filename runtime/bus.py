"""The event bus: every node publishes what its prefix cache gains and loses, routers listen.

ZeroMQ PUB/SUB: the publisher never waits; a subscriber that is slow, late or was cut off misses messages. So
every message carries a number one above the last, and the subscriber reports a `Gap` where one is missing.
Who is told of a gap asks the node for a snapshot and goes on from that (`Subscriber.resume`).
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

import zmq
import zmq.asyncio
from google.protobuf.message import DecodeError

from baton.core.errors import FailedPrecondition
from baton.proto.v1.registry_pb2 import KvEvents
from baton.runtime.addresses import join_address, reachable

QUEUE_MESSAGES = 4096  # per subscriber, on either side; what is above is dropped and seen as a gap
MAX_MESSAGE_BYTES = 16 * 2**20
MAX_KEYS = 65536
MAX_KEY_BYTES = 64


@dataclass(frozen=True, slots=True)
class Gap:
    """Messages were missed, or the node is another incarnation. expected: None before the first message."""

    incarnation: str
    expected: int | None
    got: int


class Publisher:
    """A node's end. Not thread-safe: call it from one thread."""

    def __init__(
        self, node_id: str, incarnation: str, host: str = "127.0.0.1", advertise_host: str | None = None
    ) -> None:
        """Binds a port that the kernel chooses; FailedPrecondition where `host` cannot be bound."""
        self._node_id = node_id
        self._incarnation = incarnation
        self.seq = 0
        self._socket: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.PUB)
        self._socket.setsockopt(zmq.SNDHWM, QUEUE_MESSAGES)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.IPV6, int(":" in host))
        try:
            self._socket.bind(f"tcp://{join_address(host, 0)}")
        except zmq.ZMQError as error:
            self._socket.close()
            raise FailedPrecondition(
                f"the event bus cannot listen on {host}: {error}", field="host"
            ) from None
        port = int(self._socket.getsockopt(zmq.LAST_ENDPOINT).rstrip(b"\0").rpartition(b":")[2])
        self.endpoint = f"tcp://{join_address(reachable(host, advertise_host), port)}"

    def publish(self, stored: Sequence[bytes], removed: Sequence[bytes]) -> int:
        """Send the keys that were gained and lost, in messages of bounded size; returns the last number."""
        for start in range(0, max(len(stored), len(removed)), MAX_KEYS // 2):
            part = slice(start, start + MAX_KEYS // 2)
            self.seq += 1
            self._send(stored[part], removed[part])
        return self.seq

    def beat(self) -> None:
        """Repeat the current number, so that a subscriber who missed the last message learns of it."""
        self._send((), ())

    def close(self) -> None:
        self._socket.close()

    def _send(self, stored: Sequence[bytes], removed: Sequence[bytes]) -> None:
        message = KvEvents(
            node_id=self._node_id,
            incarnation=self._incarnation,
            seq=self.seq,
            stored=stored,
            removed=removed,
        )
        with contextlib.suppress(zmq.Again):
            self._socket.send(message.SerializeToString(), zmq.NOBLOCK)


class Subscriber:
    """A router's end for one node: iterate over it. `invalid` counts messages that were no valid events."""

    def __init__(self, endpoint: str) -> None:
        """Connects in the background and for ever; a node that is not there is not an error."""
        self.invalid = 0
        self._incarnation = ""
        self._seq: int | None = None
        self._socket = zmq.asyncio.Context.instance().socket(zmq.SUB)
        self._socket.setsockopt(zmq.RCVHWM, QUEUE_MESSAGES)
        self._socket.setsockopt(zmq.MAXMSGSIZE, MAX_MESSAGE_BYTES)
        self._socket.setsockopt(zmq.RECONNECT_IVL_MAX, 1000)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.IPV6, int("[" in endpoint))
        self._socket.setsockopt(zmq.SUBSCRIBE, b"")
        try:
            self._socket.connect(endpoint)
        except zmq.ZMQError as error:
            self._socket.close()
            raise FailedPrecondition(
                f"{endpoint!r} is no bus endpoint: {error}", field="bus_endpoint"
            ) from None

    def resume(self, incarnation: str, seq: int) -> None:
        """A snapshot that is true for message `seq` was taken: older messages are dropped from now on."""
        self._incarnation = incarnation
        self._seq = seq

    async def __aiter__(self) -> AsyncIterator[KvEvents | Gap]:
        """Messages in order, each once. A gap comes before the message that showed it.

        If `resume` is called while the consumer handles the gap, that message is dropped when the snapshot
        covers it.
        """
        while True:
            message = self._parse(await self._socket.recv())
            if message is None:
                continue
            if (gap := self._gap(message)) is not None:
                self.resume(message.incarnation, message.seq - 1)
                yield gap
            if self._is_next(message):
                self._seq = message.seq
                yield message

    def close(self) -> None:
        self._socket.close()

    def _parse(self, data: bytes) -> KvEvents | None:
        message = KvEvents()
        try:
            message.ParseFromString(data)
        except DecodeError:
            self.invalid += 1
            return None
        keys = (*message.stored, *message.removed)
        if len(keys) > MAX_KEYS or any(not 0 < len(key) <= MAX_KEY_BYTES for key in keys):
            self.invalid += 1
            return None
        return message

    def _gap(self, message: KvEvents) -> Gap | None:
        if self._seq is None or message.incarnation != self._incarnation:
            return Gap(message.incarnation, None, message.seq)
        is_beat = not message.stored and not message.removed
        expected = self._seq if is_beat else self._seq + 1
        return Gap(message.incarnation, self._seq + 1, message.seq) if message.seq > expected else None

    def _is_next(self, message: KvEvents) -> bool:
        same = message.incarnation == self._incarnation
        return same and self._seq is not None and message.seq == self._seq + 1
