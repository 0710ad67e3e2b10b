"""How many CPUs this process may use: fewer than the host has, in a container or under taskset."""

from __future__ import annotations

import os
from pathlib import Path

CGROUP_QUOTA = Path("/sys/fs/cgroup/cpu.max")


def usable_cpus(quota_file: Path = CGROUP_QUOTA) -> int:
    """At least 1. The affinity mask, cut by the cgroup's quota rounded up."""
    cpus = len(os.sched_getaffinity(0))
    try:
        quota, period = quota_file.read_text().split()
        return max(1, min(cpus, -(-int(quota) // int(period))))
    except (OSError, ValueError):  # no cgroup v2, or "max": no quota
        return cpus
