"""The target's end of a connection: frames in, straight into the pool where the transfer was opened."""

from __future__ import annotations

import json
import logging
import math
import select
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from baton.kv_transfer.permits import Grant, refusal
from baton.kv_transfer.plan import CopyOp, extent
from baton.kv_transfer.pool_view import scatter
from baton.kv_transfer.tcp import frames
from baton.kv_transfer.tcp.frames import FRAME_BYTES, HEADER_BYTES, Frame, Kind, ProtocolError, Status
from baton.kv_transfer.tcp.loop import HANG_UP, Loop
from baton.kv_transfer.tcp.sockets import abort
from baton.kv_transfer.tcp.target import Target

log = logging.getLogger(__name__)

TURN_BYTES = 4 << 20  # received before other connections get their turn
REPLY_BYTES = 1 << 20  # confirmations that the source does not read
HELLO_TIMEOUT_S = 5.0


@dataclass(eq=False)
class _Arriving:
    """A write between its first frame and its END."""

    write_id: int
    received_bytes: int = 0
    error: str = ""


@dataclass(eq=False)
class _Payload:
    """What the bytes under way are for. grant: they are KV; op: to be unpacked when complete. drop: read
    them, over and over into the same buffer, and forget them."""

    frame: Frame
    buffer: memoryview
    got: int = 0
    grant: Grant | None = None
    op: CopyOp | None = None
    dtype: str = ""
    drop: bool = False


