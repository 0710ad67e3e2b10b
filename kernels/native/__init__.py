"""The compiled CPU kernels: C++ with a plain C interface, called through ctypes, which lets go of the GIL.

Everything works without them: where the library was not built (no compiler at install) or the machine has no
AVX2, `available()` is False, one log line says why, and the torch implementations run.

    native.configure(threads=2, cpus=(0, 1))   # once per process; the default is one thread anywhere
    native.run(native.function("rms_norm", RmsNormArgs), args)
"""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

log = logging.getLogger(__name__)

_ISA = {1: "avx2", 2: "avx512"}
Function = Callable[[ctypes.c_void_p, ctypes.c_void_p], None]


class Counter(ctypes.c_int64):
    """A number that recorded calls read when they run: how many rows a step has. Set `.value`."""


@cache
def library() -> ctypes.CDLL | None:
    """The loaded library; None, after one log line, where there is none that this machine can run."""
    found = sorted(Path(__file__).parent.glob("_native*.so"))
    if not found:
        log.warning("native kernels were not built (no C++ compiler at install?): torch computes, slower")
        return None
    try:
        loaded = ctypes.CDLL(str(found[0]))
    except OSError as error:
        log.warning("native kernels cannot be loaded, torch computes, slower: %s", error)
        return None
    loaded.baton_isa.restype = ctypes.c_int32
    if not loaded.baton_isa():
        log.warning("native kernels need AVX2, or BATON_CPU_ISA=none is set: torch computes, slower")
        return None
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
    """ "avx2" or "avx512": which compilation runs; None: none does."""
    loaded = library()
    return None if loaded is None else _ISA[loaded.baton_isa()]


class _Pool:
    """The process's threads. One: operations of one engine step run one after another."""

    handle: ctypes.c_void_p | None = None
    threads = 1


def configure(threads: int, cpus: Sequence[int] | None = None) -> None:
    """Compute with so many threads from now on; nothing may be running.

    cpus: where the workers run, one number per thread; the first is the calling thread's and is left to the
    caller. None: anywhere.
    """
    if threads < 1:
        raise ValueError(f"at least 1 thread, got {threads}")
    loaded = library()
    if loaded is None:
        return
    pinned = None
    if cpus is not None:
        if len(cpus) != threads:
            raise ValueError(f"{threads} threads on {len(cpus)} CPUs {list(cpus)}")
        pinned = (ctypes.c_int32 * max(1, threads - 1))(*cpus[1:])
    created = loaded.baton_pool_create(threads, pinned)
    if created is None:
        raise OSError(f"cannot start {threads} threads")
    old, _Pool.handle, _Pool.threads = _Pool.handle, ctypes.c_void_p(created), threads
    if old is not None:
        loaded.baton_pool_destroy(old)


def threads() -> int:
    return _Pool.threads


def pool() -> ctypes.c_void_p:
    """The process's pool, as operations take it."""
    if _Pool.handle is None:
        configure(1)
    assert _Pool.handle is not None, "native.available() is False"
    return _Pool.handle


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
    return found  # type: ignore[no-any-return]


def run(op: Function, args: ctypes.Structure) -> None:
    """One operation, now. `args` and what it points at must live until it returns, which they do here."""
    op(ctypes.addressof(args), pool())  # type: ignore[arg-type]
