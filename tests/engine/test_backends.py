"""Which kernels run where, what cannot run, and the Triton ones through the engine."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from baton.core.errors import InvalidArgument
from baton.core.kvcache import KvCache
from baton.engine.config import EngineConfig
from baton.engine.loader import load
from baton.engine.models.recorded import RecordedModel
from baton.kernels import native
from baton.kernels.backend import choose
from tests.engine.driver import Driver
from tests.models import prompt_of, write_model

CPU = torch.device("cpu")
COMPILED = pytest.mark.skipif(not native.available(), reason="no native kernels here")


def test_auto_takes_the_compiled_kernels_where_they_are() -> None:
    assert choose(CPU).name == ("native" if native.available() else "torch")
    assert choose(CPU, "torch").name == "torch"


@pytest.mark.parametrize(
    ("device", "backend", "message"),
    [
        ("cuda:0", "native", "native kernels run on a CPU, not on cuda:0"),
        ("cpu", "triton", "triton kernels run on a GPU, not on cpu"),
    ],
)
def test_what_cannot_run_is_refused(
    device: str, backend: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(InvalidArgument, match=message) as caught:
        load(EngineConfig("demo", device=device, backend=backend))
    assert caught.value.field == "backend"


def test_without_compiled_kernels_torch_computes(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "T", "T")
    script = (
        "import sys, logging; logging.basicConfig()\n"
        "from baton.engine.config import EngineConfig\n"
        "from baton.engine.loader import load\n"
        "print(load(EngineConfig(sys.argv[1])).backend)\n"
        "load(EngineConfig(sys.argv[1], backend='native'))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(folder)],
        env={**os.environ, "BATON_CPU_ISA": "none"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "torch\n"
    assert done.stderr.count("torch computes, slower") == 1
    assert "native kernels cannot run here" in done.stderr


@pytest.mark.parametrize(
    ("options", "field"),
    [({"quantization": "int8"}, "quantization"), ({"backend": "native"}, "backend")],
)
@COMPILED
def test_what_transformers_code_cannot_follow_is_refused(
    options: dict[str, str], field: str, tmp_path: Path
) -> None:
    folder = write_model(tmp_path / "gemma2", "gemma2")
    with pytest.raises(InvalidArgument, match="gemma2 is run by transformers' own code") as caught:
        load(EngineConfig(str(folder), **options))
    assert caught.value.field == field


@COMPILED
def test_threads_of_torch_stay_out_of_the_way(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "T", "T")
    try:
        loaded = load(EngineConfig(str(folder), threads=2, cpus=tuple(sorted(os.sched_getaffinity(0)))[:2]))
        assert isinstance(loaded.model, RecordedModel)
        assert (native.threads(), torch.get_num_threads()) == (2, 1)
    finally:
        native.configure(1)


@COMPILED
def test_a_step_of_more_tokens_or_another_pool_is_recorded_anew(tmp_path: Path) -> None:
    loaded = load(EngineConfig(str(write_model(tmp_path / "T", "T")), block_size=4))
    prompts = [prompt_of(3), prompt_of(40), prompt_of(70)]
    want = [Driver(loaded.runner(40), KvCache(40, 4), chunk=128).generate([p], 4)[0] for p in prompts]
    driver = Driver(loaded.runner(80), KvCache(80, 4), chunk=128)
    for prompt, one in zip([*prompts, *prompts], [*want, *want], strict=True):
        [got] = driver.generate([prompt], 4)
        assert (got.output, got.logprobs) == (one.output, one.logprobs)


_TRITON = """
import sys
import torch
torch.set_num_threads(1)
from baton.core.kvcache import KvCache
from baton.engine.config import EngineConfig
from baton.engine.loader import load
from tests.engine.driver import Driver
from tests.models import prompt_of
for variant in sys.argv[1:]:
    loaded = load(EngineConfig(variant, backend="triton", block_size=4))
    for one in Driver(loaded.runner(20), KvCache(20, 4), chunk=8).generate([prompt_of(9), prompt_of(3)], 2):
        print(*one.output, *one.logprobs)
"""


def test_triton_kernels_run_the_engine(tmp_path: Path) -> None:
    """Interpreted, on CPU tensors."""
    variants = ("qwen3", "mixtral")
    folders = [write_model(tmp_path / variant, variant, num_hidden_layers=1) for variant in variants]
    done = subprocess.run(
        [sys.executable, "-c", _TRITON, *map(str, folders)],
        env={**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines = iter(done.stdout.splitlines())
    for folder in folders:
        loaded = load(EngineConfig(str(folder), backend="torch", block_size=4))
        driver = Driver(loaded.runner(20), KvCache(20, 4), chunk=8)
        for one in driver.generate([prompt_of(9), prompt_of(3)], 2):
            got = next(lines).split()
            assert [int(token) for token in got[:2]] == one.output
            assert [float(value) for value in got[2:]] == pytest.approx(one.logprobs, abs=1e-3)
