"""Ports to be listened on later, which nobody takes meanwhile."""

from __future__ import annotations

import os
import socket
from pathlib import Path

FIRST = 10_000


def free_port() -> int:
    """Free on this host by all its names, and below those that the kernel gives to whoever asks for any port
    or connects somewhere: only another test that asks here could get it, and those begin elsewhere."""
    end = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    count = end - FIRST
    begin = os.getpid() * 61
    for i in range(count):
        port = FIRST + (begin + i) % count
        if port in _given:
            continue
        try:
            with socket.create_server(("0.0.0.0", port)):
                _given.add(port)
                return port
        except OSError:
            continue
    raise AssertionError("no port is free")


_given: set[int] = set()
