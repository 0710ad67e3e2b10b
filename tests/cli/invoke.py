"""The command line in this process."""

from __future__ import annotations

import sys
from dataclasses import dataclass

import pytest

from baton.cli.main import main


@dataclass(frozen=True)
class Done:
    code: int
    out: str
    err: str


class Cli:
    """Call it with arguments; returns what a shell would see."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self._monkeypatch = monkeypatch
        self._capsys = capsys

    def __call__(self, *args: str) -> Done:
        self._monkeypatch.setattr(sys, "argv", ["baton", *args])
        self._capsys.readouterr()
        code = 0
        try:
            main()
        except SystemExit as stop:
            code = stop.code if isinstance(stop.code, int) else 0
        out, err = self._capsys.readouterr()
        return Done(code, out, err)
