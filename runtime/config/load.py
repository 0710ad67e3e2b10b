"""Where settings come from: flags win over the environment, that over the file, that over the defaults.

Nothing is ignored silently: an unknown or duplicate key, a value of the wrong type, an unknown `BATON_`
variable stop the start with the place where they were written.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import pydantic
from pydantic import BaseModel

from baton.runtime.config.document import Document, KeyPath, dotted, normal_key, parse_document, read_document
from baton.runtime.config.errors import ConfigError, Origin, Problem
from baton.runtime.config.model import Clash, ClusterConfig
from baton.runtime.config.scalars import hint

ENV_PREFIX = "BATON_"
# Variables that steer a process but are no settings of the deployment.
RESERVED_ENV = frozenset(
    {"BATON_ENDPOINT", "BATON_CPU_ISA", "BATON_CHILD_CONFIG_FD", "BATON_READY_FD", "BATON_PARENT_PID"}
)
# What Kubernetes sets for a service called baton (or baton-...): not ours.
_SERVICE_LINK = re.compile(r"(.*_)?SERVICE_(HOST|PORT(_\w+)?)|(.*_)?PORT_\d+_(TCP|UDP)(_\w+)?|(.*_)?PORT")


def load_config(
    file: Path | None = None,
    *,
    flags: Mapping[str, object] | Iterable[tuple[str, object]] = (),
    environ: Mapping[str, str] | None = None,
) -> ClusterConfig:
    """The settings in force, role overrides resolved. ConfigError lists everything that is wrong.

    flags: (dotted key, value) pairs; text values are read as the key's type, others are taken as they are.
    environ: None: no variable is looked at; the command line passes `os.environ`.
    """
    merged = Document("defaults") if file is None else read_document(file)
    problems = list(merged.problems)
    for name, text in sorted((environ or {}).items()):
        if (key := _env_key(name, problems)) is not None:
            _set(merged, key, text, Origin(f"environment {name}"), problems)
    seen: set[str] = set()
    for name, value in flags.items() if isinstance(flags, Mapping) else flags:
        key, origin = normal_key(name), Origin(f"flag {name}")
        if key in seen:
            problems.append(Problem(origin, key, "is given twice on the command line"))
        seen.add(key)
        _set(merged, key, value, origin, problems)
    try:
        config = _validate(merged)
    except ConfigError as error:
        raise _in_order([*problems, *error.problems]) from None
    if problems:
        raise _in_order(problems)
    return config.resolved()


def _in_order(problems: list[Problem]) -> ConfigError:
    return ConfigError(sorted(problems, key=lambda p: (p.origin.source, p.origin.line or 0)))


def effective_json(config: ClusterConfig) -> str:
    """All settings in force, as JSON that `from_json` reads back to an equal configuration."""
    return config.resolved().model_dump_json()


def from_json(text: str) -> ClusterConfig:
    """Read what `effective_json` wrote."""
    return ClusterConfig.model_validate_json(text)


def json_schema() -> dict[str, Any]:
    """JSON Schema of the configuration file, for editors."""
    return ClusterConfig.model_json_schema() | {"$schema": "https://json-schema.org/draft/2020-12/schema"}


def _env_key(name: str, problems: list[Problem]) -> str | None:
    """The dotted key that a variable sets, or None for one that is not ours."""
    if not name.startswith(ENV_PREFIX) or name in RESERVED_ENV:
        return None
    key = name.removeprefix(ENV_PREFIX).lower().replace("__", ".")
    if "." in key or key in ClusterConfig.model_fields:
        return key
    if not _SERVICE_LINK.fullmatch(name.removeprefix(ENV_PREFIX)):
        known = difflib.get_close_matches(key, ClusterConfig.model_fields, 1)
        advice = (
            f"; did you mean {ENV_PREFIX}{known[0].upper()}?"
            if known
            else "; sections end in two underscores"
        )
        problems.append(Problem(Origin(f"environment {name}"), key, f"unknown key{advice}"))
    return None


def _set(merged: Document, key: str, value: object, origin: Origin, problems: list[Problem]) -> None:
    """Put one value from the environment or the command line into the merged data."""
    path: KeyPath = tuple(key.split("."))
    if isinstance(value, str):
        try:
            value = _read_text(value, field_type(path), origin)
        except ConfigError as error:
            problems.append(Problem(origin, key, error.problems[0].message))
            return
    section = merged.data
    for part in path[:-1]:
        inner = section.get(str(part))
        if inner is None:
            inner = section[str(part)] = {}
        if not isinstance(inner, dict):
            problems.append(Problem(origin, key, f"{part} is not a section"))
            return
        section = inner
    section[str(path[-1])] = value
    for end in range(1, len(path)):
        merged.keys.setdefault(path[:end], origin)
    merged.keys[path] = merged.values[path] = origin
    for stale in [p for p in merged.values if p[: len(path)] == path and p != path]:
        del merged.values[stale]


def field_type(path: KeyPath) -> Any:
    """The annotation of a key, Annotated and `| None` taken off; None for an unknown key."""
    model: Any = ClusterConfig
    for part in path:
        if not (isinstance(model, type) and issubclass(model, BaseModel)) or part not in model.model_fields:
            return None
        model = _bare(model.model_fields[str(part)].annotation)
    return model


def _bare(annotation: Any) -> Any:
    while get_origin(annotation) in (Annotated, Union, UnionType):
        annotation = next(arg for arg in get_args(annotation) if arg is not type(None))
    return annotation


def _read_text(text: str, kind: Any, origin: Origin) -> object:
    """Read text as its key's type wants it: text as it is, lists at commas, the rest as YAML."""
    if kind is str or get_origin(kind) is Literal:
        return text
    if get_origin(kind) is tuple and not text.lstrip().startswith("["):
        return [part.strip() for part in text.split(",")] if text.strip() else []
    document = parse_document(f"value: {text}" if "\n" not in text else "", origin.source)
    if document.problems:
        raise ConfigError(document.problems)
    return document.data.get("value")


