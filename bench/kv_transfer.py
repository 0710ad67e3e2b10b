"""How close the transports come to what the machine can do: shm to a memcpy, TCP to a bare socket.

Limits and measurements take turns in the same run, and each figure is the best of its rounds: the slower ones
say how busy the machine was with other things. Source and target are two processes; blocks are sent in
scattered order.
"""

from __future__ import annotations

import json
import random
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from baton.bench.kv_transfer_shape import INCARNATION, TRANSFER, layout_of
from baton.bench.report import Figure
from baton.kv_transfer.api import Connection, Endpoint, KvTransport, Outcome, Peer, Pool, Write
from baton.kv_transfer.layout import KvLayout
from baton.kv_transfer.shm import ShmTransport
from baton.kv_transfer.tcp.transport import TcpTransport

BLOCKS = 96
ROUNDS = 80


def run() -> list[Figure]:
    layout = layout_of(BLOCKS + 1)
    pool = Pool(torch.ones(layout.shape), layout)
    with _sender("shm", ShmTransport(), pool) as send, _memcpy(pool) as copy:
        shm, memcpy = _alternate(send, copy, BLOCKS * layout.block_bytes)
    with _sender("tcp", TcpTransport(INCARNATION), pool) as send, _raw_socket(pool) as raw:
        tcp, loopback = _alternate(send, raw, BLOCKS * layout.block_bytes)
    return [
        Figure("KV through shared memory", shm, "GB/s", memcpy, "memcpy, one thread", 0.70),
        Figure("KV through TCP", tcp, "GB/s", loopback, "bare loopback socket", 0.60),
    ]


def _alternate(measured: Callable[[], None], limit: Callable[[], None], nbytes: int) -> tuple[float, float]:
    """Best GB/s of both."""
    rates: tuple[list[float], list[float]] = ([], [])
    for number in range(ROUNDS + 2):
        for function, rate in zip((measured, limit), rates, strict=True):
            start = time.perf_counter()
            function()
            if number >= 2:  # the first rounds warm up
                rate.append(nbytes / (time.perf_counter() - start) / 1e9)
    return max(rates[0]), max(rates[1])


def _order() -> list[int]:
    return random.Random(0).sample(range(1, BLOCKS + 1), BLOCKS)


@contextmanager
def _sender(kind: str, transport: KvTransport, pool: Pool) -> Iterator[Callable[[], None]]:
    with _target(kind) as told:
        layout = KvLayout(**told["layout"])
        transport.register(pool)
        connection = transport.connect(
            Peer("target", INCARNATION, layout, Endpoint(told["kind"], told["params"]))
        )
        try:
            yield _Sender(transport, connection)
        finally:
            transport.close()


class _Sender:
    """One call: one write of all blocks, until it is applied."""

    def __init__(self, transport: KvTransport, connection: Connection) -> None:
        self._transport, self._connection = transport, connection
        self._woken = threading.Event()
        self._source, self._target = _order(), list(reversed(_order()))
        transport.set_waker(self._woken.set)

    def __call__(self) -> None:
        tokens = BLOCKS * layout_of(1).block_size
        self._connection.submit(Write(1, TRANSFER, 0, tokens, self._source, 0, self._target, 0))
        while not (ended := self._transport.poll()):
            self._woken.wait(10)
            self._woken.clear()
        if ended[0].outcome is not Outcome.APPLIED:
            raise RuntimeError(f"the transfer failed: {ended[0].error}")


@contextmanager
def _memcpy(pool: Pool) -> Iterator[Callable[[], None]]:
    there = torch.ones(pool.layout.shape).numpy()
    here, order = pool.tensor.numpy(), list(zip(_order(), reversed(_order()), strict=True))

    def copy() -> None:
        for src, dst in order:
            there[dst] = here[src]

    yield copy


@contextmanager
def _raw_socket(pool: Pool) -> Iterator[Callable[[], None]]:
    flat = pool.tensor.numpy().reshape(-1).data.cast("B")
    size = pool.layout.block_bytes
    with _target("socket") as told, socket.create_connection(("127.0.0.1", told["port"])) as sock:

        def send() -> None:
            for block in _order():
                sock.sendall(flat[block * size : (block + 1) * size])
            sock.recv(1)

        yield send


@contextmanager
def _target(kind: str) -> Iterator[dict[str, Any]]:
    command = [sys.executable, "-m", "baton.bench.kv_transfer_target", kind, str(BLOCKS + 1)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield json.loads(process.stdout.readline())
        finally:
            process.communicate(timeout=10)


if __name__ == "__main__":
    for figure in run():
        print(f"{figure.name}: {figure.value:.2f} of {figure.limit:.2f} {figure.unit}, {figure.ratio:.2f}")
