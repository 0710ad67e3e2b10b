"""`baton config`: check a deployment's file, show what is in force, print the schema."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
import yaml

from baton.cli.settings import settings
from baton.core.load import Role
from baton.runtime.config import effective_json, json_schema, load_config
from baton.runtime.launcher import check_devices

app = typer.Typer(no_args_is_help=True, help="Check a deployment's file, show what is in force.")


@app.command()
def check(file: Annotated[Path, typer.Argument(help="The YAML file.")]) -> None:
    """Say whether a file is right; all mistakes are listed with file, line, column and key."""
    config = load_config(file)
    for role in Role:
        check_devices(config, role)
    print(f"{file}: ok")


@app.command()
def show(
    config: Annotated[Path | None, typer.Option("--config", "--file", "-f", help="The YAML file.")] = None,
    assignments: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Any setting: section.key=value.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON instead of YAML.")] = False,
) -> None:
    """Print all settings in force: defaults, file, environment, --set."""
    text = effective_json(settings(config, {}, assignments or []))
    print(text if as_json else yaml.safe_dump(json.loads(text), sort_keys=False).rstrip())


@app.command()
def schema() -> None:
    """Print the JSON Schema of the file, for editors."""
    print(json.dumps(json_schema(), indent=2))
