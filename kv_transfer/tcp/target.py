"""What all inbound connections of a transport share: the pool, who may write to it, and how to greet."""

from __future__ import annotations

from dataclasses import fields

from baton.kv_transfer.layout import KvLayout
from baton.kv_transfer.permits import Permits
from baton.kv_transfer.pool_view import PoolView
from baton.kv_transfer.tcp.frames import ProtocolError
from baton.kv_transfer.tcp.sockets import parse_layout, parse_text


class Target:
    def __init__(self, incarnation: str) -> None:
        self.incarnation = incarnation
        self.permits = Permits()
        self.view: PoolView | None = None

    def view_checked(self) -> PoolView:
        if self.view is None:
            raise ProtocolError("no pool is registered here")
        return self.view

    def greet(self, text: bytes) -> tuple[str, str]:
        """(source incarnation, "" or why it is not welcome). ProtocolError: not a hello at all."""
        source, wanted = parse_text(text, "source", "target")
        layout = parse_layout(text)
        if not source:
            raise ProtocolError("a source without incarnation")
        if wanted != self.incarnation:
            return source, f"this is incarnation {self.incarnation!r}, not {wanted!r}"
        if self.view is None:
            return source, "no pool is registered here yet"
        return source, _difference(layout, self.view.layout)


def _difference(theirs: KvLayout, ours: KvLayout) -> str:
    for field in fields(KvLayout):
        a, b = getattr(theirs, field.name), getattr(ours, field.name)
        if a != b:
            return f"layout: {field.name} is {b}, the source was told {a}"
    return ""
