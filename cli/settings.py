"""From command-line options to settings: only what was given on the command line is passed on."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from baton.core.errors import InvalidArgument
from baton.runtime.config import ClusterConfig, load_config


def parse_assignments(assignments: list[str]) -> list[tuple[str, str]]:
    """`section.key=value` of --set to pairs."""
    pairs = []
    for text in assignments:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise InvalidArgument(f"--set {text}: write section.key=value")
        pairs.append((key.strip(), value))
    return pairs


def settings(
    file: Path | None, options: Mapping[str, object | None], assignments: list[str]
) -> ClusterConfig:
    """The configuration in force. options: key -> value, None for options that were not given."""
    given = [(key, value) for key, value in options.items() if value is not None]
    return load_config(file, flags=[*given, *parse_assignments(assignments)], environ=os.environ)
