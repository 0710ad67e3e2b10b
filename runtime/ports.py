"""One port for several processes, and for nobody else.

With SO_REUSEPORT every process of one user may listen on a taken port, and the kernel splits the connections:
two deployments on one port would each get half of the other's clients, without an error anywhere. So the
launcher takes the port first.
"""

from __future__ import annotations

import os
import socket

from baton.core.errors import FailedPrecondition
from baton.runtime.addresses import join_address


class SharedPort:
    """Holds host:port for processes that listen with SO_REUSEPORT, until closed. It never listens itself.

    Two locks: a plain bind fails while anybody listens there; an abstract socket named after the port (which
    ends with its owner, and is per network namespace like ports are) keeps another SharedPort from passing
    that test before our processes listen.
    """

    def __init__(self, host: str, port: int = 0, field: str = "router.port") -> None:
        """port 0: the kernel chooses. FailedPrecondition (`field`): the port is in use."""
        self._family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._lock: socket.socket | None = None
        try:
            if port:
                self._lock = _lock(port)
                with socket.socket(self._family, socket.SOCK_STREAM) as probe:
                    probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                    probe.bind((host, port))
                    probe.listen(1)
            self._held = socket.socket(self._family, socket.SOCK_STREAM)
            self._held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            self._held.bind((host, port))
        except OSError as error:
            self.close()
            why = os.strerror(error.errno) if error.errno and error.errno > 0 else str(error)
            where = join_address(host, port)
            raise FailedPrecondition(f"cannot listen on {where}: {why}", field=field) from None
        self.port: int = self._held.getsockname()[1]

    def close(self) -> None:
        for held in (self._lock, getattr(self, "_held", None)):
            if held is not None:
                held.close()


def _lock(port: int) -> socket.socket:
    lock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        lock.bind(f"\0baton/shared-port/{port}")
    except OSError:
        lock.close()
        raise
    return lock
