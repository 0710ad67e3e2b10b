"""Every test has a runtime folder of its own and no settings in its environment."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from baton.runtime.config import ClusterConfig
from tests.cli.invoke import Cli


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [name for name in os.environ if name.startswith("BATON_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "run"))


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Cli]:
    """Commands may set up logs, which would go on being written to this test's standard error."""
    root = logging.getLogger()
    known, handlers, level = structlog.get_config(), list(root.handlers), root.level
    yield Cli(monkeypatch, capsys)
    structlog.configure(**known)
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[ClusterConfig]:
    """`baton serve` starts nothing; what it would have started is in this list."""
    found: list[ClusterConfig] = []
    monkeypatch.setattr("baton.cli.serve.serve", lambda config, as_json: found.append(config))
    return found