class Inbound:
    """All of it runs in the loop's thread; a fence reaches it through the grants."""

    def __init__(
        self,
        loop: Loop,
        sock: socket.socket,
        name: str,
        target: Target,
        ended: Callable[[Inbound], None],
    ) -> None:
        self._loop = loop
        self._sock = sock
        self._name = name
        self._target = target
        self._ended = ended
        self._source = ""
        self._born_s = time.monotonic()
        self._header = memoryview(bytearray(HEADER_BYTES))
        self._header_got = 0
        self._payload: _Payload | None = None
        self._arriving: _Arriving | None = None
        self._scratch = memoryview(b"")
        self._reply = bytearray()
        self._rejected = ""
        self._closed = False
        self._mask = select.EPOLLIN | select.EPOLLRDHUP
        loop.watch(self, self._mask)

    def fileno(self) -> int:
        return self._sock.fileno()

    def due_s(self) -> float:
        return math.inf if self._source else self._born_s + HELLO_TIMEOUT_S

    def overdue(self) -> None:
        self.fail(f"no hello within {HELLO_TIMEOUT_S:g} s")

    def fail(self, error: str, level: int = logging.INFO) -> None:
        if self._closed:
            return
        self._closed = True
        log.log(level, "kv connection from %s %s ended: %s", self._name, self._source, error)
        with suppress(OSError):
            self._loop.forget(self)
        if self._rejected:
            self._sock.close()  # no reset: it could overtake the reply that says why
        else:
            abort(self._sock)
        self._payload, self._scratch = None, memoryview(b"")
        self._ended(self)

    def ready(self, mask: int) -> None:
        # A source that hung up has told its node that its writes ended: what we have not read must not land.
        if mask & HANG_UP:
            self.fail("the source hung up")
            return
        try:
            if mask & select.EPOLLIN and not self._rejected:
                self._receive()
        except BlockingIOError:
            pass
        except ProtocolError as exc:
            self.fail(str(exc), logging.WARNING)
        except OSError as exc:
            self.fail(exc.strerror or str(exc))
        if not self._closed:
            self._flush()

    # -- receiving

    def _receive(self) -> None:
        turn = 0
        while turn < TURN_BYTES and not self._rejected:
            if self._payload is None:
                got = self._sock.recv_into(self._header[self._header_got :])
                self._header_got += got
                if self._header_got == HEADER_BYTES:
                    self._header_got = 0
                    self._begin(frames.decode(self._header))
            else:
                got = self._receive_payload(self._payload)
                self._payload.got += got
            if got == 0:
                raise ConnectionResetError(0, "the source hung up")
            turn += got
            if self._payload is not None and self._payload.got == self._payload.frame.length:
                payload, self._payload = self._payload, None
                self._complete(payload)

    def _receive_payload(self, payload: _Payload) -> int:
        left = payload.frame.length - payload.got
        if payload.drop:
            return self._sock.recv_into(self._room(min(left, FRAME_BYTES)))
        piece = payload.buffer[payload.got : payload.got + min(left, FRAME_BYTES)]
        if payload.grant is None or payload.op is not None:
            return self._sock.recv_into(piece)
        with payload.grant.lock:  # for one bounded copy out of the socket's buffer, which never blocks
            if payload.grant.live:
                return self._sock.recv_into(piece)
        self._refuse(refusal(None, payload.frame.transfer_id, 0, 0))
        payload.drop = True
        return self._receive_payload(payload)

    def _room(self, length: int) -> memoryview:
        if len(self._scratch) < length:
            self._scratch = memoryview(bytearray(length))
        return self._scratch[:length]

    def _begin(self, frame: Frame) -> None:
        if (frame.kind == Kind.HELLO) == bool(self._source):
            raise ProtocolError(f"a frame of kind {frame.kind} at the wrong time")
        if frame.kind == Kind.HELLO:
            self._payload = _Payload(frame, memoryview(bytearray(frame.length)))
        elif frame.kind == Kind.DATA:
            self._payload = self._data(frame)
        elif frame.kind == Kind.END and frame.length == 0:
            self._end(frame)
        else:
            raise ProtocolError(f"a frame of kind {frame.kind} is not for a target")

    def _data(self, frame: Frame) -> _Payload:
        view = self._target.view_checked()
        op, dtype = frames.checked_op(frame, view.layout)
        self._arrive(frame.write_id)
        grant = self._target.permits.find(frame.transfer_id, self._source)
        error = refusal(grant, frame.transfer_id, op.dst_block, op.blocks)
        if error:
            self._refuse(error)
            return _Payload(frame, memoryview(b""), drop=True)
        place = extent(view.layout, op.dst_block, op) if dtype == view.layout.dtype else None
        if place is not None:
            return _Payload(frame, view.bytes[place[0] : place[0] + place[1]], grant=grant)
        if frame.length > max(FRAME_BYTES, frames.least_bytes(view.layout)):
            raise ProtocolError(f"{frame.length} bytes in one frame that needs unpacking")
        return _Payload(frame, self._room(frame.length), grant=grant, op=op, dtype=dtype)

    def _arrive(self, write_id: int) -> _Arriving:
        if self._arriving is None:
            self._arriving = _Arriving(write_id)
        elif self._arriving.write_id != write_id:
            raise ProtocolError(f"write {write_id} began before write {self._arriving.write_id} ended")
        return self._arriving

    def _refuse(self, error: str) -> None:
        if self._arriving is not None and not self._arriving.error:
            self._arriving.error = error

    def _complete(self, payload: _Payload) -> None:
        if payload.frame.kind == Kind.HELLO:
            self._hello(bytes(payload.buffer))
            return
        if self._arriving is not None:
            self._arriving.received_bytes += payload.frame.length
        if payload.drop or payload.op is None or payload.grant is None:
            return
        with payload.grant.lock:
            if payload.grant.live:
                scatter(self._target.view_checked(), payload.op, payload.dtype, payload.buffer)
                return
        self._refuse(refusal(None, payload.frame.transfer_id, 0, 0))

    def _end(self, frame: Frame) -> None:
        arriving = self._arrive(frame.write_id)
        self._arriving = None
        error = arriving.error
        if not error and frame.total != arriving.received_bytes:
            error = f"{arriving.received_bytes} of {frame.total} bytes arrived"
        if not error:
            grant = self._target.permits.find(frame.transfer_id, self._source)
            error = refusal(grant, frame.transfer_id, 0, 0)
        status = Status.REFUSED if error else Status.OK
        if frame.status == Status.CANCELLED:
            status = Status.CANCELLED
        self._answer(Kind.DONE, error.encode(), frame, status)

    # -- answering

    def _hello(self, text: bytes) -> None:
        source, error = self._target.greet(text)
        reply = json.dumps({"error": error}).encode()
        self._answer(Kind.WELCOME, reply, Frame(Kind.HELLO), Status.OK)
        if error:
            self._rejected = error
        else:
            self._source = source

    def _answer(self, kind: Kind, text: bytes, about: Frame, status: Status) -> None:
        frame = Frame(kind, about.write_id, about.transfer_id, length=len(text), status=status)
        self._reply += frame.encode() + text
        if len(self._reply) > REPLY_BYTES:
            raise ProtocolError("the source does not read its answers")

    def _flush(self) -> None:
        try:
            while self._reply:
                del self._reply[: self._sock.send(self._reply)]
        except BlockingIOError:
            pass
        except OSError as exc:
            self.fail(exc.strerror or str(exc))
            return
        if self._rejected and not self._reply:
            self.fail(self._rejected, logging.WARNING)
            return
        mask = select.EPOLLIN | select.EPOLLRDHUP | (select.EPOLLOUT if self._reply else 0)
        if mask != self._mask:
            self._mask = mask
            self._loop.change(self, mask)
