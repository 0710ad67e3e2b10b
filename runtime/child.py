"""What a launcher and its child processes say to each other: one message down at the start, one line up.

Down: a JSON document on an inherited file descriptor (never on the command line, where every user of the host
could read it). Up: see `ready`. A child dies with its parent: `read_start` sees to that first.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from typing import TypeVar

from pydantic import BaseModel, ConfigDict, Field

from baton.core.load import Role
from baton.runtime.config import ClusterConfig

CONFIG_FD_ENV = "BATON_CHILD_CONFIG_FD"
READY_FD_ENV = "BATON_READY_FD"
PARENT_ENV = "BATON_PARENT_PID"

_PR_SET_PDEATHSIG = 1


class Message(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class NodeStart(Message):
    """How one node process is to run: `python -m baton.cli.node`."""

    role: Role
    index: int = Field(ge=0)  # among the nodes of its role started here
    node_id: str = Field(min_length=1)
    config: ClusterConfig
    registries: tuple[str, ...]  # host:port of every router's registry
    threads: int = Field(ge=1)
    cpus: tuple[int, ...] = ()  # where they run, one each; (): anywhere
    device: str = "cpu"
    host: str = "127.0.0.1"
    port: int = Field(default=0, ge=0, le=65535)  # 0: the kernel chooses
    advertise_host: str | None = None
    metrics_port: int = Field(default=0, ge=0, le=65535)

    @property
    def name(self) -> str:
        return f"{self.role.value}-{self.index}"


class RouterStart(Message):
    """How one router process is to run: `python -m baton.cli.router`.

    share_port: several routers listen on `port` and `http_port` (SO_REUSEPORT). Where false they must not be
    shared: a second listener on the same port is an error, never a silent split of the traffic.
    """

    index: int = Field(ge=0)
    config: ClusterConfig
    port: int = Field(ge=0, le=65535)
    http_port: int = Field(default=0, ge=0, le=65535)
    share_port: bool = False
    registry_port: int = Field(default=0, ge=0, le=65535)
    metrics_port: int = Field(default=0, ge=0, le=65535)

    @property
    def name(self) -> str:
        return f"router-{self.index}"


class Ready(Message):
    """The child has bound its ports and serves. All are host:port; "" where it has none."""

    ready: bool = True
    address: str
    http: str = ""
    registry: str = ""
    metrics: str = ""


class NotReady(Message):
    """The child could not start. field: the setting that is to blame, where one is."""

    ready: bool = False
    error: str
    field: str = ""


StartT = TypeVar("StartT", NodeStart, RouterStart)


def read_start(kind: type[StartT]) -> StartT:
    """Called first in a child: tie it to its parent's life, then read the parent's message."""
    die_with_parent()
    fd = os.environ.get(CONFIG_FD_ENV)
    if fd is None:
        sys.exit(f"{CONFIG_FD_ENV} is not set: this process is started by `baton serve`")
    with os.fdopen(int(fd), "rb") as stream:
        stream.seek(0)
        return kind.model_validate_json(stream.read())


def die_with_parent() -> None:
    """Have the kernel kill this process when its parent ends, however that comes about (prctl(2)).

    The parent may be gone already: then the pid it left in the environment is not our parent's any more.
    """
    parent = os.environ.get(PARENT_ENV)
    if parent is None:
        return
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != int(parent):
        os._exit(1)
