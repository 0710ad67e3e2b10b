"""The source's end of a connection: frames out, ends of writes in."""

from __future__ import annotations

import math
import select
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass

from baton.kv_transfer.api import Peer
from baton.kv_transfer.completions import Completions
from baton.kv_transfer.layout import ITEM_BYTES
from baton.kv_transfer.plan import CopyOp, extent, op_bytes, plan, split
from baton.kv_transfer.pool_view import PoolView, gather
from baton.kv_transfer.tcp import frames
from baton.kv_transfer.tcp.frames import FRAME_BYTES, HEADER_BYTES, Frame, Kind, ProtocolError, Status
from baton.kv_transfer.tcp.loop import Loop
from baton.kv_transfer.tcp.sockets import abort, unacknowledged
from baton.kv_transfer.writes import Completion, Outcome, Write

MAX_QUEUED = 1 << 16
TURN_BYTES = 4 << 20  # sent before other connections get their turn
LOOKS = 4  # in the time after which a peer that does not move is given up


@dataclass(eq=False)
class _Sending:
    write: Write
    pieces: Iterator[CopyOp]
    sent_bytes: int = 0
    started_s: float = 0.0
    stop: Outcome | None = None  # what it ends as, unless the target applied it after all


class Outbound:
    """A `Connection`. All but its three methods run in the loop's thread, which alone touches the state."""

    def __init__(
        self, loop: Loop, sock: socket.socket, view: PoolView, peer: Peer, completions: Completions
    ) -> None:
        self.gone = threading.Event()
        self.stall_timeout_s = 10.0
        self._loop = loop
        self._sock = sock
        self._view = view
        self._peer = peer
        self._completions = completions
        src, dst = view.layout.dtype, peer.layout.dtype
        self._dtype = src if ITEM_BYTES[src] <= ITEM_BYTES[dst] else dst
        self._scratch = memoryview(b"")
        self._queue: deque[_Sending] = deque()
        self._current: _Sending | None = None
        self._awaited: dict[int, _Sending] = {}
        self._out: list[memoryview] = []
        self._in = bytearray()
        self._mask = select.EPOLLIN | select.EPOLLRDHUP
        self._progress_s = 0.0
        self._look_s = math.inf
        self._left_bytes = 0  # in the kernel's hands when the peer's progress was last looked at
        self._closing = False
        self._error = ""

    # -- any thread

    def start(self) -> bool:
        return self._loop.call(self, lambda: self._loop.watch(self, self._mask))

    def submit(self, write: Write) -> None:
        if not self._loop.call(self, lambda: self._submit(write)):
            self._completions.end(write, Outcome.FAILED, "the transport is closed")

    def cancel(self, transfer_id: int) -> None:
        self._loop.call(self, lambda: self._cancel(transfer_id))

    @property
    def broken(self) -> bool:
        return self.gone.is_set()

    def close(self) -> None:
        self._loop.call(self, self._close)

    # -- from here on, the loop's thread

    def fileno(self) -> int:
        return self._sock.fileno()

    def _submit(self, write: Write) -> None:
        error = self._error or ("the connection is closed" if self._closing else "")
        ops: list[CopyOp] = []
        if not error and len(self._queue) >= MAX_QUEUED:
            error = f"{MAX_QUEUED} writes are queued already"
        if not error:
            try:
                ops = plan(self._view.layout, self._peer.layout, write)
                Frame(Kind.END, write.write_id, write.transfer_id).encode()
            except (ValueError, IndexError, TypeError, struct.error) as exc:
                error = f"bad write: {exc}"
        if error:
            self._completions.end(write, Outcome.FAILED, error)
            return
        layout, dtype = self._peer.layout, self._dtype
        pieces = (piece for op in ops for piece in split(op, layout, dtype, FRAME_BYTES))
        if not self._busy():
            self._progressed()
        self._queue.append(_Sending(write, pieces))
        if not self._mask & select.EPOLLOUT:
            self._pump()

    def _cancel(self, transfer_id: int) -> None:
        self._drop(lambda sending: sending.write.transfer_id == transfer_id, Outcome.CANCELLED, "")

    def _close(self) -> None:
        self._closing = True
        self._drop(lambda sending: True, Outcome.FAILED, "the connection was closed")
        self._close_if_idle()

    def _drop(self, chosen: Callable[[_Sending], bool], outcome: Outcome, error: str) -> None:
        """End what is queued; have the write under way confirmed as ended by the target first."""
        dropped = [sending for sending in self._queue if chosen(sending)]
        self._queue = deque(sending for sending in self._queue if not chosen(sending))
        for sending in dropped:
            self._completions.end(sending.write, outcome, error)
        if self._current is not None and chosen(self._current):
            self._current.stop = outcome

    def _busy(self) -> bool:
        return bool(self._queue or self._current or self._awaited or self._out)

    def _close_if_idle(self) -> None:
        if self._closing and not self._busy():
            self.fail("the connection was closed")

    # -- sending

    def _pump(self) -> None:
        """Send until the socket is full, a turn is over, or nothing is left."""
        turn = 0
        while turn < TURN_BYTES and (self._out or self._next_frame()):
            try:
                sent = self._sock.sendmsg(self._out)
            except BlockingIOError:
                break
            except OSError as exc:
                self.fail(f"{self._name()}: {exc.strerror}")
                return
            turn += sent
            self._advance(sent)
        if turn:
            self._progressed()
        waits = bool(self._out or self._current or self._queue)
        mask = select.EPOLLIN | select.EPOLLRDHUP | (select.EPOLLOUT if waits else 0)
        if mask != self._mask:
            self._mask = mask
            self._loop.change(self, mask)

    def _advance(self, sent: int) -> None:
        while self._out and sent >= len(self._out[0]):
            sent -= len(self._out.pop(0))
        if sent:
            self._out[0] = self._out[0][sent:]

    def _next_frame(self) -> bool:
        if self._current is None:
            if not self._queue:
                return False
            self._current = self._queue.popleft()
            self._current.started_s = time.perf_counter()
        sending, write = self._current, self._current.write
        op = next(sending.pieces, None) if sending.stop is None else None
        if op is None:
            status = Status.OK if sending.stop is None else Status.CANCELLED
            end = Frame(Kind.END, write.write_id, write.transfer_id, total=sending.sent_bytes, status=status)
            self._out = [memoryview(end.encode())]
            self._awaited[write.write_id] = sending
            self._current = None
            return True
        payload = self._payload(op)
        frame = frames.data_frame(write.write_id, write.transfer_id, op, self._dtype, len(payload))
        self._out = [memoryview(frame.encode()), payload]
        sending.sent_bytes += len(payload)
        return True

    def _payload(self, op: CopyOp) -> memoryview:
        """Straight from the pool where the elements lie together, else packed into the scratch buffer, which
        is free again: the last frame has left."""
        layout = self._view.layout
        place = extent(layout, op.src_block, op) if self._dtype == layout.dtype else None
        if place is not None:
            return self._view.bytes[place[0] : place[0] + place[1]]
        length = op_bytes(op, layout, self._dtype)
        if len(self._scratch) < length:
            self._scratch = memoryview(bytearray(max(length, FRAME_BYTES)))
        gather(self._view, op, self._dtype, self._scratch[:length])
        return self._scratch[:length]

    # -- the target's word

    def ready(self, mask: int) -> None:
        if mask & ~select.EPOLLOUT:
            try:
                data = self._sock.recv(1 << 16)
            except BlockingIOError:
                data = None
            except OSError as exc:
                self.fail(f"{self._name()}: {exc.strerror}")
                return
            if data == b"":
                self.fail(f"{self._name()} closed the connection")
                return
            if data is not None:
                self._progressed()
                self._in += data
                self._parse()
        if not self._error:
            self._pump()

    def _parse(self) -> None:
        while len(self._in) >= HEADER_BYTES:
            frame = frames.decode(self._in[:HEADER_BYTES])
            size = HEADER_BYTES + frame.length
            if len(self._in) < size:
                break
            text = bytes(self._in[HEADER_BYTES:size])
            del self._in[:size]
            sending = self._awaited.pop(frame.write_id, None)
            if frame.kind != Kind.DONE or sending is None:
                raise ProtocolError(f"{self._name()} ended write {frame.write_id}, which is not under way")
            self._finish(sending, frame.status, text.decode(errors="replace"))
        self._close_if_idle()

    def _finish(self, sending: _Sending, status: int, text: str) -> None:
        write, sent = sending.write, sending.sent_bytes
        seconds = time.perf_counter() - sending.started_s
        if status == Status.OK:
            outcome, error = Outcome.APPLIED, ""
        elif status == Status.CANCELLED and sending.stop is not None:
            outcome, error = sending.stop, ""
        else:
            outcome, error = Outcome.FAILED, f"{self._name()}: {text}"
        if outcome is Outcome.FAILED and not error:
            error = "the connection was closed"
        self._completions.push(Completion(write.write_id, write.transfer_id, outcome, sent, seconds, error))

    # -- whether the peer moves at all

    def _progressed(self) -> None:
        self._progress_s = time.monotonic()
        self._look_s = self._progress_s + self.stall_timeout_s / LOOKS
        self._left_bytes = unacknowledged(self._sock)

    def due_s(self) -> float:
        return self._look_s if self._busy() else math.inf

    def overdue(self) -> None:
        """Nothing came, and the socket took nothing. Over a slow link what it holds may still be leaving."""
        if unacknowledged(self._sock) < self._left_bytes:
            self._progressed()
            return
        self._look_s += self.stall_timeout_s / LOOKS
        if time.monotonic() >= self._progress_s + self.stall_timeout_s:
            self.fail(f"{self._name()} neither took nor confirmed anything for {self.stall_timeout_s:g} s")

    def _name(self) -> str:
        return f"{self._peer.node_id} (incarnation {self._peer.incarnation!r})"

    def fail(self, error: str) -> None:
        if self._error:
            return
        self._error = error
        with suppress(OSError):
            self._loop.forget(self)
        abort(self._sock)
        left = [*self._awaited.values(), *([self._current] if self._current else []), *self._queue]
        self._awaited.clear()
        self._queue.clear()
        self._current, self._out, self._scratch = None, [], memoryview(b"")
        self.gone.set()
        for sending in left:
            self._completions.end(sending.write, Outcome.FAILED, error)
        self._completions.wake()
