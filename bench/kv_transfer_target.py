"""The other process of the transfer benchmark: a pool to write to, or a plain socket to send to.

python -m baton.bench.kv_transfer_target KIND BLOCKS    (a line of JSON on stdout; ends with stdin)
"""

from __future__ import annotations

import json
import socket
import sys
from contextlib import suppress
from dataclasses import asdict

import torch

from baton.bench.kv_transfer_shape import INCARNATION, TRANSFER, layout_of
from baton.kv_transfer.api import KvTransport, Pool
from baton.kv_transfer.segment import SharedPool
from baton.kv_transfer.shm import ShmTransport
from baton.kv_transfer.tcp.transport import TcpTransport


def _serve_pool(kind: str, blocks: int) -> None:
    layout = layout_of(blocks)
    shared = SharedPool.create(layout.pool_bytes, INCARNATION) if kind == "shm" else None
    tensor = shared.tensor(layout) if shared else torch.zeros(layout.shape)
    transport: KvTransport = ShmTransport(shared) if shared else TcpTransport(INCARNATION)
    transport.register(Pool(tensor, layout))
    transport.open(TRANSFER, INCARNATION, range(1, blocks))
    endpoint = transport.describe()
    _say({"kind": endpoint.kind, "params": dict(endpoint.params), "layout": asdict(layout)})
    sys.stdin.read()
    transport.close()
    if shared is not None:
        shared.close()


def _serve_socket(blocks: int) -> None:
    """Receive into the blocks of a pool, over and over; one byte back after each round."""
    layout = layout_of(blocks)
    flat = torch.zeros(layout.shape).numpy().reshape(-1).data.cast("B")
    size = layout.block_bytes
    with socket.create_server(("127.0.0.1", 0)) as server:
        _say({"port": server.getsockname()[1]})
        sock, _ = server.accept()
        with sock, suppress(ConnectionError):
            while True:
                for block in range(1, blocks):
                    view = flat[block * size : (block + 1) * size]
                    while view:
                        got = sock.recv_into(view)
                        if not got:
                            return
                        view = view[got:]
                sock.sendall(b"!")


def _say(message: dict[str, object]) -> None:
    print(json.dumps(message), flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "socket":
        _serve_socket(int(sys.argv[2]))
    else:
        _serve_pool(sys.argv[1], int(sys.argv[2]))
