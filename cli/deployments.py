"""Which deployments run on this host: so that `baton generate` finds the one, whatever its port.

Every launcher keeps a small file in the user's runtime folder, named after its pid, while it serves.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from baton.core.errors import FailedPrecondition, Unavailable

ENDPOINT_ENV = "BATON_ENDPOINT"


@dataclass(frozen=True, slots=True)
class Deployment:
    """started_at: of the launcher process, to tell it from a later one with the same pid."""

    pid: int
    started_at: float
    endpoint: str
    model: str


def runtime_folder() -> Path:
    """A folder that only this user can write to; made if needed. FailedPrecondition if it is not ours."""
    base = os.environ.get("XDG_RUNTIME_DIR")
    folder = Path(base) / "baton" if base else Path(tempfile.gettempdir()) / f"baton-{os.getuid()}"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o022:
        raise FailedPrecondition(f"{folder} is not a folder that only this user can write to")
    return folder


@contextlib.contextmanager
def announced(endpoint: str, model: str) -> Iterator[None]:
    """Let clients of this user find the endpoint, for as long as the context lasts."""
    pid = os.getpid()
    entry = Deployment(pid, psutil.Process(pid).create_time(), endpoint, model)
    path = runtime_folder() / f"{pid}.json"
    partial = path.with_suffix(".new")
    partial.write_text(json.dumps(asdict(entry)))
    partial.replace(path)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)


def running() -> list[Deployment]:
    """All live deployments of this user, newest first. Files of dead launchers are removed."""
    found = []
    for path in runtime_folder().glob("*.json"):
        try:
            entry = Deployment(**json.loads(path.read_text()))
            live = psutil.Process(entry.pid).create_time() == entry.started_at
        except (OSError, ValueError, TypeError, psutil.Error):
            live, entry = False, None
        if live and entry is not None:
            found.append(entry)
        else:
            path.unlink(missing_ok=True)
    return sorted(found, key=lambda entry: -entry.started_at)


def find_endpoint(given: str | None) -> str:
    """The address to talk to: as given, else BATON_ENDPOINT, else the only deployment that runs here."""
    if named := given or os.environ.get(ENDPOINT_ENV):
        return named
    found = running()
    if not found:
        raise Unavailable(
            f"no deployment runs here: start one with `baton serve`, or give --endpoint or {ENDPOINT_ENV}"
        )
    if len(found) > 1:
        listed = ", ".join(f"{entry.endpoint} ({entry.model})" for entry in found)
        raise FailedPrecondition(f"several deployments run here: choose one with --endpoint: {listed}")
    return found[0].endpoint
