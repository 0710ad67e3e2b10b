"""Why a configuration was refused: every problem at once, each with its place."""

from __future__ import annotations

from dataclasses import dataclass

from baton.core.errors import InvalidArgument


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a value was written: `cluster.yaml:3:9`, `environment BATON_MODEL`, `flag --port`."""

    source: str
    line: int | None = None
    column: int | None = None

    def __str__(self) -> str:
        return self.source if self.line is None else f"{self.source}:{self.line}:{self.column}"


@dataclass(frozen=True, slots=True)
class Problem:
    origin: Origin
    key: str  # dotted path, "" where the whole file is meant
    message: str

    def __str__(self) -> str:
        said = not self.key or self.origin.source == f"flag {self.key}"  # the place names the key already
        return f"{self.origin}: {self.message}" if said else f"{self.origin}: {self.key}: {self.message}"


class ConfigError(InvalidArgument):
    """`str()` gives one line per problem."""

    def __init__(self, problems: list[Problem]) -> None:
        super().__init__("\n".join(map(str, problems)))
        self.problems = tuple(problems)
        self.key = problems[0].key
