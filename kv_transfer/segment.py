"""Named shared memory that outlives nobody: segments, their owners' locks, and sweeping up after the dead.

A segment is a file /dev/shm/baton-<uid>-<random>: one header page (magic, version, length, incarnation), then
the pool. Its owner holds a flock on it as long as it lives; the kernel takes the lock away with the process,
however that ends. So whoever can take the lock knows that the owner is gone: a source fails its writes, and
the next owner of the same uid that starts unlinks the file.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import mmap
import os
import re
import secrets
import stat
import struct
from pathlib import Path

import torch

from baton.core.errors import FailedPrecondition, ResourceExhausted, Unavailable
from baton.kv_transfer.layout import KvLayout

log = logging.getLogger(__name__)

DIRECTORY = Path("/dev/shm")
HEADER_BYTES = 4096
_HEADER = struct.Struct("<8sIIQ64s")  # magic, version, length of incarnation, length of pool, incarnation
_MAGIC = b"BATONKV\0"
_VERSION = 1
_NAME = re.compile(r"baton-(\d+)-[0-9a-f]{32}")


class SharedPool:
    """The owner's side: `nbytes` of zeroed, resident shared memory for a pool."""

    def __init__(self, path: Path, fd: int, nbytes: int) -> None:
        self.path = path
        self.nbytes = nbytes
        self._fd = fd
        self._memory = mmap.mmap(fd, HEADER_BYTES + nbytes, mmap.MAP_SHARED | mmap.MAP_POPULATE)

    @classmethod
    def create(cls, nbytes: int, incarnation: str, directory: Path = DIRECTORY) -> SharedPool:
        """Make a segment after sweeping dead ones. incarnation: at most 64 bytes of UTF-8.

        ResourceExhausted: it does not fit (all pages are allocated here, so no later access can fail).
        """
        name = incarnation.encode()
        if not 0 < len(name) <= 64:
            raise FailedPrecondition(f"incarnation {incarnation!r} is not 1 to 64 bytes long")
        sweep(directory)
        path, fd = _create_locked(directory)
        try:
            os.posix_fallocate(fd, 0, HEADER_BYTES + nbytes)
            os.pwrite(fd, _HEADER.pack(_MAGIC, _VERSION, len(name), nbytes, name), 0)
            return cls(path, fd, nbytes)
        except OSError as exc:
            path.unlink()
            os.close(fd)
            if exc.errno not in (errno.ENOSPC, errno.EFBIG, errno.ENOMEM, errno.EDQUOT):
                raise
            raise ResourceExhausted(_too_small(directory, nbytes, exc)) from exc

    def tensor(self, layout: KvLayout) -> torch.Tensor:
        """The pool, of `layout.tensor_shape`; it keeps the mapping alive."""
        if layout.pool_bytes > self.nbytes:
            raise FailedPrecondition(f"a pool of {layout.pool_bytes} bytes in a segment of {self.nbytes}")
        return pool_tensor(self._memory, layout)

    def holds(self, tensor: torch.Tensor) -> bool:
        """The tensor starts where the segment's pool does."""
        if self._fd < 0:
            return False
        here = torch.frombuffer(self._memory, dtype=torch.uint8, offset=HEADER_BYTES)
        return tensor.data_ptr() == here.data_ptr() and tensor.nbytes <= self.nbytes

    def close(self) -> None:
        """Unlink the name, let go of the lock: sources see that the owner has gone. Idempotent.

        Tensors stay valid: the memory goes with the last of them.
        """
        if self._fd >= 0:
            self.path.unlink(missing_ok=True)
            fcntl.flock(self._fd, fcntl.LOCK_UN)
            os.close(self._fd)
            self._fd = -1
            del self._memory


