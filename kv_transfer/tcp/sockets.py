"""Socket options and the blocking part of a connection: opening it and saying hello."""

from __future__ import annotations

import fcntl
import json
import socket
import struct
import sys
import termios
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from typing import Any

from baton.core.errors import FailedPrecondition, Unavailable
from baton.kv_transfer.api import Peer
from baton.kv_transfer.layout import KvLayout
from baton.kv_transfer.tcp.frames import HEADER_BYTES, TEXT_BYTES, Frame, Kind, ProtocolError, decode


@dataclass(frozen=True, slots=True)
class TcpOptions:
    """host, port: where to listen (0: the kernel chooses). advertise: the name or address that peers use;
    "": `host`. stall_timeout_s: a peer that takes no byte and says nothing for this long while something is
    due has failed. linger_s: how long `close` waits for peers to confirm that writes have ended."""

    host: str = "127.0.0.1"
    port: int = 0
    advertise: str = ""
    connect_timeout_s: float = 2.0
    stall_timeout_s: float = 10.0
    linger_s: float = 1.0
    max_inbound: int = 256


def listen(options: TcpOptions) -> socket.socket:
    """FailedPrecondition: the address cannot be had."""
    try:
        info = socket.getaddrinfo(
            options.host, options.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        family, kind, proto, _, address = info[0]
        sock = socket.socket(family, kind, proto)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind(address)
            sock.listen(128)
            sock.setblocking(False)
        except BaseException:
            sock.close()
            raise
    except OSError as exc:
        raise FailedPrecondition(f"cannot listen on {options.host}:{options.port}: {exc.strerror}") from exc
    return sock


def tune(sock: socket.socket, stall_timeout_s: float) -> None:
    """Non-blocking, no Nagle, and a network or host that died without a word is noticed."""
    sock.setblocking(False)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, max(1, int(stall_timeout_s)))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, max(1, int(stall_timeout_s / 3)))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, max(1, int(stall_timeout_s * 1000)))


def unacknowledged(sock: socket.socket) -> int:
    """Bytes that were sent and that the peer's host has not confirmed (SIOCOUTQ of tcp(7))."""
    return int.from_bytes(fcntl.ioctl(sock, termios.TIOCOUTQ, bytes(4)), sys.byteorder)


def abort(sock: socket.socket) -> None:
    """Close with a reset, so that the other side drops what it has not read."""
    with suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


def dial(peer: Peer, source: str, options: TcpOptions) -> socket.socket:
    """Connect and be welcomed. Unavailable or FailedPrecondition, as `KvTransport.connect` says."""
    host, port = peer.endpoint.params.get("host", ""), peer.endpoint.params.get("port", "")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise FailedPrecondition(f"{peer.node_id}: no tcp address in {dict(peer.endpoint.params)}")
    deadline = time.monotonic() + options.connect_timeout_s
    where = f"{peer.node_id} (incarnation {peer.incarnation!r}) at {host}:{port}"
    try:
        sock = socket.create_connection((host, int(port)), timeout=options.connect_timeout_s)
    except OSError as exc:
        raise Unavailable(f"{where}: {exc}") from exc
    try:
        reply = _greet(sock, deadline, peer, source)
        tune(sock, options.stall_timeout_s)
    except (OSError, ProtocolError) as exc:
        sock.close()
        raise Unavailable(f"{where}: {exc or type(exc).__name__}") from exc
    if reply:
        sock.close()
        error = FailedPrecondition if reply.startswith("layout") else Unavailable
        raise error(f"{where}: {reply}")
    return sock


def _greet(sock: socket.socket, deadline: float, peer: Peer, source: str) -> str:
    text = json.dumps({"source": source, "target": peer.incarnation, "layout": asdict(peer.layout)}).encode()
    sock.sendall(Frame(Kind.HELLO, length=len(text)).encode() + text)
    frame = decode(_receive(sock, HEADER_BYTES, deadline))
    if frame.kind != Kind.WELCOME:
        raise ProtocolError(f"answered with a frame of kind {frame.kind}")
    return parse_text(_receive(sock, frame.length, deadline), "error")[0]


def _receive(sock: socket.socket, length: int, deadline: float) -> bytes:
    data = b""
    while len(data) < length:
        sock.settimeout(max(deadline - time.monotonic(), 0.001))
        more = sock.recv(length - len(data))
        if not more:
            raise ProtocolError("closed the connection before it said welcome")
        data += more
    return data


def parse_text(data: bytes, *keys: str) -> list[str]:
    """The strings under `keys` of a JSON object from a peer."""
    parsed = _object(data)
    values = [value for key in keys if isinstance(value := parsed.get(key), str)]
    if len(values) < len(keys):
        raise ProtocolError(f"no strings under {', '.join(keys)}")
    return values


def parse_layout(data: bytes) -> KvLayout:
    layout = _object(data).get("layout")
    kinds = {field.name: str if field.name == "dtype" else int for field in fields(KvLayout)}
    if not isinstance(layout, dict) or layout.keys() != kinds.keys():
        raise ProtocolError("no layout")
    if not all(type(layout[name]) is kind for name, kind in kinds.items()):
        raise ProtocolError("a layout of wrong types")
    return KvLayout(**layout)


def _object(data: bytes) -> dict[str, Any]:
    if len(data) > TEXT_BYTES:
        raise ProtocolError("too long a text")
    try:
        parsed = json.loads(data)
    except (ValueError, RecursionError) as exc:
        raise ProtocolError("not a JSON text") from exc
    if not isinstance(parsed, dict):
        raise ProtocolError("not a JSON object")
    return parsed
