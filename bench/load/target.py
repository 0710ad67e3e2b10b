"""What the generator sends requests to."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from baton.bench.load.plan import Shot
from baton.bench.load.record import Record

Clock = Callable[[], float]
"""Seconds since the run began."""

Call = Callable[[Record, Clock], Awaitable[None]]
"""Sends one prepared request and fills in its record's chunks, tokens and outcome; cancelled, it lets go of
the request at the server. Whatever the server does is an outcome, not an exception."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What a target says of itself; None, "", {}, []: nothing. nodes: how many there are, by role; hosts: the
    same for each host. router: its router's settings, as its configuration has them."""

    model: str = ""
    vocab_size: int | None = None
    max_model_len: int | None = None
    nodes: dict[str, int] = field(default_factory=dict)
    hosts: list[dict[str, int]] = field(default_factory=list)
    router: dict[str, Any] = field(default_factory=dict)


class Target(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def url(self) -> str: ...

    @property
    def chat(self) -> bool:
        """Whether prompts are messages, so that a template adds tokens to them."""

    async def open(self) -> Facts:
        """Connect. BatonError: nothing answers there."""

    def prepare(self, shot: Shot) -> Call:
        """All work that can be done before the request is due. InvalidArgument: it cannot be sent to this
        kind of target at all."""

    async def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Options:
    """How requests are made. ignore_eos: ask for exactly as many tokens as the workload says. body: fields
    that are added to an HTTP request's, or replace them. headers: of HTTP requests. model: "" for the
    target's first. as_text: send words even where token ids would do."""

    model: str = ""
    ignore_eos: bool = True
    temperature: float = 0.0
    seed: int = 0
    as_text: bool = False
    body: dict[str, object] = field(default_factory=dict)
    headers: dict[str, str] = field(default_factory=dict)