def _validate(merged: Document) -> ClusterConfig:
    sections = {name for name in ClusterConfig.model_fields if field_type((name,)) in _SECTIONS}
    data = {
        k: v for k, v in merged.data.items() if not (v is None and k in sections)
    }  # `router:` and no more
    try:
        # By way of JSON: its strict mode takes arrays for tuples, and still no text for numbers.
        return ClusterConfig.model_validate_json(json.dumps(data))
    except pydantic.ValidationError as error:
        problems = [_problem(dict(item), merged) for item in error.errors()]
        raise ConfigError(problems) from None


_SECTIONS = {
    field.annotation
    for field in ClusterConfig.model_fields.values()
    if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel)
}


def _problem(item: dict[str, Any], merged: Document) -> Problem:
    """One of pydantic's errors in our words, with its place."""
    path: KeyPath = tuple(item["loc"])
    unknown = item["type"] == "extra_forbidden"
    places = merged.keys if unknown else merged.values
    candidates = [*_clashing(item), *_prefixes(path)]
    origin = next((places[p] for p in candidates if p in places), Origin(merged.source))
    return Problem(origin, dotted(path), _unknown(path) if unknown else _message(item))


def _clashing(item: dict[str, Any]) -> list[KeyPath]:
    """The keys that do not fit together; a check of a whole section has no place but theirs."""
    error = item.get("ctx", {}).get("error")
    keys = error.keys if isinstance(error, Clash) else ()
    return [(*item["loc"], *key.split(".")) for key in keys]


def _prefixes(path: KeyPath) -> list[KeyPath]:
    return [path[:end] for end in range(len(path), 0, -1)]


def _unknown(path: KeyPath) -> str:
    parent = field_type(path[:-1]) if len(path) > 1 else ClusterConfig
    known = list(parent.model_fields) if isinstance(parent, type) and issubclass(parent, BaseModel) else []
    close = difflib.get_close_matches(str(path[-1]), known, 1)
    return (
        f"unknown key; did you mean {close[0]}?" if close else f"unknown key; known here: {', '.join(known)}"
    )


_WANTED = {
    "bool_type": "must be true or false",
    "int_type": "must be a whole number",
    "float_type": "must be a number",
    "string_type": "must be text",
    "tuple_type": "must be a list",
    "model_type": "must be a section of `key: value` pairs",
    "greater_than": "must be greater than {gt}",
    "greater_than_equal": "must be at least {ge}",
    "less_than_equal": "must be at most {le}",
    "finite_number": "must be a finite number",
    "literal_error": "must be {expected}",
    "string_too_short": "must not be empty",
    "string_too_long": "must have at most {max_length} characters",
    "too_short": "must not be empty",
}


def _message(item: dict[str, Any]) -> str:
    written = item["input"]
    if (wanted := _WANTED.get(item["type"])) is None:
        return str(item["msg"]).removeprefix("Value error, ")
    wanted = wanted.format(**item.get("ctx", {}))
    advice = hint(written) if item["type"].endswith("_type") else ""
    if item["type"] == "string_type" and isinstance(written, int | float | bool):
        advice = "put it in quotes"
    shown = json.dumps(written) if not isinstance(written, dict | list) else "a section or list"
    return f"{wanted}, got {shown}" + (f" ({advice})" if advice else "")