class MappedPool:
    """The source's side: a mapping of a living owner's segment.

    Unavailable: no such segment here, its owner is gone, or it is another incarnation's. FailedPrecondition:
    the file is not what a segment of this user for this layout looks like.
    """

    def __init__(self, name: str, incarnation: str, layout: KvLayout, directory: Path = DIRECTORY) -> None:
        if not _NAME.fullmatch(name):
            raise FailedPrecondition(f"{name!r} is no name of a segment")
        try:
            self._fd = os.open(directory / name, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError as exc:
            raise Unavailable(f"segment {name} of incarnation {incarnation!r}: {exc.strerror}") from exc
        try:
            self._check(name, incarnation, layout)
            length = HEADER_BYTES + layout.pool_bytes
            memory = mmap.mmap(self._fd, length, mmap.MAP_SHARED | mmap.MAP_POPULATE)
        except BaseException:
            self._close()
            raise
        self.tensor = pool_tensor(memory, layout)

    def _check(self, name: str, incarnation: str, layout: KvLayout) -> None:
        status = os.fstat(self._fd)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.getuid():
            raise FailedPrecondition(f"segment {name} belongs to uid {status.st_uid}, not {os.getuid()}")
        if status.st_size < HEADER_BYTES:
            raise FailedPrecondition(f"segment {name} has no header")
        magic, version, length, nbytes, found = _HEADER.unpack(os.pread(self._fd, _HEADER.size, 0))
        if (magic, version) != (_MAGIC, _VERSION):
            raise FailedPrecondition(f"segment {name} is not of version {_VERSION} of this format")
        if nbytes < layout.pool_bytes or status.st_size < HEADER_BYTES + layout.pool_bytes:
            raise FailedPrecondition(
                f"segment {name} holds {nbytes} bytes, its layout needs {layout.pool_bytes}"
            )
        owner = found[: min(length, 64)].decode(errors="replace")
        if owner != incarnation:
            raise Unavailable(f"segment {name} is of incarnation {owner!r}, not {incarnation!r}")
        if self.orphaned():
            raise Unavailable(f"incarnation {incarnation!r}, owner of segment {name}, has gone")

    def orphaned(self) -> bool:
        """Nobody holds the owner's lock any more."""
        return self._fd < 0 or _is_free(self._fd, fcntl.LOCK_SH)

    def _close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __del__(self) -> None:
        if hasattr(self, "_fd"):
            self._close()


def pool_tensor(memory: mmap.mmap, layout: KvLayout) -> torch.Tensor:
    dtype = getattr(torch, layout.tensor_dtype)
    count = layout.pool_bytes // dtype.itemsize
    return torch.frombuffer(memory, dtype=dtype, offset=HEADER_BYTES, count=count).view(layout.tensor_shape)


def is_ours(name: str, directory: Path = DIRECTORY) -> bool:
    """A segment of that name exists here and this user may map it."""
    try:
        status = os.stat(directory / name, follow_symlinks=False)
    except OSError:
        return False
    return _NAME.fullmatch(name) is not None and status.st_uid == os.getuid()


def sweep(directory: Path = DIRECTORY) -> list[str]:
    """Unlink this user's segments whose owner is gone; returns their names. Others' are never touched."""
    swept = []
    for entry in os.scandir(directory):
        match = _NAME.fullmatch(entry.name)
        if match is None or int(match[1]) != os.getuid():
            continue
        try:
            fd = os.open(entry.path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            continue  # gone already, or not ours after all
        try:
            if os.fstat(fd).st_uid == os.getuid() and _take(fd):
                os.unlink(entry.path)
                swept.append(entry.name)
        except FileNotFoundError:
            pass  # another sweeper was faster
        finally:
            os.close(fd)
    if swept:
        count = f"{len(swept)} shared memory segment{'s'[: len(swept) != 1]}"
        log.info("removed %s of dead processes: %s", count, ", ".join(swept))
    return swept


def _create_locked(directory: Path) -> tuple[Path, int]:
    while True:
        path = directory / f"baton-{os.getuid()}-{secrets.token_hex(16)}"
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        # A sweeper may meet the file before its lock is taken: then it holds the lock and unlinks.
        if _take(fd) and os.fstat(fd).st_nlink == 1:
            return path, fd
        os.close(fd)
        path.unlink(missing_ok=True)


def _take(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_free(fd: int, kind: int) -> bool:
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    fcntl.flock(fd, fcntl.LOCK_UN)
    return True


def _too_small(directory: Path, nbytes: int, exc: OSError) -> str:
    space = os.statvfs(directory)
    free, total = space.f_bavail * space.f_frsize, space.f_blocks * space.f_frsize
    return (
        f"a KV pool of {nbytes / 2**20:.1f} MiB does not fit into shared memory: {directory} has "
        f"{free / 2**20:.1f} MiB free of {total / 2**20:.1f} ({exc.strerror}); give the pool fewer blocks, "
        "enlarge the mount, or turn the shm transport off"
    )
