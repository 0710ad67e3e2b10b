"""Configurations as they are written, and what is said against them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from baton.runtime.config import ConfigError, load_config


def write(folder: Path, text: str) -> Path:
    path = folder / "cluster.yaml"
    path.write_text(text)
    return path


def nested(key: str, word: str, dash: bool = False) -> str:
    """YAML that sets one dotted key to a word as it stands."""
    parts = key.replace("_", "-").split(".") if dash else key.split(".")
    lines = [f"{'  ' * depth}{part}:" for depth, part in enumerate(parts)]
    return "\n".join(lines) + f" {word}\n"


def env_name(key: str) -> str:
    return "BATON_" + key.replace(".", "__").upper()


def refused(*args: Any, **kwargs: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        load_config(*args, **kwargs)
    return str(caught.value)
