"""Shared memory comes and goes with its owners, however they end."""

from __future__ import annotations

import errno
import os
import random
import resource
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from baton.core.errors import FailedPrecondition, ResourceExhausted, Unavailable
from baton.kv_transfer.segment import HEADER_BYTES, MappedPool, SharedPool, sweep
from tests.kv_transfer.processes import child
from tests.kv_transfer.rig import SMALL
from tests.patience import Patience

MIB = 1 << 20


@pytest.fixture
def directory() -> Iterator[Path]:
    """Shared memory of the test's own: others may be using the real one."""
    path = Path(tempfile.mkdtemp(prefix="test-", dir="/dev/shm"))
    yield path
    shutil.rmtree(path)


def segments(directory: Path) -> list[Path]:
    return sorted(directory.glob("baton-*"))


def until(true: Callable[[], bool]) -> None:
    patience = Patience(10)
    while not true():
        assert patience.lasts()
        time.sleep(0.002)


def test_killed_owners_leave_nothing_that_grows_and_living_ones_are_left_alone(directory: Path) -> None:
    rng = random.Random(5)
    mine = SharedPool.create(SMALL.pool_bytes, "mine", directory)
    with child("segments", str(directory), str(4 * MIB)) as maker:
        neighbour = maker.ask("make")["pid"]
        until((directory / f"ready-{neighbour}").exists)
        living = {mine.path, directory / (directory / f"ready-{neighbour}").read_text()}
        for round_ in range(20):
            pid = maker.ask("make")["pid"]
            if round_ % 2:
                until((directory / f"ready-{pid}").exists)
            else:  # at a random moment, also while the segment is made
                time.sleep(rng.uniform(0, 0.006))
            os.kill(pid, signal.SIGKILL)
            until(lambda pid=pid: not Path(f"/proc/{pid}").exists())  # type: ignore[misc]
            assert living <= set(segments(directory))
            assert len(segments(directory)) <= len(living) + 1
        MappedPool(mine.path.name, "mine", SMALL, directory)
        sweep(directory)
        assert set(segments(directory)) == living
        os.kill(neighbour, signal.SIGKILL)
        until(lambda: not Path(f"/proc/{neighbour}").exists())
    assert len(sweep(directory)) == 1
    mine.close()
    mine.close()
    assert segments(directory) == []


def test_what_is_not_ours_is_not_swept(directory: Path) -> None:
    others = [
        f"baton-{os.getuid() + 1}-{'0' * 32}",
        f"baton-{os.getuid()}-short",
        f"batons-{os.getuid()}-{'0' * 32}",
    ]
    for name in others:
        (directory / name).write_bytes(b"x")
    (directory / f"baton-{os.getuid()}-{'1' * 32}").symlink_to(directory / others[0])
    assert sweep(directory) == []
    assert len(list(directory.iterdir())) == 4


def test_more_than_the_mount_holds_is_refused_at_once(tmp_path: Path) -> None:
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=4m", "none", str(tmp_path)], check=False
    ).returncode:
        pytest.skip("may not mount")
    try:
        with pytest.raises(ResourceExhausted, match=r"8\.0 MiB does not fit.* 4\.0 MiB free of 4\.0"):
            SharedPool.create(8 * MIB, "x", tmp_path)
        assert segments(tmp_path) == []
        fits = SharedPool.create(3 * MIB, "x", tmp_path)
        with pytest.raises(ResourceExhausted):
            SharedPool.create(MIB, "x", tmp_path)
        fits.close()
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


def test_more_than_a_file_may_hold_is_refused_at_once(directory: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (MIB, hard))
    try:
        with pytest.raises(ResourceExhausted, match="does not fit"):
            SharedPool.create(2 * MIB, "x", directory)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert segments(directory) == []


def test_other_errors_are_not_dressed_up(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.EIO, "broken")

    monkeypatch.setattr(os, "posix_fallocate", fail)
    with pytest.raises(OSError, match="broken"):
        SharedPool.create(MIB, "x", directory)
    assert segments(directory) == []


def test_tensors_outlive_the_name(directory: Path) -> None:
    owner = SharedPool.create(SMALL.pool_bytes, "x", directory)
    tensor = owner.tensor(SMALL)
    there = MappedPool(owner.path.name, "x", SMALL, directory)
    owner.close()
    assert there.orphaned()
    there.tensor.fill_(3.0)
    assert bool((tensor == 3.0).all())
    with pytest.raises(Unavailable, match="No such file"):
        MappedPool(owner.path.name, "x", SMALL, directory)


def test_a_source_checks_what_it_maps(directory: Path) -> None:
    owner = SharedPool.create(SMALL.pool_bytes, "x", directory)
    name = owner.path.name
    with pytest.raises(FailedPrecondition, match="no name of a segment"):
        MappedPool("../../etc/passwd", "x", SMALL, directory)
    with pytest.raises(Unavailable, match="'x', not 'y'"):
        MappedPool(name, "y", SMALL, directory)
    with pytest.raises(FailedPrecondition, match="its layout needs"):
        MappedPool(name, "x", replace(SMALL, num_blocks=25), directory)
    with pytest.raises(FailedPrecondition, match="a pool of"):
        owner.tensor(replace(SMALL, num_blocks=25))
    os.truncate(owner.path, HEADER_BYTES + 10)
    with pytest.raises(FailedPrecondition, match="its layout needs"):
        MappedPool(name, "x", SMALL, directory)
    owner.path.write_bytes(b"junk" * 2000)
    with pytest.raises(FailedPrecondition, match="version"):
        MappedPool(name, "x", SMALL, directory)
    os.truncate(owner.path, 7)
    with pytest.raises(FailedPrecondition, match="header"):
        MappedPool(name, "x", SMALL, directory)
    owner.close()
    with pytest.raises(FailedPrecondition, match="64 bytes"):
        SharedPool.create(MIB, "x" * 65, directory)
