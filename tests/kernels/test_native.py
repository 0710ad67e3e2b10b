"""The foundation of the compiled kernels: threads, recorded programs, what happens where there are none."""

from __future__ import annotations

import _ctypes
import ctypes
import gc
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from baton.core.errors import InvalidArgument
from baton.kernels import native
from baton.kernels.linear.native import prepare
from baton.kernels.native import memory
from baton.kernels.native.program import Program
from tests.kernels.isas import ALL, LESSER

ROOT = Path(__file__).resolve().parents[2]

compiled = pytest.mark.skipif(not native.available(), reason="no native kernels here")


@pytest.fixture(autouse=True)
def _one_thread_again() -> Iterator[None]:
    yield
    native.configure(1)


@compiled
@pytest.mark.parametrize("threads", [2, 4])
def test_no_chunk_is_lost_or_done_twice_among_many_small_jobs(threads: int) -> None:
    """Each call moves each number by one place; what a hasty or late worker left would stand elsewhere."""
    native.configure(threads)
    size, calls, runs = 48, 200, 25
    there, back = torch.randn(56, size), torch.empty(56, size)
    want = there.roll(calls * runs, 1)
    move, rows = prepare(torch.eye(size).roll(1, 0)), native.Counter(len(there))
    pair = (move.call(there, back, rows), move.call(back, there, rows))
    step = Program(pair * (calls // 2))
    for _ in range(runs):
        step()
    assert torch.equal(there, want)


@compiled
def test_threads_can_be_configured_again() -> None:
    layer, x = prepare(torch.randn(100, 40)), torch.randn(30, 40)
    native.configure(1)
    want = layer(x)
    for threads in (3, 2, 2, 1):
        native.configure(threads)
        assert native.threads() == threads
        assert torch.equal(layer(x), want)
    native.configure(2, cpus=(0, sorted(os.sched_getaffinity(0))[-1]))
    assert torch.equal(layer(x), want)


@pytest.mark.parametrize(("threads", "cpus"), [(0, None), (-1, None), (2, (0,)), (1, ())])
def test_what_threads_cannot_be(threads: int, cpus: tuple[int, ...] | None) -> None:
    with pytest.raises(ValueError, match="thread"):
        native.configure(threads, cpus)


@compiled
def test_arguments_of_another_size_are_refused() -> None:
    class Other(ctypes.Structure):
        _fields_ = (("rows", ctypes.c_void_p),)

    with pytest.raises(TypeError, match=r"Other has 8 bytes, the library's \d+"):
        native.function("rms_norm", Other)


@compiled
def test_a_program_reads_its_counters_when_it_runs() -> None:
    layer, rows = prepare(torch.eye(5)), native.Counter(0)
    x, out = torch.randn(4, 5), torch.zeros(4, 5)
    step = Program([layer.call(x, out, rows)])
    for count in (0, 3, 1, 4):
        rows.value = count
        out.zero_()
        step()
        assert torch.equal(out[:count], x[:count])
        assert not out[count:].any()


@compiled
def test_a_program_keeps_what_it_points_at() -> None:
    out = torch.zeros(4, 300)
    step = Program([prepare(torch.ones(300, 300)).call(torch.ones(4, 300), out, native.Counter(4))])
    gc.collect()
    [torch.full((300, 300), 7.0) for _ in range(20)]  # takes what was let go of
    step()
    assert torch.equal(out, torch.full((4, 300), 300.0))


@pytest.mark.skipif("BATON_CPU_ISA" in os.environ, reason="what the machine has is not to be seen from here")
@pytest.mark.parametrize("isa", ["none", *ALL])
def test_the_environment_chooses_the_instruction_set(isa: str) -> None:
    """ "none": torch computes, and one line says why. More than the machine has is not given."""
    program = (
        "import logging; logging.basicConfig(format='%(message)s')\n"
        "from baton.kernels import native\n"
        "print(native.isa(), native.available(), native.available())"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "BATON_CPU_ISA": isa},
        capture_output=True,
        text=True,
        check=True,
    )
    if isa == "none" or not native.available():
        assert done.stdout.split() == ["None", "False", "False"]
        [line] = done.stderr.splitlines()
        assert "torch computes" in line
    else:
        assert done.stdout.split() == [isa if isa in LESSER else native.isa(), "True", "True"]
        assert done.stderr == ""


@pytest.mark.parametrize("isa", ["AVX2", "sse", "avx512 "])
def test_an_instruction_set_that_there_is_not_is_refused(isa: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BATON_CPU_ISA", isa)
    with pytest.raises(InvalidArgument, match="none, avx2, avx512 or amx") as caught:
        native.library.__wrapped__()
    assert caught.value.field == "BATON_CPU_ISA"


@compiled
@pytest.mark.parametrize("part", [0.0, 0.0001, 0.01, 0.5, 0.99])
def test_a_library_that_was_cut_short_is_not_loaded(
    part: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The dynamic loader would map what is not there, and the process die of SIGBUS."""
    [whole, *_] = (ROOT / "kernels/native").glob("_native*.so")
    content = whole.read_bytes()
    (tmp_path / "whole").mkdir()
    (tmp_path / "whole" / whole.name).write_bytes(content)
    monkeypatch.setattr(native, "__file__", str(tmp_path / "whole" / "__init__.py"))
    assert native.library.__wrapped__() is not None, "copies can be loaded, as far as they are whole"
    assert caplog.text == ""
    (tmp_path / whole.name).write_bytes(content[: int(part * len(content))])
    monkeypatch.setattr(native, "__file__", str(tmp_path / "__init__.py"))
    assert native.library.__wrapped__() is None
    assert "torch computes" in caplog.text


def test_a_library_without_our_functions_is_not_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "_native.so").symlink_to(_ctypes.__file__)
    monkeypatch.setattr(native, "__file__", str(tmp_path / "__init__.py"))
    assert native.library.__wrapped__() is None
    assert "torch computes" in caplog.text


def test_the_package_lists_every_source() -> None:
    """What pyproject.toml does not name is in no wheel, or does not lead to a new build when it changes."""
    extension = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["ext-modules"][0]
    there = {path.relative_to(ROOT).as_posix() for path in (ROOT / "kernels/native/src").iterdir()}
    assert set(extension["sources"]) == {name for name in there if name.endswith(".cpp")}
    assert set(extension["depends"]) == {name for name in there if name.endswith((".h", ".inl"))}


def test_packed_memory_is_shared_and_given_back() -> None:
    memory_of = memory._Arena
    gc.collect()
    first, second = memory.empty((3, 5), torch.float32), memory.empty((7,), torch.float8_e4m3fn)
    assert second.data_ptr() - first.data_ptr() == 64
    assert not first.any()
    large = memory.empty((40 << 20,), torch.bfloat16)  # more than an arena
    assert large.data_ptr() % (2 << 20) == 0
    first.fill_(1)
    assert memory_of.memory is not None
    del large
    gc.collect()
    assert memory_of.memory() is None
    assert first.sum() == 15


@compiled
def test_threads_that_cannot_be_started_are_an_error() -> None:
    """Not the end of the process: what was started is stopped again."""
    program = (
        "import resource\n"
        "from baton.kernels import native\n"
        "native.library()\n"
        "used = int(open('/proc/self/statm').read().split()[0]) * resource.getpagesize()\n"
        "resource.setrlimit(resource.RLIMIT_AS, (used + 2**28, used + 2**28))\n"
        "native.configure(4000)\n"
        "try:\n"
        "    native.pool()\n"
        "except OSError as error:\n"
        "    print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", program], capture_output=True, text=True, timeout=100, check=True
    )
    assert done.stdout == "cannot start 4000 threads\n"


@pytest.mark.skipif(shutil.which("c++") is None, reason="no compiler here")
@pytest.mark.skipif("BATON_CPU_ISA" in os.environ, reason="what the machine has is not to be seen from here")
def test_where_there_is_a_compiler_the_kernels_are_there() -> None:
    """Else hundreds of tests would be skipped, unnoticed."""
    assert "avx2" not in Path("/proc/cpuinfo").read_text() or native.available()
