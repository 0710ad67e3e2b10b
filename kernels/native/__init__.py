"""The compiled CPU kernels: C++ with a plain C interface, called through ctypes, which lets go of the GIL.

Everything works without them: where the library was not built (no compiler at install) or the machine has no
AVX2, `available()` is False, one log line says why, and the torch implementations run.

    native.configure(threads=2, cpus=(0, 1))   # once per process; the default is one thread anywhere
    native.run(native.function("rms_norm", RmsNormArgs), args)
"""

from __future__ import annotations

import ctypes
import logging
import os
import struct
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from baton.core.errors import InvalidArgument

log = logging.getLogger(__name__)

# Of the numbers that come out: 1 more with every change after which any of them differs in a bit, so that
# versions that would give different tokens refuse each other's KV. tests/kernels/test_revision.py notices.
REVISION = 1

_ISA = {1: "avx2", 2: "avx512", 3: "amx"}
ISA_ENV = "BATON_CPU_ISA"
Function = Callable[[ctypes.c_void_p, ctypes.c_void_p], None]


class Counter(ctypes.c_int64):
    """A number that recorded calls read when they run: how many rows a step has. Set `.value`."""


@cache
def library() -> ctypes.CDLL | None:
    """The loaded library; None, after one log line, where there is none that this machine can run.

    InvalidArgument: BATON_CPU_ISA asks for what there is not.
    """
    wanted = os.environ.get(ISA_ENV) or "none"
    if wanted not in ("none", *_ISA.values()):
        *most, last = _ISA.values()
        raise InvalidArgument(f"must be none, {', '.join(most)} or {last}, got {wanted!r}", field=ISA_ENV)
    found = sorted(Path(__file__).parent.glob("_native*.so"))
    if not found:
        log.warning("native kernels were not built (no C++ compiler at install?): torch computes, slower")
        return None
    try:
        _check_whole(found[0])
        loaded = _declared(ctypes.CDLL(str(found[0])))
    except (OSError, AttributeError) as error:  # AttributeError: another version's
        log.warning("native kernels cannot be loaded, torch computes, slower: %s", error)
        return None
    if not loaded.baton_isa():
        log.warning("native kernels need AVX2, or BATON_CPU_ISA=none is set: torch computes, slower")
        return None
    return loaded


def _check_whole(path: Path) -> None:
    """OSError: the file was cut short, which the loader would answer with SIGBUS. Told by the end of the ELF
    section headers (System V ABI, chapter 4: e_shoff, e_shentsize, e_shnum), which linkers put last."""
    with path.open("rb") as file:
        header = file.read(64)
        bytes_there = file.seek(0, os.SEEK_END)
    if header[:5] != b"\x7fELF\x02":  # not ELF, or not of 64 bits: whoever loads it may judge
        return
    if len(header) == 64:
        (start,) = struct.unpack_from("<Q", header, 40)
        size, count = struct.unpack_from("<HH", header, 58)
        if bytes_there >= start + size * count:
            return
    raise OSError(f"{path} is incomplete: reinstall baton-serve")


def _declared(loaded: ctypes.CDLL) -> ctypes.CDLL:
    """With the types of the functions that are no operations."""
    loaded.baton_isa.restype = ctypes.c_int32
    loaded.baton_pool_create.argtypes = [ctypes.c_int32, ctypes.POINTER(ctypes.c_int32)]
    loaded.baton_pool_create.restype = ctypes.c_void_p
    loaded.baton_pool_destroy.argtypes = [ctypes.c_void_p]
    loaded.baton_pool_destroy.restype = None
    loaded.baton_run.argtypes = [ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p]
    loaded.baton_run.restype = None
    return loaded


def available() -> bool:
    return library() is not None


def isa() -> str | None:
    """ "avx2", "avx512", or "amx", which is AVX-512 with products of integers in tiles: what computes; None:
    nothing does."""
    loaded = library()
    return None if loaded is None else _ISA[loaded.baton_isa()]


@dataclass(frozen=True, slots=True)
class _Setting:
    threads: int = 1
    cpus: tuple[int, ...] | None = None


class _Pool:
    """The threads that help one calling thread. Its operations run one after another."""

    def __init__(self, setting: _Setting) -> None:
        loaded = library()
        assert loaded is not None, "native.available() is False"
        self._destroy = loaded.baton_pool_destroy
        self.setting = setting
        helpers = (setting.cpus or ())[1:]
        pinned = (ctypes.c_int32 * len(helpers))(*helpers) if setting.cpus else None
        created = loaded.baton_pool_create(setting.threads, pinned)
        if created is None:
            raise OSError(f"cannot start {setting.threads} threads")
        self.handle = ctypes.c_void_p(created)

    def __del__(self) -> None:
        if hasattr(self, "handle"):
            self._destroy(self.handle)


class _State(threading.local):
    """What each calling thread has of its own."""

    pool: _Pool | None = None


_state = _State()
_setting = _Setting()


def configure(threads: int, cpus: Sequence[int] | None = None) -> None:
    """Compute with so many threads from now on, the calling one among them.

    cpus: where the others run, one number per thread; the first is the calling thread's and is left to the
    caller. None: anywhere. Whichever thread calls operations gets helpers of its own at its first.
    """
    global _setting
    if threads < 1:
        raise ValueError(f"at least 1 thread, got {threads}")
    if cpus is not None and len(cpus) != threads:
        raise ValueError(f"{threads} threads on {len(cpus)} CPUs {list(cpus)}")
    _setting = _Setting(threads, None if cpus is None else tuple(cpus))


def threads() -> int:
    return _setting.threads


def pool() -> ctypes.c_void_p:
    """The calling thread's pool, as operations take it."""
    own = _state.pool
    if own is None or own.setting != _setting:
        own = _state.pool = _Pool(_setting)
    return own.handle


@cache
def function(op: str, args: type[ctypes.Structure]) -> Function:
    """The operation `baton_<op>(const args*, Pool*)`. TypeError: the library has another idea of `args`."""
    loaded = library()
    assert loaded is not None, "native.available() is False"
    size = getattr(loaded, f"baton_{op}_args_bytes")
    size.restype = ctypes.c_int64
    if size() != ctypes.sizeof(args):
        raise TypeError(
            f"{args.__name__} has {ctypes.sizeof(args)} bytes, the library's {size()}: reinstall baton-serve"
        )
    found = getattr(loaded, f"baton_{op}")
    found.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
    found.restype = None
    return found


def run(op: Function, args: ctypes.Structure) -> None:
    """One operation, now. `args` and what it points at must live until it returns, which they do here."""
    op(ctypes.addressof(args), pool())  # type: ignore[arg-type]
