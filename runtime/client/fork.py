"""gRPC does not survive a fork: a child that inherits its threads' locks hangs at its first call.

So a client knows the process it was made in, and a process whose parent used gRPC before the fork is told so
at once. Start workers with "spawn", or make the first client after the fork.
"""

from __future__ import annotations

import os

from baton.core.errors import FailedPrecondition

_state = {"used_in": 0}

ADVICE = 'start processes with multiprocessing.get_context("spawn"), or make the first client in the child'


def mark_used() -> int:
    """Call before gRPC is used; returns this process's id. FailedPrecondition in a forked child of a user."""
    pid = os.getpid()
    if _state["used_in"] not in (0, pid):
        raise FailedPrecondition(f"gRPC was in use in the parent process when it forked: {ADVICE}")
    _state["used_in"] = pid
    return pid


def check_owner(pid: int) -> None:
    """Raise FailedPrecondition unless this is the process that `mark_used` was called in."""
    if os.getpid() != pid:
        raise FailedPrecondition(f"this client was made in another process (id {pid}): {ADVICE}")
