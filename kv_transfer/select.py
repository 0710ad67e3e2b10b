"""Which of a target's endpoints a source uses: shared memory where both see the same, else TCP."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from baton.core.errors import Unavailable
from baton.kv_transfer.api import Endpoint
from baton.kv_transfer.segment import DIRECTORY, is_ours

PREFERENCE = ("shm", "tcp", "inproc")


def host_id() -> str:
    """Equal in two processes exactly if they see the same shared memory, and each other die: the same boot of
    the same machine, the same IPC and pid namespaces and the same mount on /dev/shm."""
    parts = []
    for path in ("/etc/machine-id", "/proc/sys/kernel/random/boot_id"):
        with suppress(OSError):
            parts.append(Path(path).read_text().strip())
    for path in ("/proc/self/ns/ipc", "/proc/self/ns/pid", str(DIRECTORY)):
        with suppress(OSError):
            status = os.stat(path)
            parts.append(f"{status.st_dev}:{status.st_ino}")
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32]


def pick(
    endpoints: Sequence[Endpoint],
    local_host_id: str,
    peer_host_id: str,
    allowed: Sequence[str] = PREFERENCE,
) -> Endpoint:
    """The best endpoint that this side may use and can reach. Unavailable: none, and why not."""
    same_host = local_host_id == peer_host_id
    reasons = []
    for endpoint in sorted(endpoints, key=_rank):
        if endpoint.kind not in allowed:
            reasons.append(f"{endpoint.kind} is not allowed here")
        elif endpoint.kind == "shm" and not same_host:
            reasons.append("shm is on another host")
        elif endpoint.kind == "shm" and not is_ours(endpoint.params.get("name", "")):
            reasons.append("shm belongs to another user or is not mounted here")
        else:
            return endpoint
    raise Unavailable("no way to move KV there: " + ("; ".join(reasons) or "the peer offers none"))


def _rank(endpoint: Endpoint) -> int:
    return PREFERENCE.index(endpoint.kind) if endpoint.kind in PREFERENCE else len(PREFERENCE)
